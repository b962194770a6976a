#!/bin/bash
# The head node asked for its address, in an array as people do it.
#SBATCH --job-name=pretrain
#SBATCH --nodes=4
#SBATCH --ntasks=4
#SBATCH --gpus-per-task=8
#SBATCH --cpus-per-task=96
#SBATCH --exclusive

nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )
nodes_array=($nodes)
head_node=${nodes_array[0]}
head_node_ip=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname --ip-address)
echo "head node: $head_node_ip"
export LOGLEVEL=INFO

srun --cpus-per-task=96 torchrun \
    --nnodes 4 \
    --nproc_per_node 8 \
    --rdzv_id $SLURM_JOB_ID \
    --rdzv_backend c10d \
    --rdzv_endpoint $head_node_ip:29500 \
    train.py --epochs 50
