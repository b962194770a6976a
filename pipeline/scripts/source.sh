#!/bin/sh
# Fetches the source distribution DSBUILD_DEEPSPEED names into /out: the one
# whose sha256 is DSBUILD_SHA256, whatever index it comes from. pip compares
# before it asks setup.py for metadata, which needs the torch of this environment.
set -eu
echo "deepspeed==$DSBUILD_DEEPSPEED --hash=sha256:$DSBUILD_SHA256" >/tmp/source.txt
python -m pip download -q --no-deps --no-build-isolation --no-binary :all: --require-hashes -r /tmp/source.txt -d /out
ls -l /out
