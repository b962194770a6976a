#!/bin/sh
# Fetches the source distribution DSBUILD_DEEPSPEED names: the one whose sha256
# is DSBUILD_SHA256, whatever index it comes from. pip compares before it asks
# setup.py for metadata, which needs the torch of this environment.
set -eu
. "$DSBUILD_TOOLS/site.sh"
list=$DSBUILD_WORK/source.txt
echo "deepspeed==$DSBUILD_DEEPSPEED --hash=sha256:$DSBUILD_SHA256" >"$list"
python -m pip download -q --no-deps --no-build-isolation --no-binary :all: --require-hashes -r "$list" -d "$DSBUILD_OUT"
ls -l "$DSBUILD_OUT"
