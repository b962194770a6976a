#!/bin/sh
# Makes a root file system of Debian 12 for aarch64 with Python in FOLDER/root, torch and what else DeepSpeed needs in FOLDER/site, and
# what stands in for NVIDIA's libraries in FOLDER/nvidia. What is there already stays.
#
# usage: root.sh FOLDER PACKAGES DOCKERFILES      UV: uv; CC: a compiler for aarch64
set -eu
cd "$1"
if [ ! -d root ]; then
    rm -rf root.part
    mmdebstrap --quiet --architectures=arm64 --variant=extract --include=python3,libstdc++6,libgomp1 bookworm root.part
    # qemu shows these to torch before this machine's.
    mkdir -p root.part/proc root.part/sys/devices/system/cpu
    cp "$3/cpuinfo.txt" root.part/proc/cpuinfo
    for file in possible present online; do echo 0 >"root.part/sys/devices/system/cpu/$file"; done
    mv root.part root
fi
if [ ! -d site ]; then
    rm -rf site.part
    "$UV" pip install -q --no-deps --require-hashes --only-binary :all: -r "$2" \
        --target site.part --python-platform aarch64-manylinux_2_28 --python-version 3.11
    # Byte code is the same on every machine, and Python takes five times as long to make it under qemu.
    python3.11 -m compileall -q -j 2 site.part >/dev/null 2>&1 || :
    mv site.part site
fi
[ -d nvidia ] || python3 "$3/nvidia_standins.py" site nvidia
