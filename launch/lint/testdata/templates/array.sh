#!/bin/bash
# A GPU for each element of an array job.
#SBATCH --array=0-3
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --gres=gpu:1
#SBATCH --output=logs/%A_%a.out
python train.py --seed "$SLURM_ARRAY_TASK_ID"
