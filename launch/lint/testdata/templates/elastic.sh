#!/bin/bash
# A platform sets the variables; nodes may come and go.
export NCCL_DEBUG=${NCCL_DEBUG:-WARN}
torchrun --nnodes="${MIN_NNODES:-$NNODES}:${MAX_NNODES:-$NNODES}" --max-restarts="${MAX_RESTARTS:-3}" \
    --nproc-per-node="${NPROC_PER_NODE:-1}" --rdzv-id="$RDZV_ID" --rdzv-backend=c10d \
    --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" main.py
