#!/bin/bash
# make test: all tests of both modules, against an engine and wheels of this checkout. Without an
# engine the machine itself builds the wheels, unless CI is true.
set -euo pipefail
. ci/wheels.sh

failed=0
for module in . ci; do
  go test -C "$module" -count=1 -timeout 45m ./... || failed=1
done

echo "the tests ran with: $engine; $(ssh -V 2>&1); $(basename "$DSBUILD_TEST_WHEEL")"
[[ ! -e .test/pages ]] || tail -n 1 .test/pages
if [[ -s .test/skipped ]]; then
  echo "not run on this machine:"
  sort .test/skipped
fi
exit $failed
