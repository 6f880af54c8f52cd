#!/bin/bash
#SBATCH --job-name=cifar-study
#SBATCH --array=1-8
#SBATCH --cpus-per-task=8
#SBATCH --mem=8G
#SBATCH --time=24:00:00
#SBATCH --output=cifar-study-%A_%a.log

# Each task of the array trains one part of a study:
#   sbatch experiments/cifar/slurm/study.sh experiments/cifar/studies/realistic.json
# Submit it from the root of the repository, after `cargo build --release -p cifar`. Submitted
# again, it continues. When all tasks are done, `cifar study FILE --no-training` writes the tables.
set -euo pipefail

# PARTS is the number of parts, also when only some of them are submitted again.
parts=${PARTS:-8}

exec "${CIFAR:-target/release/cifar}" study "$1" \
    --shard "${SLURM_ARRAY_TASK_ID}/${parts}" --threads "${SLURM_CPUS_PER_TASK:-8}" "${@:2}"
