#!/bin/sh
# Installs uv, which makes the environments, into an environment of its own.
#
# usage: uv.sh DIR      PYTHON: X.Y or the path of an interpreter
set -eu
here=$(dirname "$0")
. "$here/site.sh"
case $PYTHON in
*/*) python=$PYTHON ;;
*) python=python$PYTHON ;;
esac
if "$python" -c 'import ensurepip' 2>/dev/null && "$python" -m venv "$1"; then
    "$1/bin/python" -m pip -q install --require-hashes -r "$here/uv.txt"
else
    # A Python without ensurepip may have a pip that installs from outside.
    "$python" -m venv --without-pip --clear "$1"
    "$python" -m pip -q --python "$1/bin/python" install --require-hashes -r "$here/uv.txt"
fi
