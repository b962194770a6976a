#!/bin/sh
# Fetches the source distribution DSBUILD_DEEPSPEED names into /out.
# pip asks setup.py for metadata, which needs the torch of this environment.
set -eu
python -m pip download -q --no-deps --no-build-isolation --no-binary :all: -d /out "deepspeed==$DSBUILD_DEEPSPEED"
cd /out
sha256sum -- *.tar.gz
