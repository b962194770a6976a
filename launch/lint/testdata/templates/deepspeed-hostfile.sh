#!/bin/bash
# The deepspeed launcher reaches the nodes by itself.
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8
#SBATCH --output=%x-%j.out
hostfile=hostfile.$SLURM_JOB_ID
scontrol show hostnames "$SLURM_JOB_NODELIST" | while read -r host; do
    echo "$host slots=8"
done >"$hostfile"
deepspeed --hostfile "$hostfile" --master_addr "$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)" --master_port $((10000 + SLURM_JOB_ID % 20000)) train.py --deepspeed --deepspeed_config ds_config.json
