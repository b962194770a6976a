#!/bin/bash
# What stands in single quotes is meant as it stands there.
# shellcheck disable=SC2016
# train: DeepSpeed's own launcher, 8 processes in all.
# Rendered by "dsbuild launch deepspeed"; run on every node, by its block.
#
# hostfile        the nodes and the processes that each may have ("slots").
# ds_config.json  the configuration of DeepSpeed, on all nodes. The program is given it
#                 as --deepspeed.
#   "auto"        filled in by the Trainer of Hugging Face from its arguments.
#   ZeRO stage 2  gradients and optimizer are shared out.

# The folder of this script, wherever it is called from.
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd) || exit 1

set -euo pipefail

# Variables of the program, on all nodes.
export MOTD='100% of $HOME'
: "${HF_TOKEN:?is not set: export it where the job is started}"
export HF_TOKEN

options=()
options+=(--hostfile "$here/hostfile")
# Where all meet: without it the first address that "hostname -I" prints there.
options+=(--master_addr 192.168.1.100)
# The launcher starts the processes of this node alone, and logs in nowhere.
options+=(--no_ssh --node_rank "$NODE_RANK")
# 29500 is torch's own port; a second job on that node needs another.
options+=(--master_port "${MASTER_PORT:-29500}")
# RANK_LOGS=FOLDER: what each process says goes to a file of its own there, at once.
if [[ -n ${RANK_LOGS:-} ]]; then
  options+=(--enable_each_rank_log "$RANK_LOGS")
  export PYTHONUNBUFFERED=1
fi
# The configuration of DeepSpeed, beside this script on all nodes.
ds_config=$here/ds_config.json
PYTHON=${PYTHON:-python3}
exec "$PYTHON" -m deepspeed.launcher.runner "${options[@]}" \
  train.py \
  --text 'it'\''s $HOME' '' \
  --deepspeed "$ds_config"
