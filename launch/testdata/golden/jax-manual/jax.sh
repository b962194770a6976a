#!/bin/bash
# train: JAX, for one node or many; the same script on every node, beside
# dsbuild_jax.py. Rendered by "dsbuild launch jax".
#
# One node:    bash jax.sh
# Many nodes:  on each of them, with its own NODE_RANK and all else the same:
#              MASTER_ADDR=192.168.1.100 NNODES=2 NODE_RANK=0 bash jax.sh

# The folder of this script.
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd) || exit 1

set -euo pipefail

# The platform of JAX. With a name, a missing GPU is an error; without one, the program
# is only slow. JAX_PLATFORM_NAME is the old name.
export JAX_PLATFORMS="${JAX_PLATFORMS:-cpu}"

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
NNODES=${NNODES:-2}
# Processes of this node. One process uses all its GPUs, as JAX expects; several
# processes divide the GPUs.
NPROC_PER_NODE=${NPROC_PER_NODE:-2}

if [[ $NNODES != 1 && $MASTER_ADDR == localhost ]]; then
  echo "MASTER_ADDR is localhost: each of the $NNODES nodes would wait for itself" >&2
  exit 2
fi
if [[ ! $NNODES =~ ^[1-9][0-9]*$ || ! $NODE_RANK =~ ^[0-9]+$ ]] || ((NODE_RANK >= NNODES)); then
  echo "NODE_RANK is $NODE_RANK and NNODES is $NNODES: ranks are numbers from 0 to NNODES-1" >&2
  exit 2
fi
PYTHON=${PYTHON:-python3}

# The processes of this node. When one fails, the script ends the others, which would
# wait for it.
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM
for ((local_rank = 0; local_rank < NPROC_PER_NODE; local_rank++)); do
  rank=$((NODE_RANK * NPROC_PER_NODE + local_rank))
  (
    # RANK_LOGS=FOLDER: writes the output of each process to its own file there, without delay.
    if [[ -n ${RANK_LOGS:-} ]]; then
      export PYTHONUNBUFFERED=1
      exec >"$RANK_LOGS/rank$rank.log" 2>&1
    fi
    # JAX does not read RANK, WORLD_SIZE and MASTER_ADDR: the bootstrap passes them.
    # The variables help you to identify the processes.
    export RANK=$rank LOCAL_RANK=$local_rank
    exec "$PYTHON" "$here/dsbuild_jax.py" \
      --coordinator-address="$MASTER_ADDR:$MASTER_PORT" \
      --num-processes="$((NNODES * NPROC_PER_NODE))" \
      --process-id="$rank" \
      --local-rank="$local_rank" \
      -- train.py \
      --epochs 3 \
      --out 'my runs/a' \
      "$@"
  ) &
  pids[rank]=$!
done
while ((${#pids[@]} > 0)); do
  code=0
  for rank in "${!pids[@]}"; do
    if kill -0 "${pids[rank]}" 2>/dev/null; then continue; fi
    wait "${pids[rank]}" || {
      ended=$?
      echo "rank $rank ended with exit code $ended" >&2
      if ((code == 0)); then code=$ended; fi
    }
    unset "pids[rank]"
  done
  if ((code != 0)); then exit "$code"; fi
  sleep 0.2
done
