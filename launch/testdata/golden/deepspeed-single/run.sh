#!/bin/bash
# train: DeepSpeed's own launcher, 8 processes in all.
# Rendered by "dsbuild launch deepspeed"; run it once, on the node.
#
# ds_config.json  the configuration of DeepSpeed, on all nodes. The program gets it
#                 as --deepspeed --deepspeed_config.
#   batch         8 = 1 (micro batch) x 1 (accumulation) x 8 processes; DeepSpeed
#                 refuses numbers that do not match.
#   optimizer     AdamW, 5e-5: used if the script passes no optimizer.
#   fp16          for GPUs before Ampere; the loss is scaled.
#   ZeRO stage 2  divides gradients and optimizer.
#   offload cpu   the optimizer in main memory; needs the operator cpu_adam.

# The folder of this script.
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd) || exit 1

set -euo pipefail

options=()
# No hostfile: otherwise DeepSpeed would read /job/hostfile if it exists.
options+=(--hostfile /dev/null --num_gpus 8)
# 29500 is torch's default port; a second job on that node needs another one.
options+=(--master_port "${MASTER_PORT:-29500}")
# RANK_LOGS=FOLDER: writes the output of each process to its own file there, without delay.
if [[ -n ${RANK_LOGS:-} ]]; then
  options+=(--enable_each_rank_log "$RANK_LOGS")
  export PYTHONUNBUFFERED=1
fi
# The DeepSpeed configuration, beside this script on all nodes.
ds_config=$here/ds_config.json
exec deepspeed "${options[@]}" \
  train.py \
  --epochs 3 \
  --out 'my runs/a' \
  --deepspeed --deepspeed_config "$ds_config"
