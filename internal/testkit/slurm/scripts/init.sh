#!/bin/bash
# The first process of a node: it enters the new root, runs slurmd and waits for orphans. The
# node is on while this process lives, with or without slurmd.
set -eu
cd "$1"
mount -t proc proc proc
mkdir -p mnt
pivot_root . mnt
cd /
umount --lazy --no-mtab /mnt
echo on >&3
exec 3>&-
slurmd -D </dev/null &
sleep infinity >/dev/null 2>&1 &
wait
