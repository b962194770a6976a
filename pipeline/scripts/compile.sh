#!/bin/sh
# Compiles the source distribution of the source step into one wheel.
# Always from a clean copy at one place: a used tree keeps an old build.txt,
# and paths would end up in the bytes.
set -eu
DSBUILD_SRC=$DSBUILD_WORK/src
rm -rf "$DSBUILD_SRC"
mkdir -p "$DSBUILD_SRC" "$DSBUILD_WORK/bin"
tar -xzf "$DSBUILD_IN"/source/*.tar.gz -C "$DSBUILD_SRC" --strip-components=1

DSBUILD_CC=$(command -v "gcc${DSBUILD_GCC:+-$DSBUILD_GCC}")
DSBUILD_CXX=$(command -v "g++${DSBUILD_GCC:+-$DSBUILD_GCC}")
DSBUILD_CCACHE=$(command -v ccache || true)
for name in gcc g++ cc c++; do install -m 755 "$DSBUILD_TOOLS/cxx" "$DSBUILD_WORK/bin/$name"; done
install -m 755 "$DSBUILD_TOOLS/nvcc" "$DSBUILD_WORK/bin/nvcc"
PATH=$DSBUILD_WORK/bin:$PATH
# torch hands CC on to nvcc, which would look for one by itself.
CC=$DSBUILD_WORK/bin/gcc CXX=$DSBUILD_WORK/bin/g++ PYTORCH_NVCC=$DSBUILD_WORK/bin/nvcc
CCACHE_BASEDIR=$DSBUILD_SRC
export DSBUILD_SRC DSBUILD_CC DSBUILD_CXX DSBUILD_CCACHE PATH CC CXX PYTORCH_NVCC CCACHE_BASEDIR

cd "$DSBUILD_SRC"
[ -z "$DSBUILD_CCACHE" ] || "$DSBUILD_CCACHE" --zero-stats >/dev/null
python setup.py bdist_wheel
[ -z "$DSBUILD_CCACHE" ] || "$DSBUILD_CCACHE" --show-stats | sed -n '/[Hh]its\|[Mm]isses/p'
cp dist/*.whl "$DSBUILD_OUT/"
