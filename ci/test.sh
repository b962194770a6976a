#!/bin/bash
# make test PART=remote: the tests of both modules, or of one part, against an engine and the default wheel of this checkout. The
# engine and the wheel are made while tests run that need neither; a part without tests that need them makes none.
set -euo pipefail
cores=$(getconf _NPROCESSORS_ONLN)

# packages PART: every package is in exactly one part.
packages() {
  case $1 in
  fleet) go list ./fleet/... ./cmd/... ;;
  remote) go list ./internal/remote/... ./internal/slurm/... ./internal/testkit/slurm/... ./launch/... ;;
  rest) comm -23 <(go list ./... | sort) <({ packages fleet && packages remote; } | sort) ;;
  all) go list ./... ;;
  *)
    echo "unknown PART=$1: want fleet, remote or rest" >&2
    return 2
    ;;
  esac
}

part=${1:-all}
list=$(packages "$part")
. ci/built.sh

# start NAME COMMAND...: runs COMMAND in a new process group. Its output goes to .test/NAME.out, or to this script's
# output if NAME is tests.
jobs=()
start() {
  local name=$1
  shift
  set -m
  if [[ $name = tests ]]; then "$@" & else "$@" >".test/$name.out" 2>&1 & fi </dev/null
  jobs[$!]=$name
  set +m
}

# signal_jobs SIGNAL fails if no job runs.
signal_jobs() {
  local running=1
  for pid in "${!jobs[@]}"; do kill "-$1" -- "-$pid" 2>/dev/null && running=0; done
  return $running
}

# stop ends the jobs that still run. A program in the middle of a test may handle SIGTERM.
stop() {
  trap - EXIT
  signal_jobs TERM || return 0
  for _ in {1..50}; do
    sleep 0.2
    signal_jobs 0 || return 0
  done
  signal_jobs KILL || true
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

needed=$(go list -test -deps $list)
if grep -q '/internal/testkit/built$' <<<"$needed"; then start wheel prepare; fi
export GOGC=400 # otherwise Go's collector takes a third of the time of the tests that only compute; the largest then has 2 GB
if [[ $part = all || $part = rest ]]; then
  start source nice make --no-print-directory source
  start ci go test -C ci $FLAGS -vet=off -count=1 -p 1 -timeout 45m ./...
fi
# The packages that take longest come first. The build of the wheel has priority over the tests, because some wait for it. The tests wait for processes and timers too, so more of them run at once than there are cores.
long=$(grep -E '/(fleet/deploy|cmd/dsbuild|internal/remote|fleet/envdeploy|internal/testkit/enginetest)$' <<<"$list" || true)
start tests nice -n 5 go test $FLAGS -vet=off -count=1 -p $((cores + 1)) -parallel $((cores * 2)) -timeout 45m $long $list

failed=0
for pid in "${!jobs[@]}"; do
  name=${jobs[$pid]} status=0
  wait "$pid" || status=$?
  unset "jobs[$pid]"
  [[ $status = 0 ]] || failed=1
  if [[ $name = ci || $name = source && $status != 0 ]]; then cat ".test/$name.out"; fi
done

used=$(ssh -V 2>&1)
if [[ -e .test/wheel.status ]]; then
  check_prepared || failed=1
  used="$(<.test/engine); $used; $(basename .test/dist/*.whl)"
fi
echo "the tests ran with: $used"
[[ ! -e .test/pages ]] || tail -n 1 .test/pages
if [[ -s .test/skipped ]]; then
  echo "not run on this machine:"
  sort .test/skipped
fi
exit $failed
