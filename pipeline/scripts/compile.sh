#!/bin/sh
# Compiles the source distribution in /in/source into one wheel in /out.
# Always from a clean copy at one place: a used tree keeps an old build.txt,
# and paths would end up in the bytes.
set -eu
rm -rf "$DSBUILD_SRC"
mkdir -p "$DSBUILD_SRC" /tmp/bin
tar -xzf /in/source/*.tar.gz -C "$DSBUILD_SRC" --strip-components=1
for name in gcc g++ cc c++; do install -m 755 /dsbuild/cxx "/tmp/bin/$name"; done
install -m 755 /dsbuild/nvcc /tmp/bin/nvcc
PATH=/tmp/bin:$PATH PYTORCH_NVCC=/tmp/bin/nvcc
export PATH PYTORCH_NVCC
cd "$DSBUILD_SRC"
ccache --zero-stats >/dev/null
python setup.py bdist_wheel
ccache --show-stats | sed -n '/[Hh]its\|[Mm]isses/p'
cp dist/*.whl /out/
