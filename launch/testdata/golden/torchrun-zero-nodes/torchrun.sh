#!/bin/bash
# train: torchrun, for one node or many; the same script on every node.
# Rendered by "dsbuild launch torchrun".
#
# One node:    NPROC_PER_NODE=4 bash torchrun.sh
# Many nodes:  on each of them, with its own NODE_RANK and all else the same:
#              MASTER_ADDR=192.168.1.100 NNODES=2 NODE_RANK=0 bash torchrun.sh
# The program gets the arguments after the script's name, after the arguments
# below.

# The folder of this script.
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd) || exit 1

set -euo pipefail
cd -- /data/run

# The address of the first node, the same on all nodes. localhost works only for one
# node.
MASTER_ADDR=${MASTER_ADDR:-192.168.1.100}
# A free port of the first node; 29500 is torch's default. Two jobs on a node need
# two ports. It is not enough that a firewall opens MASTER_PORT: NCCL and gloo use
# further, random ports between all nodes.
MASTER_PORT=${MASTER_PORT:-29500}
# The rank of this node: 0 for the first.
NODE_RANK=${NODE_RANK:-0}
# The number of nodes. In every framework WORLD_SIZE is the number of processes. If
# NNODES is not set, this script accepts WORLD_SIZE as the number of nodes.
if [[ -z ${NNODES:-} && -n ${WORLD_SIZE:-} ]]; then
  echo "warning: WORLD_SIZE=$WORLD_SIZE is used as the number of nodes; set NNODES instead" >&2
  NNODES=$WORLD_SIZE
fi
unset WORLD_SIZE
NNODES=${NNODES:-2}
# Processes of this node, one for each GPU.
NPROC_PER_NODE=${NPROC_PER_NODE:-4}

if [[ $NNODES != 1 && $MASTER_ADDR == localhost ]]; then
  echo "MASTER_ADDR is localhost: each of the $NNODES nodes would wait for itself" >&2
  exit 2
fi
if [[ ! $NNODES =~ ^[1-9][0-9]*$ || ! $NODE_RANK =~ ^[0-9]+$ ]] || ((NODE_RANK >= NNODES)); then
  echo "NODE_RANK is $NODE_RANK and NNODES is $NNODES: ranks are numbers from 0 to NNODES-1" >&2
  exit 2
fi
# The DeepSpeed configuration, beside this script on all nodes.
ds_config=$here/ds_config.json

# The interpreter; if empty, the torchrun on PATH. All nodes need the same torch.
PYTHON=${PYTHON:-}
if [[ -n $PYTHON ]]; then launcher=("$PYTHON" -m torch.distributed.run); else launcher=(torchrun); fi
# RANK_LOGS=FOLDER: writes the output of each process to its own files there, without delay.
if [[ -n ${RANK_LOGS:-} ]]; then
  launcher+=(--redirects=3 --log-dir="$RANK_LOGS")
  export PYTHONUNBUFFERED=1
fi

exec "${launcher[@]}" \
  --nnodes="$NNODES" \
  --nproc-per-node="$NPROC_PER_NODE" \
  --node-rank="$NODE_RANK" \
  --master-addr="$MASTER_ADDR" \
  --master-port="$MASTER_PORT" \
  train.py \
  --epochs 3 \
  --out 'my runs/a' \
  --deepspeed --deepspeed_config "$ds_config" \
  "$@"
