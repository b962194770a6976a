#!/bin/sh
# Installs the packed wheel into the environment of a node, as a node would, and
# proves it there.
set -eu
uv pip install -q --python "$DSBUILD_ENV" --no-deps --no-index "$DSBUILD_IN"/pack/*.whl
# uv does not see what lies in an environment beside this one.
[ -n "${DSBUILD_BESIDE-}" ] || uv pip check -q --python "$DSBUILD_ENV"
python "$DSBUILD_TOOLS/smoke.py" "$@"
