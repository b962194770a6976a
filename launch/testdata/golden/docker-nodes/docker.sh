#!/bin/bash
# train: one container on each node, torchrun in it; the same script everywhere.
# Rendered by "dsbuild launch docker".
#
# One node:    bash docker.sh
# Many nodes:  on each of them, with its own NODE_RANK and all else the same:
#              MASTER_ADDR=192.168.1.100 NNODES=2 NODE_RANK=0 bash docker.sh
set -euo pipefail

# The address of the first node, the same on all nodes. localhost serves for one
# node only.
MASTER_ADDR=${MASTER_ADDR:-192.168.1.100}
# A port of the first node that is free; 29500 is torch's own default. Two jobs
# on a node need two. An open MASTER_PORT is not enough for a firewall: NCCL and
# gloo open further ports, which change, between all nodes.
MASTER_PORT=${MASTER_PORT:-29500}
# Which node this is: 0 for the first.
NODE_RANK=${NODE_RANK:-0}
# The number of nodes. WORLD_SIZE is the number of processes for every framework;
# scripts that meant nodes by it are understood where NNODES is not set.
if [[ -z ${NNODES:-} && -n ${WORLD_SIZE:-} ]]; then
  echo "warning: WORLD_SIZE=$WORLD_SIZE is taken for the number of nodes; set NNODES instead" >&2
  NNODES=$WORLD_SIZE
fi
unset WORLD_SIZE
NNODES=${NNODES:-2}
# Processes of this node, one for each GPU.
NPROC_PER_NODE=${NPROC_PER_NODE:-4}
# The name of the rendezvous: two running jobs must not have the same.
RDZV_ID=${RDZV_ID:-train}

if [[ $NNODES != 1 && $MASTER_ADDR == localhost ]]; then
  echo "MASTER_ADDR is localhost: each of the $NNODES nodes would wait for itself" >&2
  exit 2
fi

options=(
  # Gone when it ends; the name keeps a second one of this job off this node.
  --rm --name "train-$NODE_RANK"
  # Signals reach the program, and processes that end are not kept.
  --init
  # The node's own network: NCCL and gloo open ports between all nodes that no
  # --publish could name.
  --network=host
  # Memory that the processes of a node share; docker would give 64 MB.
  --shm-size=16g
  # Memory that network cards and GPUs write to stays in place.
  --ulimit memlock=-1 --ulimit stack=67108864
  # GPUs, by NVIDIA's container toolkit.
  --gpus "$NPROC_PER_NODE"
  # Of the nodes that have it.
  --env GLOO_SOCKET_IFNAME
)
# The program: that of the folder that this is started in, where it is there; CODE is
# another folder. Otherwise the image must have it.
code=${CODE-$PWD}
if [[ -n $code && ( -e $code/train.py ) ]]; then
  options+=(--mount "type=bind,\"source=$code\",\"target=$code\"" --workdir "$code")
else
  echo "note: the program is not in ${code:-the folder CODE}: the image must have it" >&2
fi
# InfiniBand, where the node has it.
if [[ -e /dev/infiniband ]]; then options+=(--device=/dev/infiniband); fi
# The address that this node tells the others; its own name where it is not said.
local_addr=()
if [[ -n ${NODE_ADDR:-} ]]; then local_addr=(--local-addr="$NODE_ADDR"); fi

exec docker run "${options[@]}" example.org/train:1 \
  torchrun \
  --nnodes="$NNODES" \
  --nproc-per-node="$NPROC_PER_NODE" \
  --rdzv-backend=c10d --rdzv-id="$RDZV_ID" --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" \
  "${local_addr[@]}" \
  train.py \
  --epochs 3 \
  --out 'my runs/a' \
  "$@"
