#!/bin/bash
# The text in single quotes must stay unexpanded.
# shellcheck disable=SC2016
# train: DeepSpeed's own launcher, 8 processes in all.
# Rendered by "dsbuild launch deepspeed"; run it once, on a machine that reaches the nodes.
#
# hostfile        the nodes and the processes that each may have ("slots").
# .deepspeed_env  the variables that DeepSpeed exports on the nodes. The file must
#                 not have comments, empty lines or quotes. Without it DeepSpeed
#                 exports only variables that begin with NCCL, PYTHON, MV2 or UCX.
# ds_config.json  the configuration of DeepSpeed, on all nodes. The program gets it
#                 as --deepspeed --deepspeed_config.
#   batch         8 = 1 (micro batch) x 1 (accumulation) x 8 processes; DeepSpeed
#                 refuses numbers that do not match.
#   optimizer     AdamW, 5e-5: used if the script passes no optimizer.
#   bf16          needs Ampere or newer; --precision fp16 for older GPUs.
#   ZeRO stage 2  divides gradients and optimizer.

# The folder of this script.
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd) || exit 1

set -euo pipefail

# Variables of the program, on all nodes.
export MOTD='100% of "$HOME" \ `x`!'
# The file in which DeepSpeed finds variables (default: in the home and the working folder).
export DS_ENV_FILE="$here/.deepspeed_env"

# The launcher logs in on each node with pdsh and ssh, without a password, and runs
# the same interpreter in the same folder there. It needs pdsh.
command -v pdsh >/dev/null || { echo "pdsh is not installed here" >&2; exit 2; }

options=()
options+=(--hostfile "$here/hostfile")
# The master's address (default: the first one that "hostname -I" prints there).
options+=(--master_addr 192.168.1.100)
options+=(--launcher_args='-l train')
# 29500 is torch's default port; a second job on that node needs another one.
options+=(--master_port "${MASTER_PORT:-29500}")

# A shell on each node evaluates the words again, so they are quoted twice where
# necessary.
# The DeepSpeed configuration, beside this script on all nodes.
ds_config=$here/ds_config.json
if [[ $ds_config =~ [^A-Za-z0-9_@+=:,./-] ]]; then
  echo "$ds_config: pdsh passes it to the nodes without quotes; move it to a path of plain letters" >&2
  exit 2
fi
exec /opt/train/venv/bin/python -m deepspeed.launcher.runner "${options[@]}" \
  train.py \
  --text 'a \$(touch owned) \`touch owned\` "b" '\''c'\'' \\ \$HOME' ''\''--json={"lr":0.1}'\''' ''\'';touch'\''' 100%% '%%h it' ''\''中文'\''' \
  --deepspeed --deepspeed_config "$ds_config"
