#!/bin/bash
# Options read in a loop.
NNODES=1
while [[ $# -gt 0 ]]; do
    case $1 in
        --nnodes) NNODES=$2; shift 2 ;;
        --port) PORT=$2; shift 2 ;;
        *) break ;;
    esac
done
if [ "$NNODES" -gt 1 ]; then
    RENDEZVOUS=(--rdzv-backend=c10d "--rdzv-id=$RUN_ID" "--rdzv-endpoint=$MASTER_ADDR:$PORT")
else
    RENDEZVOUS=(--standalone)
fi
torchrun --nnodes="$NNODES" --nproc-per-node=8 "${RENDEZVOUS[@]}" train.py "$@"
