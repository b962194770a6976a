#!/bin/sh
# Installs the wheel in /in/pack into the environment of a node, as a node
# would, and proves it there.
set -eu
uv pip install -q --no-deps --no-index /in/pack/*.whl
uv pip check -q
python /dsbuild/smoke.py "$@"
