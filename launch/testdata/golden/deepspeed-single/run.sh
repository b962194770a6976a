#!/bin/bash
# train: DeepSpeed's own launcher, 8 processes in all.
# Rendered by "dsbuild launch deepspeed"; run it once, on the node.
#
# ds_config.json  the configuration of DeepSpeed, on all nodes. The program is given it
#                 as --deepspeed --deepspeed_config.
#   batch         8 = 1 at once x 1 accumulated x 8 processes; DeepSpeed
#                 refuses numbers that do not agree.
#   optimizer     AdamW, 5e-5: used where the script passes none of its own.
#   fp16          for GPUs before Ampere; the loss is scaled.
#   ZeRO stage 2  gradients and optimizer are shared out.
#   offload cpu   the optimizer in main memory; needs the operator cpu_adam.

# The folder of this script, wherever it is called from.
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd) || exit 1

set -euo pipefail

options=()
# No hostfile: else /job/hostfile is read where there is one.
options+=(--hostfile /dev/null --num_gpus 8)
# 29500 is torch's own port; a second job on that node needs another.
options+=(--master_port "${MASTER_PORT:-29500}")
# RANK_LOGS=FOLDER: what each process says goes to a file of its own there, at once.
if [[ -n ${RANK_LOGS:-} ]]; then
  options+=(--enable_each_rank_log "$RANK_LOGS")
  export PYTHONUNBUFFERED=1
fi
# The configuration of DeepSpeed, beside this script on all nodes.
ds_config=$here/ds_config.json
exec deepspeed "${options[@]}" \
  train.py \
  --epochs 3 \
  --out 'my runs/a' \
  --deepspeed --deepspeed_config "$ds_config"
