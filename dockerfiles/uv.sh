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
"$python" -m venv "$1"
"$1/bin/python" -m pip -q install "uv==$UV_VERSION"
