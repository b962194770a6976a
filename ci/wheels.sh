# test.sh and full.sh read this file. It makes an engine and two wheels of this checkout in .test:
# one for A100 and one torch, and the one for every GPU and every torch from 2.10 on. Tests find them by the exported variables.
export DSBUILD_TEST_DIR=$PWD/.test
rm -rf .test && mkdir .test

status=0 builder=()
engine=$(bin/ci/engine ensure) || status=$?
if [[ $status = 3 && ${CI:-} != true ]]; then
  echo "==> building on this machine: $engine. Tests that need a container engine do not run" >&2
  builder=(--builder host --python 3.11) engine="no container engine"
elif [[ $status != 0 ]]; then
  echo "no container engine: $engine" >&2
  exit 1
fi

wheel() { bin/dsbuild wheel --no-cache --json "${builder[@]}" "$@"; }
wheel -o .test/dist --arch 8.0 --abi torch >.test/wheel.json
wheel -o .test/stable >.test/stable.json
export DSBUILD_TEST_WHEEL=$(echo "$PWD"/.test/dist/*.whl) DSBUILD_TEST_STABLE=$(echo "$PWD"/.test/stable/*.whl)
