#!/bin/bash
# make test-full PART="inside fleet": the long proofs. The part inside is the tests TestFullInside…
# of both modules, one package at a time, so that they do not disturb each other's measurements. The
# outcome of each test and what it measured go into ci/results/inside.md. A skipped test counts as
# failed, and so does a part without tests.
set -euo pipefail
. ci/built.sh
prepare
check_prepared

commit=$(git describe --always --dirty)
parts=("$@")
if [[ $# = 0 ]]; then
  parts=(inside toolchains pairs ops host stable abi docker launch fleet env relay faults slurm check
    job release nightly publish public lint fuzz remote speed aarch64)
fi

# run PART: runs the tests of a part.
run() {
  local folder status=0
  for folder in $(grep -rliE "^func TestFull$1" --include='*_test.go' . | xargs -r dirname | sort -u); do
    local module=. package=$folder
    [[ $folder != ./ci/* ]] || module=ci package=./${folder#./ci/}
    go test -C $module -tags full -count=1 -v -timeout 55m -run "(?i)^TestFull$1" "$package" || status=1
  done
  return $status
}

failed=()
for part in "${parts[@]}"; do
  echo "==> $part"
  log=.test/$part.log
  if run "$part" 2>&1 | tee "$log" && grep -q '^--- PASS' "$log" && ! grep -q '^--- SKIP' "$log"; then
    {
      echo "# $part: $(date -u +%F), $commit, $(nproc) cores"
      echo
      sed -nE 's/^--- (.*)/- \1/p' "$log"
      echo
      sed -nE 's/^ +[^ ]+\.go:[0-9]+: result: (.*)/- \1/p' "$log"
    } >"ci/results/$part.md"
  else
    failed+=("$part")
  fi
done

if [[ ${#failed[@]} != 0 ]]; then
  echo "failed: ${failed[*]}; the whole output: .test/PART.log" >&2
  exit 1
fi
