#!/bin/bash
# One node, options in arrays.
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
MASTER_ADDR=localhost
MASTER_PORT=6000
NUM_NODES=1
NODE_RANK=0
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
CHECKPOINT_PATH=$1 #<path>

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --master_addr $MASTER_ADDR
    --master_port $MASTER_PORT
)
MODEL_ARGS=(
    --num-layers 96 # as in the paper
    --hidden-size 12288
)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain.py \
    ${MODEL_ARGS[@]} \
    --save $CHECKPOINT_PATH
