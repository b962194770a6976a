#!/bin/bash
# make test-full PART="inside fleet": the long proofs. The part inside is the tests TestFullInside… of both modules. Two parts
# run at once, one of which mostly waits, so that no core is idle; a part that measures times runs alone. The outcome of each
# test and what it measured go into ci/results/inside.md. A skipped test counts as failed, and so does a part without tests.
set -euo pipefail
. ci/built.sh

commit=$(git describe --always --dirty)
# Parts that mostly wait: for processes, timers and connections.
waiting=(faults remote slurm launch job check env publish)
computing=(ops stable aarch64 fleet pairs toolchains docker nightly speed inside host public release fuzz lint)
measuring=(relay)

# chosen PARTS: prints the requested ones.
wanted=" $* "
chosen() {
  local part
  for part in "$@"; do
    [[ $wanted != "  " && $wanted != *" $part "* ]] || echo "$part"
  done
}
for part in "$@"; do
  [[ " ${waiting[*]} ${computing[*]} ${measuring[*]} " = *" $part "* ]] || { echo "unknown part: $part" >&2; exit 2; }
done

# run PART: runs the tests of a part.
run() {
  local folder status=0
  for folder in $(grep -rliE "^func TestFull$1" --include='*_test.go' . | xargs -r dirname | sort -u); do
    local module=. package=$folder
    [[ $folder != ./ci/* ]] || module=ci package=./${folder#./ci/}
    go test -C $module $FLAGS -vet=off -tags full -count=1 -v -parallel $(($(nproc) + 1)) -timeout 120m -run "(?i)^TestFull$1" "$package" || status=1
  done
  return $status
}

# lane PARTS: runs parts one after another.
lane() {
  local part
  for part in "$@"; do
    echo "==> $part"
    local log=.test/$part.log
    if run "$part" 2>&1 | tee "$log" | sed -u "s/^/$part: /" && grep -q '^--- PASS' "$log" && ! grep -q '^--- SKIP' "$log"; then
      {
        echo "# $part: $(date -u +%F), $commit, $(nproc) cores"
        echo
        sed -nE 's/^--- (.*)/- \1/p' "$log"
        echo
        sed -nE 's/^ +[^ ]+\.go:[0-9]+: result: (.*)/- \1/p' "$log"
      } >"ci/results/$part.md"
    else
      echo "$part" >>.test/failed
    fi
  done
}

trap 'kill 0' INT # a job in the background ignores Ctrl-C
lane $(chosen "${waiting[@]}") &
prepare # tests of the other lane wait for the wheel if they need it
if check_prepared; then
  lane $(chosen "${computing[@]}")
else
  echo wheel >>.test/failed
fi
wait $!
lane $(chosen "${measuring[@]}")

if [[ -e .test/failed ]]; then
  echo "failed: $(xargs <.test/failed); the whole output: .test/PART.log" >&2
  exit 1
fi
