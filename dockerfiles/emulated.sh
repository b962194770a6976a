#!/bin/sh
# Puts into FOLDER what a Python of aarch64 needs for DeepSpeed's smoke test under qemu-user: in FOLDER/site torch and the
# packages of a list with hashes, in FOLDER/nvidia what stands in for NVIDIA's libraries, and files that describe a CPU.
# With QEMU_LD_PREFIX=FOLDER qemu shows programs those before this machine's: torch asks them what the CPU is, the oldest that a
# wheel is for, a Cortex-A72.
#
# usage: emulated.sh FOLDER PACKAGES PYTHON      uv and pythonPYTHON are on PATH; CC: a compiler for aarch64
set -eu
here=$(dirname "$0")
mkdir -p "$1/proc" "$1/sys/devices/system/cpu"
cp "$here/cpuinfo.txt" "$1/proc/cpuinfo"
for file in possible present online; do echo 0 >"$1/sys/devices/system/cpu/$file"; done
uv pip install --no-deps --require-hashes --only-binary :all: -r "$2" \
    --target "$1/site" --python-platform aarch64-manylinux_2_28 --python-version "$3"
# Byte code is the same on every machine, and Python takes five times as long to make it under qemu.
"python$3" -m compileall -q -j 0 "$1/site" >/dev/null 2>&1 || : # some files are no modules, whatever their names say
"python$3" "$here/nvidia_standins.py" "$1/site" "$1/nvidia"
