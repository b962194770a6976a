#!/bin/sh
# Installs into the environment DSBUILD_ENV what ops need of Python packages on a
# node: REQUIRES, NAME==VERSION joined by spaces, without their own requirements.
set -eu
here=$(dirname "$0")
. "$here/site.sh"
[ -n "$REQUIRES" ] || exit 0
uv pip install --python "$DSBUILD_ENV" --no-deps --require-hashes --only-binary :all: -c "$here/packages-build.txt" $REQUIRES
