#!/bin/bash
#SBATCH --job-name=cifar
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --mem-per-cpu=1G
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=cifar-%j.log
# Two minutes before the time is over, the ranks are asked to save.
#SBATCH --signal=TERM@120

# Trains on the ranks of a CPU partition. Options of `cifar train` follow the script's name:
#   OUT=/shared/runs/first sbatch experiments/cifar/slurm/cpu.sh --preset cpu --data-dir /shared/data
# Submit it from the root of the repository, after `cargo build --release -p cifar --features mpi`.
# OUT and the data must be on a disk that all nodes share.
#
# A job that is preempted, or whose time is over, saves and is queued again; it then continues the
# run in OUT, on any number of ranks.
set -euo pipefail

out=${OUT:?OUT names the folder of the run, on a disk that all nodes share}
if [ -e "$out/config.json" ]; then
    arguments=(--resume "$out")
else
    arguments=(--out "$out" "$@")
fi

# Slurm's own launcher. With an MPI that does not know PMIx: MPI_LAUNCHER=mpirun.
read -ra launcher <<< "${MPI_LAUNCHER:-srun --mpi=pmix}"
status=0
"${launcher[@]}" "${CIFAR:-target/release/cifar}" train "${arguments[@]}" \
    --threads "${SLURM_CPUS_PER_TASK:-1}" ${DEVICE:+--device "$DEVICE"} || status=$?

# 130: it was asked to stop, and has saved.
if [ "$status" = 130 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
