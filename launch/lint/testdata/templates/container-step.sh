#!/bin/bash
# A step in a container, its command read from a here-document.
#SBATCH -p batch -A group -t 4:00:00 --nodes=8 --exclusive --mem=0 --overcommit
#SBATCH --ntasks-per-node=8 --dependency=singleton --job-name=group-train:gpt
DIR=$(pwd)
DATETIME=$(date +'date_%y-%m-%d_time_%H-%M-%S')
mkdir -p "$DIR/logs"
options=" \
    --use-distributed-optimizer \
    --micro-batch-size 1 \
    --save ${DIR}/checkpoints"
read -r -d '' run_cmd <<EOM
echo "*******STARTING********" && nvidia-smi \
&& cd ${DIR} \
&& python -u pretrain.py ${options}
EOM
srun -l \
     --container-image "nvcr.io/nvidia/pytorch:24.01-py3" \
     --container-mounts "/lustre:/lustre" \
     --output="${DIR}/logs/%x_%j_$DATETIME.log" sh -c "${run_cmd}"
set +x
