#!/bin/bash
# make fuzz: fuzzes every target for a time, such as 10s. The go command takes one target a call.
set -euo pipefail
time=${1:?the time for each target, such as 10s}

failed=0
while IFS=: read -r file function; do
  target=${function#func } folder=$(dirname "$file")
  echo "==> $folder $target"
  # Making an interesting input smaller would use up the whole time, if it had the usual minute.
  out=$(go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 1s "$folder" 2>&1) && [[ $out = *"fuzz: elapsed: "* ]] && continue
  # The only output about a target whose time is over while a worker still answers:
  # go.dev/issue/75804, fixed in Go 1.27. After a finding, the name of its file follows.
  if grep -qzP -- '--- FAIL: \S+ \([0-9.]+s\)\n    context deadline exceeded\nFAIL\n' <<<"$out"; then continue; fi
  failed=1
  echo "$out"
  input=$(sed -nE 's/^ *Failing input written to (testdata.*)/\1/p' <<<"$out")
  [[ -z $input ]] || { echo "commit it with the fix, as $folder/$input:"; cat "$folder/$input"; }
done < <(grep -roE '^func Fuzz\w+' --include='*_test.go' --exclude-dir=ci . | sort)
exit $failed
