#!/bin/sh
# Runs a command in a root file system of root.sh, as a machine of aarch64 would: qemu-user runs it and each program that it starts.
# The kernel (6.7 and newer) has a table of the formats of programs for each user namespace, so nothing of this machine changes.
#
# usage: machine.sh ROOT FOLDER COMMAND...     FOLDER, below TMPDIR, is the same on both machines; the command starts there
set -eu
export ROOT="$1" FOLDER="$2" QEMU="$(command -v qemu-aarch64-static)" QEMU_CPU=cortex-a72
shift 2
# Without a namespace of processes: as the first process of one, qemu hangs where a signal should end it.
exec unshare --user --map-root-user --mount sh -c '
set -eu
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
# ELF of 64 bits, little endian, for machine 0xb7. F: the kernel opens qemu here, and not in the root.
printf "%s" ":aarch64:M::\\x7fELF\\x02\\x01\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x02\\x00\\xb7\\x00:\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\x00\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xfe\\xff\\xff\\xff:$QEMU:F" >/proc/sys/fs/binfmt_misc/register
mkdir -p "$ROOT${TMPDIR:-/tmp}"
mount -t tmpfs tmpfs "$ROOT${TMPDIR:-/tmp}"
mkdir -p "$ROOT$FOLDER"
mount --bind "$FOLDER" "$ROOT$FOLDER"
# Of this machine torch would read another CPU in /proc/cpuinfo, and end while it reads /sys: the root has files of its own.
cp "$ROOT/proc/cpuinfo" "$ROOT${TMPDIR:-/tmp}/cpuinfo"
for folder in /dev /proc; do mount --rbind "$folder" "$ROOT$folder"; done
mount --bind "$ROOT${TMPDIR:-/tmp}/cpuinfo" "$ROOT/proc/cpuinfo"
exec chroot "$ROOT" /usr/bin/env -C "$FOLDER" -u TMPDIR PATH=/usr/local/bin:/usr/bin:/bin "$@"
' sh "$@"
