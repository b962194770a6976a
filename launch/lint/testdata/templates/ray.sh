#!/bin/bash
# A cluster of Ray: a head and workers, each by a step of its own.
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
nodes_array=($nodes)
head=${nodes_array[0]}
port=$((20000 + SLURM_JOB_ID % 5000))
srun --nodes=1 --ntasks=1 -w "$head" ray start --head --port="$port" --block &
for ((i = 1; i < SLURM_JOB_NUM_NODES; i++)); do
    srun --nodes=1 --ntasks=1 -w "${nodes_array[$i]}" ray start --address "$head:$port" --block &
done
python -u train.py --address "$head:$port"
