#!/bin/bash
# A process per node by ssh, from an inventory of one's own.
NODES=(gpu01 gpu02 gpu03)
PORT=29500
for i in "${!NODES[@]}"; do
    ssh "${NODES[$i]}" "cd $PWD && source venv/bin/activate && torchrun \
        --nnodes=${#NODES[@]} --nproc-per-node=8 --node-rank=$i \
        --master-addr=${NODES[0]} --master-port=$PORT train.py" &
done
wait
