#!/bin/bash
# One node, and a branch for several.
#SBATCH --nodes=1
#SBATCH --gpus-per-node=8
if [[ $SLURM_NNODES == 1 ]]; then
    LAUNCHER="accelerate launch --num_processes 8"
else
    LAUNCHER="srun accelerate launch --num_machines $SLURM_NNODES"
fi
export CMD="$LAUNCHER train.py"
eval $CMD
