#!/bin/bash
# Started on each node, with the node's number: NODE_RANK=1 bash by-hand.sh
# torchrun --nproc_per_node=8 --nnodes=2 --node_rank=0 --master_addr=123.456.123.456 --master_port=1234 train.py
torchrun \
    --nproc_per_node="${NPROC_PER_NODE:-4}" \
    --nnodes="${NNODES:-1}" \
    --node_rank="${NODE_RANK:-0}" \
    --master_addr="${MASTER_ADDR:-localhost}" \
    --master_port="${MASTER_PORT:-29500}" \
    train.py "$@"
