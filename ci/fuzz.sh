#!/bin/bash
# make fuzz: fuzzes every target for a time, such as 10s, as many at once as there are cores. The go command would link a
# program for each target; here it links one for each package.
set -euo pipefail
export time=${1:?the time for each target, such as 10s}
programs=$(mktemp -d)
trap 'rm -rf "$programs"' EXIT
export programs cache=$(go env GOCACHE)/fuzz/$(go list -m)

# fuzz PROGRAM FOLDER TARGET fails with the output and the input that was found.
fuzz() {
  local out input found=$cache/${2#./}
  echo "==> $2 $3"
  mkdir -p "$found"
  # Making an interesting input smaller would use up the whole time, if it had the usual minute.
  out=$(cd "$2" && "$1" -test.run '^$' -test.fuzz "^$3\$" -test.fuzztime "$time" -test.fuzzminimizetime 1s -test.fuzzcachedir "$found" -test.parallel 1 2>&1) &&
    [[ $out = *"fuzz: elapsed: "* ]] && return
  # The only output about a target whose time is over while a worker still answers:
  # go.dev/issue/75804, fixed in Go 1.27. After a finding, the name of its file follows.
  if grep -qzP -- '--- FAIL: \S+ \([0-9.]+s\)\n    context deadline exceeded\nFAIL\n' <<<"$out"; then return; fi
  echo "$2 $3:"
  echo "$out"
  input=$(sed -nE 's/^ *Failing input written to (testdata.*)/\1/p' <<<"$out")
  [[ -z $input ]] || { echo "commit it with the fix, as $2/$input:"; cat "$2/$input"; }
  return 1
}

# compiled prints the targets, each with its folder and its program. The programs are compiled one after another: they have
# most packages in common.
compiled() {
  local folder program
  for folder in $(grep -rlE '^func Fuzz\w+' --include='*_test.go' --exclude-dir=ci . | xargs dirname | sort -u); do
    program=$programs/${folder//\//-}
    go test -c -fuzz . -gcflags=all=-dwarf=false -ldflags=-w -o "$program" "$folder" || return
    grep -hoE '^func Fuzz\w+' "$folder"/*_test.go | sed "s|func|$program $folder|"
  done
}
export -f fuzz

targets=$(compiled)
xargs -P "$(getconf _NPROCESSORS_ONLN)" -L 1 bash -c 'fuzz "$@"' - <<<"$targets"
