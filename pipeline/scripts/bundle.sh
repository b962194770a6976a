#!/bin/sh
# Gathers what the wheel of the pack step, and those of the with step, require
# beside torch, as wheels for this Python.
set -eu
. "$DSBUILD_TOOLS/site.sh"
umask 022
python "$DSBUILD_TOOLS/wheels.py" bundle
ls -l "$DSBUILD_OUT"
