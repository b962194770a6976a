#!/bin/bash
# What stands in single quotes is meant as it stands there.
# shellcheck disable=SC2016
# train: DeepSpeed's own launcher, 8 processes in all.
# Rendered by "dsbuild launch deepspeed"; run it once, on a machine that reaches the nodes.
#
# hostfile        the nodes and the processes that each may have ("slots").
# .deepspeed_env  what is exported on the nodes. DeepSpeed knows no comments, empty
#                 lines or quotes in it. It passes on by itself only what begins
#                 with NCCL, PYTHON, MV2 or UCX.
# ds_config.json  the configuration of DeepSpeed, on all nodes. The program is given it
#                 as --deepspeed --deepspeed_config.
#   batch         8 = 1 at once x 1 accumulated x 8 processes; DeepSpeed
#                 refuses numbers that do not agree.
#   optimizer     AdamW, 5e-5: used where the script passes none of its own.
#   bf16          needs Ampere or newer; --precision fp16 for older GPUs.
#   ZeRO stage 2  gradients and optimizer are shared out.

# The folder of this script, wherever it is called from.
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd) || exit 1

set -euo pipefail

# Variables of the program, on all nodes.
export MOTD='100% of "$HOME" \ `x`!'
# Where DeepSpeed looks for variables; else in the home and the working folder.
export DS_ENV_FILE="$here/.deepspeed_env"

# The launcher logs in on each node by pdsh and ssh, without a password, and runs
# the same interpreter in the same folder there. Without pdsh it would stop.
command -v pdsh >/dev/null || { echo "pdsh is not installed here" >&2; exit 2; }

options=()
options+=(--hostfile "$here/hostfile")
# Where all meet: without it the first address that "hostname -I" prints there.
options+=(--master_addr 192.168.1.100)
options+=(--launcher_args='-l train')
# 29500 is torch's own port; a second job on that node needs another.
options+=(--master_port "${MASTER_PORT:-29500}")

# A shell on each node reads the words once more; those that need it are quoted
# for that.
# The configuration of DeepSpeed, beside this script on all nodes.
ds_config=$here/ds_config.json
if [[ $ds_config =~ [^A-Za-z0-9_@+=:,./-] ]]; then
  echo "$ds_config: pdsh passes it to the nodes without quotes; move it to a path of plain letters" >&2
  exit 2
fi
exec /opt/train/venv/bin/python -m deepspeed.launcher.runner "${options[@]}" \
  train.py \
  --text 'a \$(touch owned) \`touch owned\` "b" '\''c'\'' \\ \$HOME' ''\''--json={"lr":0.1}'\''' ''\'';touch'\''' 100%% '%%h it' ''\''中文'\''' \
  --deepspeed --deepspeed_config "$ds_config"
