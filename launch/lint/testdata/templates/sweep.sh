#!/bin/bash
# Jobs that have nothing to do with each other.
for lr in 1e-3 1e-4; do
    sbatch --export=ALL,LR="$lr" --job-name="lr-$lr" train.sbatch
done
sbatch --nodes=1 --gres=gpu:1 --wrap "python evaluate.py --run $1"
