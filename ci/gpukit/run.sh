#!/bin/sh
# Compares every op of the wheel in this folder with torch, on this machine's GPU, and writes result.json.
# usage: ./run.sh [RESULT]
# PYTHON is a Python with torch and numpy (default: python3). Needs neither a network nor root; changes nothing else.
exec "${PYTHON:-python3}" -B "$(dirname "$0")/run.py" "$@"
