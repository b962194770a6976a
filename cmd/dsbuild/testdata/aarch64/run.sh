#!/bin/sh
# Runs a command of the root file system of root.sh, with its children, by qemu-user. The kernel (6.7 or newer) has a table of program
# formats for each user namespace, so nothing of this machine changes.
#
# usage: run.sh FOLDER COMMAND...      RUN_FOLDERS: folders, joined by colons, to show at the same place; RUN_ENV: NAME=VALUE...
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
RUN_ROOT=$(cd "$1/root" && pwd -P)
RUN_CPU=$here/cpuinfo
export RUN_ROOT RUN_CPU
shift
exec unshare --user --map-root-user --mount --pid --fork --kill-child sh -eu -c '
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
# ELF of 64 bits, little endian, EM_AARCH64; F: the interpreter is opened now, and not in the root.
printf "%s" ":aarch64:M::\\x7fELF\\x02\\x01\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x02\\x00\\xb7\\x00:\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\x00\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xfe\\xff\\xff\\xff:/usr/bin/qemu-aarch64-static:F" >/proc/sys/fs/binfmt_misc/register
IFS=:
for folder in /dev /proc ${RUN_FOLDERS-}; do
    mkdir -p "$RUN_ROOT$folder"
    mount --rbind "$folder" "$RUN_ROOT$folder"
done
unset IFS
# qemu 7.2 shows the /proc/cpuinfo of this machine, in which torch does not find an Arm CPU.
mount --bind "$RUN_CPU" "$RUN_ROOT/proc/cpuinfo"
chroot "$RUN_ROOT" /usr/bin/env -i HOME=/root LC_ALL=C.UTF-8 PATH=/usr/bin:/bin QEMU_CPU=max ${RUN_ENV-} "$@"
' sh "$@"
