#!/bin/bash
# train on gpu02: node 1 of 2. Run this script on the node, next to
# docker.sh. Start all nodes in any order, within torch's timeout (600 s).

# The directory of this script.
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd) || exit 1

# shellcheck disable=SC1090,SC1091
{
module load cuda
} || { echo "setup failed" >&2; exit 1; }
set -euo pipefail
# The address of the first node, from the inventory.
export MASTER_ADDR=192.168.1.100
export MASTER_PORT=29500
export NODE_RANK=1
export NNODES=2
export NPROC_PER_NODE=4
# This node's address, as the other nodes reach it.
export NODE_ADDR=192.168.1.101
exec bash "$here/docker.sh" "$@"
