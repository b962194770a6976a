#!/bin/sh
# Makes a root file system of Debian 12 for aarch64 in FOLDER/root, with Python and, in FOLDER/site, with torch and what else
# DeepSpeed needs; FOLDER/stubs has what stands in for NVIDIA's libraries (stubs.py). What is there already stays.
#
# usage: root.sh FOLDER TORCH      uv is on PATH
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
cd "$1"
if [ ! -d root ]; then
    rm -rf root.part
    mmdebstrap --quiet --architectures=arm64 --variant=extract \
        --include=python3,libpython3.11,libstdc++6,libgomp1,libgcc-s1,coreutils,dash,libc-bin bookworm root.part
    # torch reads these; that of this machine makes it crash under qemu-user.
    mkdir -p root.part/sys/devices/system/cpu root.part/dev root.part/proc root.part/tmp
    for file in possible present online; do echo 0-1 >"root.part/sys/devices/system/cpu/$file"; done
    mv root.part root
fi
if [ ! -d site ]; then
    rm -rf site.part
    uv pip install -q --target site.part --python-platform aarch64-manylinux_2_28 --python-version 3.11 --only-binary :all: --no-deps \
        "torch==$2" nvidia-cuda-runtime numpy msgpack psutil pydantic==2.12.5 pydantic-core==2.41.5 annotated-types typing-inspection \
        typing-extensions hjson einops packaging py-cpuinfo tqdm nvidia-ml-py ninja sympy networkx jinja2 markupsafe fsspec filelock mpmath setuptools==80.9.0
    # Byte code is the same on every machine, and Python takes five times as long to make it under qemu-user.
    python3 -m compileall -q -j 2 site.part >/dev/null 2>&1 || :
    mv site.part site
fi
[ -d stubs ] || python3 "$here/stubs.py" site stubs
