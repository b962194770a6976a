#!/bin/bash
# The text in single quotes must stay unexpanded.
# shellcheck disable=SC2016
# train: one container on each node, torchrun in it; the same script everywhere.
# Rendered by "dsbuild launch docker".
#
# One node:    bash docker.sh
# Many nodes:  on each of them, with its own NODE_RANK and all else the same:
#              MASTER_ADDR=192.168.1.100 NNODES=2 NODE_RANK=0 bash docker.sh
set -euo pipefail

# The address of the first node, the same on all nodes. localhost works only for one
# node.
MASTER_ADDR=${MASTER_ADDR:-localhost}
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
NNODES=${NNODES:-1}
# Processes of this node.
NPROC_PER_NODE=${NPROC_PER_NODE:-1}

if [[ $NNODES != 1 && $MASTER_ADDR == localhost ]]; then
  echo "MASTER_ADDR is localhost: each of the $NNODES nodes would wait for itself" >&2
  exit 2
fi
if [[ ! $NNODES =~ ^[1-9][0-9]*$ || ! $NODE_RANK =~ ^[0-9]+$ ]] || ((NODE_RANK >= NNODES)); then
  echo "NODE_RANK is $NODE_RANK and NNODES is $NNODES: ranks are numbers from 0 to NNODES-1" >&2
  exit 2
fi

options=(
  # Removed at the end. The name prevents a second container of this job on the node.
  --rm --name "train-$NODE_RANK"
  # Passes signals to the program, and reaps processes that end.
  --init
  # The host's network: NCCL and gloo use random ports between all nodes, which
  # --publish cannot name.
  --network=host
  # Shared memory of the processes of a node: the host's; docker's default is 64 MB.
  --ipc=host
  # Network cards and GPUs need locked memory.
  --ulimit memlock=-1 --ulimit stack=67108864
)
# The program: from the folder in which you start this script, or from the folder CODE.
# Otherwise the image must have it.
code=${CODE-$PWD}
if [[ -n $code && ( -e $code/'dir with space/train it'\''s.py' ) ]]; then
  options+=(--mount "type=bind,\"source=$code\",\"target=$code\"" --workdir "$code")
else
  echo "note: the program is not in ${code:-the folder CODE}: the image must have it" >&2
fi
# InfiniBand, if the node has it.
if [[ -e /dev/infiniband ]]; then options+=(--device=/dev/infiniband); fi

exec docker run "${options[@]}" example.org/train:1 \
  torchrun \
  --nnodes="$NNODES" \
  --nproc-per-node="$NPROC_PER_NODE" \
  --node-rank="$NODE_RANK" --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" \
  'dir with space/train it'\''s.py' \
  --text 'a $(touch owned) `touch owned` "b" '\''c'\'' \ $HOME' \
  '--glob=*' \
  '--json={"lr": 0.1}' '; touch owned' '#' '~' 100% %h '中文' 'line
break' '' \
  "$@"
