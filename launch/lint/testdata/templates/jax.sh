#!/bin/bash
# JAX finds out about Slurm by itself.
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
export XLA_PYTHON_CLIENT_MEM_FRACTION=0.9
export JAX_PLATFORMS=cuda
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 python train.py
