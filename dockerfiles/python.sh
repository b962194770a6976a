#!/bin/sh
# Brings the Python of version PYTHON into an image; one that the base has is
# used as it is.
set -eu
set -- ca-certificates libstdc++6
command -v "python$PYTHON" >/dev/null && "python$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ||
    set -- "$@" "python$PYTHON" "python$PYTHON-venv"
exec sh "$(dirname "$0")/install.sh" "$@"
