# Sourced by test.sh and full.sh. prepare makes the engine and the default wheel of this checkout in .test, where tests
# wait for them (internal/testkit/built).
export DSBUILD_TEST_DIR=$PWD/.test
rm -rf .test && mkdir .test
exec 3>&2

prepare() {
  part engine ensure_engine
  part wheel build_wheel
}

# check_prepared prints the end of the log and fails if prepare failed.
check_prepared() {
  if [[ $(<.test/wheel.status) != 0 ]]; then
    echo "no wheel; the end of .test/wheel.log:"
    tail -n 30 .test/wheel.log
    return 1
  fi >&2
}

# part NAME COMMAND: COMMAND's output goes to .test/NAME.log, and its exit status then to .test/NAME.status.
part() {
  local status=0
  "$2" >".test/$1.log" 2>&1 || status=$?
  echo $status >.test/status
  mv .test/status ".test/$1.status" # atomic: a test reads it
}

# Without an engine this machine builds the wheel, unless CI is true.
ensure_engine() {
  local status=0
  bin/ci/engine ensure >.test/engine || status=$?
  if [[ $status = 3 && ${CI:-} != true ]]; then
    echo "==> building on this machine: $(<.test/engine). Tests that need a container engine do not run" | tee /dev/fd/3
    echo "no container engine" >.test/engine
    builder=(--builder host --python 3.11)
    return
  fi
  cat .test/engine
  return $status
}

builder=()
build_wheel() {
  if [[ $(<.test/engine.status) != 0 ]]; then
    echo "no container engine:"
    cat .test/engine.log
    return 1
  fi
  bin/dsbuild wheel --no-cache --json "${builder[@]}" -o .test/dist >.test/wheel.json
}
