#!/bin/sh
# Installs the packed wheel into the environment of a node, as a node would, and
# proves it there.
set -eu
if [ -n "${DSBUILD_CROSS-}" ]; then
    there=/opt/$DSBUILD_CROSS
    if ! why=$("$there/python3" -c "" 2>&1); then
        why="qemu-user does not run a program of $DSBUILD_CROSS on this machine: $(printf '%s' "$why" | tail -n 1)"
        echo "not run: $why"
        printf '%s' "$why" >"$DSBUILD_OUT/not-run"
        exit
    fi
    export PYTHONPATH="$DSBUILD_WORK/site"
    uv pip install -q --target "$PYTHONPATH" --python-platform "$DSBUILD_CROSS-manylinux_2_28" --no-deps --no-index "$DSBUILD_IN"/pack/*.whl
    python "$DSBUILD_TOOLS/bytecode.py" place
    "$there/python3" "$DSBUILD_TOOLS/smoke.py" "$@" </dev/null
    exec python "$DSBUILD_TOOLS/bytecode.py" compare
fi
# torch is imported meanwhile; the end of the fifo says that all is installed.
mkfifo "$DSBUILD_WORK/installed"
python "$DSBUILD_TOOLS/smoke.py" "$@" <"$DSBUILD_WORK/installed" &
proof=$!
trap 'kill $proof 2>/dev/null || :' EXIT
exec 3>"$DSBUILD_WORK/installed"
uv pip install -q --python "$DSBUILD_ENV" --no-deps --no-index "$DSBUILD_IN"/pack/*.whl
# deepspeed-kernels is published for any Python (py3-none-manylinux1), but the WHEEL
# file in it says cp38-cp38-linux: what uv finds there is no fault of this wheel. The package
# also requires cmake, which only its own build runs; ops.sh leaves cmake out.
check() {
    uv pip check --python "$DSBUILD_ENV" 2>&1 | sed \
        -e '/^Using Python /d' -e '/^Checked [0-9]* package/d' -e '/^Found [0-9]* incompatibilit/d' \
        -e '/^All installed packages are compatible$/d' \
        -e '/^The package `deepspeed-kernels` was built for a different platform$/d' \
        -e '/^The package `deepspeed-kernels` requires `cmake[^`]*`, but /d'
}
python "$DSBUILD_TOOLS/bytecode.py" compare 3>&- &
comparison=$!
python "$DSBUILD_TOOLS/bytecode.py" place 3>&- &
placing=$!
# uv does not see what lies in an environment beside this one.
wrong=$([ -n "${DSBUILD_BESIDE-}" ] || check)
if [ -n "$wrong" ]; then
    echo "$wrong" >&2
    exit 1
fi
wait $placing
exec 3>&-
status=0
wait $comparison || status=$?
wait $proof || status=$?
exit $status
