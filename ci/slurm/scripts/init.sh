#!/bin/bash
# The first process of a node: it moves into the root that was made, runs
# slurmd and waits for orphans. The node is on for as long as it lives, whether
# slurmd does or not.
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
