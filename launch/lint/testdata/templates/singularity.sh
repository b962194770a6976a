#!/bin/bash
# The launcher in a container, options by a function.
#SBATCH -N 2
#SBATCH --ntasks-per-node 1
#SBATCH --gres gpu:4
set -o errexit -o pipefail
module load singularity
die() { echo "$1" >&2; exit 1; }
main() {
    local image=$1
    [ -f "$image" ] || die "no image $image"
    local master
    master=$(scontrol show hostname "$SLURM_NODELIST" | head -1)
    srun singularity exec --nv --bind "$PWD:/work" "$image" \
        python -m torch.distributed.run --nproc-per-node=4 --nnodes="$SLURM_NNODES" \
        --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$master:$((10000 + SLURM_JOB_ID % 20000))" \
        /work/train.py
}
main train.sif
