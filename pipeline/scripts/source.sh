#!/bin/sh
# Fetches the source distribution DSBUILD_DEEPSPEED names: the one whose sha256
# is DSBUILD_SHA256, whatever index it comes from. pip compares before it asks
# setup.py for metadata, which needs the torch of this environment.
set -eu
. "$DSBUILD_TOOLS/site.sh"
# Its setup.py imports DeepSpeed. Releases from 0.16.4 to 0.17.4 would then ask the GPU whether
# Triton works, if there were Triton.
mkdir "$DSBUILD_WORK/without"
echo 'raise ImportError' >"$DSBUILD_WORK/without/triton.py"
export PYTHONPATH="$DSBUILD_WORK/without"
list=$DSBUILD_WORK/source.txt
echo "deepspeed==$DSBUILD_DEEPSPEED --hash=sha256:$DSBUILD_SHA256" >"$list"
python -m pip download -q --no-deps --no-build-isolation --no-binary :all: --require-hashes -r "$list" -d "$DSBUILD_OUT"
ls -l "$DSBUILD_OUT"
