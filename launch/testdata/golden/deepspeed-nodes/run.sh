#!/bin/bash
# The text in single quotes must stay unexpanded.
# shellcheck disable=SC2016
# train: DeepSpeed's own launcher, 8 processes in all.
# Rendered by "dsbuild launch deepspeed"; run the block of each node on that node.
#
# hostfile        the nodes and the processes that each may have ("slots").
# ds_config.json  the configuration of DeepSpeed, on all nodes. The program gets it
#                 as --deepspeed.
#   "auto"        the Trainer of Hugging Face fills this in from its arguments.
#   ZeRO stage 2  divides gradients and optimizer.

# The folder of this script.
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd) || exit 1

set -euo pipefail

# Variables of the program, on all nodes.
export MOTD='100% of $HOME'
: "${HF_TOKEN:?is not set: export it where the job is started}"
export HF_TOKEN

options=()
options+=(--hostfile "$here/hostfile")
# The master's address (default: the first one that "hostname -I" prints there).
options+=(--master_addr 192.168.1.100)
# The launcher starts only the processes of this node, and logs in nowhere.
options+=(--no_ssh --node_rank "$NODE_RANK")
# 29500 is torch's default port; a second job on that node needs another one.
options+=(--master_port "${MASTER_PORT:-29500}")
# RANK_LOGS=FOLDER: writes the output of each process to its own file there, without delay.
if [[ -n ${RANK_LOGS:-} ]]; then
  options+=(--enable_each_rank_log "$RANK_LOGS")
  export PYTHONUNBUFFERED=1
fi
# The DeepSpeed configuration, beside this script on all nodes.
ds_config=$here/ds_config.json
PYTHON=${PYTHON:-python3}
exec "$PYTHON" -m deepspeed.launcher.runner "${options[@]}" \
  train.py \
  --text 'it'\''s $HOME' '' \
  --deepspeed "$ds_config"
