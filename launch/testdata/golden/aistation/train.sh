#!/bin/bash
# task-medical-qwen: 2 nodes, 1 GPU on each, on AIStation or a platform like it.
# Rendered by "dsbuild launch aistation". Put it into a folder that all containers
# share. Command for the form: bash path/to/train.sh
#
# A node is a container here: the master and each worker is a node, even if two
# run on one server.

set -euo pipefail

# The platform sets these in every container of a Master/Worker job.
: "${MASTER_ADDR:?is not set: choose Master/Worker as the kind of deployment}"
: "${MASTER_PORT:?is not set: choose Master/Worker as the kind of deployment}"

# The form's environment variables set these. They count master and workers. For a
# fixed number (MIN = MAX), set only NNODES.
MIN_NNODES=${MIN_NNODES:-${NNODES:-2}}
MAX_NNODES=${MAX_NNODES:-${NNODES:-2}}
# Processes of a container: one for each GPU that the form gives each node.
NPROC_PER_NODE=${NPROC_PER_NODE:-1}
# The name of the rendezvous. Two running jobs with the same name would mix their
# nodes and gradients.
RDZV_ID=${RDZV_ID:-task-medical-qwen}
if ((MIN_NNODES > MAX_NNODES)); then
  echo "MIN_NNODES is $MIN_NNODES and MAX_NNODES is $MAX_NNODES" >&2
  exit 2
fi
# When a node is lost, the others restart from the last checkpoint. This is the
# maximum number of restarts. With 0, torch's default, the others end.
if ((MIN_NNODES < MAX_NNODES)); then restarts=3; else restarts=0; fi
MAX_RESTARTS=${MAX_RESTARTS:-$restarts}
# The platform gives each container a rank, but with c10d torch assigns its own.
# The platform's RANK and WORLD_SIZE count containers, torch's count processes.
unset RANK WORLD_SIZE
# The address that this container sends to the others: the one from which it
# reaches the master. torch would send its name, which often resolves nowhere else.
for ((tries = 30; tries > 0; tries--)); do
  if [[ -n ${NODE_ADDR:-} ]]; then break; fi
  NODE_ADDR=$(python3 -c '
import socket, sys
family, kind, _, _, to = socket.getaddrinfo(sys.argv[1], int(sys.argv[2]), type=socket.SOCK_DGRAM)[0]
with socket.socket(family, kind) as s:
    s.connect(to)  # of datagrams: nothing is sent
    print(s.getsockname()[0])
' "$MASTER_ADDR" "$MASTER_PORT" 2>/dev/null) || sleep 2 # the name may come a little later
done
: "${NODE_ADDR:?is not known: $MASTER_ADDR does not resolve; set it to the address of this container}"

exec torchrun \
  --nnodes="$MIN_NNODES:$MAX_NNODES" \
  --nproc-per-node="$NPROC_PER_NODE" \
  --rdzv-backend=c10d \
  --rdzv-id="$RDZV_ID" \
  --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" \
  --local-addr="$NODE_ADDR" \
  --max-restarts="$MAX_RESTARTS" \
  main.py \
  "$@"
