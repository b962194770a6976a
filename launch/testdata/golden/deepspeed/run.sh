#!/bin/bash
# translation: DeepSpeed's own launcher, 8 processes in all.
# Rendered by "dsbuild launch deepspeed"; run it once, on a machine that reaches the nodes.
#
# hostfile        the nodes and the processes that each may have ("slots").
# .deepspeed_env  the variables that DeepSpeed exports on the nodes. The file must
#                 not have comments, empty lines or quotes. Without it DeepSpeed
#                 exports only variables that begin with NCCL, PYTHON, MV2 or UCX.
# ds_config.json  the configuration of DeepSpeed, on all nodes. The program's own arguments name it.
#   "auto"        the Trainer of Hugging Face fills this in from its arguments.
#   ZeRO stage 2  divides gradients and optimizer.

# The folder of this script.
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd) || exit 1

set -euo pipefail

# Variables of the program, on all nodes.
export TOKENIZERS_PARALLELISM=false
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
exec /opt/train/venv/bin/python -m deepspeed.launcher.runner "${options[@]}" \
  examples/pytorch/translation/run_translation.py \
  --deepspeed ds_config.json \
  --model_name_or_path t5-large \
  --per_device_train_batch_size 4 \
  --output_dir output_dir \
  --do_train \
  --do_eval \
  --max_train_samples 500 \
  --num_train_epochs 1 \
  --dataset_name wmt16 \
  --dataset_config_name ro-en \
  --source_lang en \
  --target_lang ro
