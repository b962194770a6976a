#!/bin/sh
# Builds companions of DeepSpeed in its environment, with its torch and its
# compilers. Arguments as for wheels.py: NAME for sources in the companions step,
# NAME==VERSION for what the index has.
set -eu
. "$DSBUILD_TOOLS/site.sh"
umask 022
# As in compile.sh: the wrappers see to the CPU and to paths.
DSBUILD_SRC=$DSBUILD_WORK/src
DSBUILD_CC=$(command -v "gcc${DSBUILD_GCC:+-$DSBUILD_GCC}")
DSBUILD_CXX=$(command -v "g++${DSBUILD_GCC:+-$DSBUILD_GCC}")
DSBUILD_CCACHE=$(command -v ccache || true)
mkdir -p "$DSBUILD_WORK/bin"
for name in gcc g++ cc c++; do install -m 755 "$DSBUILD_TOOLS/cxx" "$DSBUILD_WORK/bin/$name"; done
install -m 755 "$DSBUILD_TOOLS/nvcc" "$DSBUILD_WORK/bin/nvcc"
PATH=$DSBUILD_WORK/bin:$PATH
CC=gcc CXX=g++ PYTORCH_NVCC=nvcc
CCACHE_BASEDIR=$DSBUILD_SRC
export DSBUILD_SRC DSBUILD_CC DSBUILD_CXX DSBUILD_CCACHE PATH CC CXX PYTORCH_NVCC CCACHE_BASEDIR
python "$DSBUILD_TOOLS/wheels.py" with "$@"
ls -l "$DSBUILD_OUT"
