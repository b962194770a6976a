#!/bin/sh
# Installs uv, which makes the environments, into an environment of its own.
#
# usage: uv.sh DIR      PYTHON: X.Y or the path of an interpreter; UV_VERSION
set -eu
. "$(dirname "$0")/site.sh"
case $PYTHON in
*/*) python=$PYTHON ;;
*) python=python$PYTHON ;;
esac
if "$python" -c 'import ensurepip' 2>/dev/null && "$python" -m venv "$1"; then
    "$1/bin/python" -m pip -q install "uv==$UV_VERSION"
else
    # A Python without ensurepip may have a pip that installs from outside.
    "$python" -m venv --without-pip --clear "$1"
    "$python" -m pip -q --python "$1/bin/python" install "uv==$UV_VERSION"
fi
