#!/bin/bash
# train on gpu01: node 0 of 2. Run this script on the node, next to
# torchrun.sh. Start all nodes in any order, within torch's timeout (600 s).

# The directory of this script.
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd) || exit 1

set -euo pipefail
# The address of the first node, from the inventory.
export MASTER_ADDR=192.168.1.100
export MASTER_PORT=29500
export NODE_RANK=0
export NNODES=2
export NPROC_PER_NODE=2
# This node's address, as the other nodes reach it.
export NODE_ADDR=192.168.1.100
# The Python interpreter of this node.
export PYTHON=/opt/train/venv/bin/python
export GLOO_SOCKET_IFNAME=eth0
exec bash "$here/torchrun.sh" "$@"
