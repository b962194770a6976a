#!/bin/bash
# The launcher in a string that the shell of each task reads again.
#SBATCH --job-name=finetune
#SBATCH -D .
#SBATCH --output=O-%x.%j
#SBATCH --error=E-%x.%j
#SBATCH --nodes=4                   # number of nodes
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:4
#SBATCH --cpus-per-task=160
#SBATCH --time=01:59:00

source "$HOME/venv/bin/activate"
export GPUS_PER_NODE=4
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
head_node_ip=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
port=$((15000 + SLURM_JOB_ID % 10000))

LAUNCHER="accelerate launch \
    --num_processes $((SLURM_NNODES * GPUS_PER_NODE)) \
    --num_machines $SLURM_NNODES \
    --machine_rank \$SLURM_PROCID \
    --main_process_ip $head_node_ip \
    --main_process_port $port \
    --tee 3 \
    "
SCRIPT="examples/complete.py"
SCRIPT_ARGS=" \
    --mixed_precision fp16 \
    --output_dir output \
    "
CMD="$LAUNCHER $SCRIPT $SCRIPT_ARGS"
SRUN_ARGS=" \
    --wait=60 \
    --kill-on-bad-exit=1 \
    --jobid $SLURM_JOB_ID \
    "
srun $SRUN_ARGS bash -c "$CMD" 2>&1 | tee -a main_log.txt
