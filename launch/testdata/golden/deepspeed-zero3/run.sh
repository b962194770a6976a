#!/bin/bash
# train: DeepSpeed's own launcher, 6 processes in all.
# Rendered by "dsbuild launch deepspeed"; run it once, on a machine that reaches the nodes.
#
# hostfile        the nodes and the processes that each may have ("slots").
# ds_config.json  the configuration of DeepSpeed, on all nodes. The program gets it
#                 as --deepspeed --deepspeed_config.
#   batch         96 = 4 (micro batch) x 4 (accumulation) x 6 processes; DeepSpeed
#                 refuses numbers that do not match.
#   optimizer     AdamW, 5e-5: used if the script passes no optimizer.
#   bf16          needs Ampere or newer; --precision fp16 for older GPUs.
#   ZeRO stage 3  divides parameters, gradients and optimizer.
#   offload nvme  optimizer and parameters on disk; needs async_io and cpu_adam
#                 (not utils), and a local disk on each node.

# The folder of this script.
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd) || exit 1

set -euo pipefail

# The launcher logs in on each node with pdsh and ssh, without a password, and runs
# the same interpreter in the same folder there. It needs pdsh.
command -v pdsh >/dev/null || { echo "pdsh is not installed here" >&2; exit 2; }

options=()
options+=(--hostfile "$here/hostfile")
options+=(--exclude '192.168.1.101:2,3')
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
  --epochs 3 \
  --out 'my runs/a' \
  --deepspeed --deepspeed_config "$ds_config"
