#!/bin/bash
#SBATCH --job-name=cifar
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=4
#SBATCH --mem-per-cpu=2G
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=cifar-%j.log
# Two minutes before the time is over, the ranks are asked to save.
#SBATCH --signal=TERM@120

# Trains on GPUs, one rank for each. Options of `cifar train` follow the script's name:
#   OUT=/shared/runs/paper sbatch experiments/cifar/slurm/gpu.sh --preset paper --data-dir /shared/data
# Submit it from the root of the repository, after
# `cargo build --release -p cifar --features cuda,mpi`. Everything else is as in cpu.sh, beside it.
set -euo pipefail

# Slurm runs a copy of this script, so the other one is found from where the job was submitted.
DEVICE=${DEVICE:-cuda} exec bash "${SLURM_SUBMIT_DIR:-.}/experiments/cifar/slurm/cpu.sh" "$@"
