#!/bin/bash
#SBATCH --job-name=student-teacher
#SBATCH --array=1-8
#SBATCH --cpus-per-task=2
#SBATCH --mem=2G
#SBATCH --time=01:00:00
#SBATCH --output=student-teacher-%A_%a.log

# Each task of the array does one part of a sweep. Options of the sweep follow the script's name:
#   sbatch experiments/student-teacher/slurm/sweep.sh --seeds 50 --steps 3000
# Submit it from the root of the repository, after `cargo build --release -p student-teacher`.
set -euo pipefail

# PARTS is the number of parts, also when only some of them are submitted again.
parts=${PARTS:-8}

exec "${STUDENT_TEACHER:-target/release/student-teacher}" \
    --shard "${SLURM_ARRAY_TASK_ID}/${parts}" --out "${OUT:-runs/sweep}" --resume \
    --threads "${SLURM_CPUS_PER_TASK:-2}" "$@"
