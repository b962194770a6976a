#!/bin/sh
# Adds to the environment DSBUILD_ENV what torch requires, and what DeepSpeed needs
# beside torch: the packages of packages.txt, each pinned by the sha256 of its file.
# Where there is an environment beside this one (DSBUILD_BESIDE), which DeepSpeed will
# be run with, only those of runtime.txt that it lacks. ninja's program is needed on PATH.
set -eu
here=$(dirname "$0")
. "$here/site.sh"
lacking=$(mktemp)
"$DSBUILD_ENV/bin/python" - "$here" >"$lacking" <<'EOF'
import importlib.metadata, os, re, sys

def plain(name):
    return re.sub("[-_.]+", "-", name).lower()

def name(line):
    return plain(re.match(r"[\w.-]*", line).group())

here = sys.argv[1]
beside = [path for path in os.environ.get("DSBUILD_BESIDE", "").split(":") if path]
with open(os.path.join(here, "packages.txt")) as f:
    lines = [line for line in f if name(line) != "torch"]
if beside:
    there = {plain(d.metadata["Name"] or "") for d in importlib.metadata.distributions(path=beside)} - {"ninja"}
    with open(os.path.join(here, "runtime.txt")) as f:
        wanted = {name(line) for line in f} - there
    lines = [line for line in lines if name(line) in wanted]
sys.stdout.writelines(lines)
EOF
uv pip install --python "$DSBUILD_ENV" --no-deps --require-hashes --only-binary :all: -r "$lacking"
rm "$lacking"
# What every step imports is compiled to byte code here, once: most of a smoke test's
# time would go there. An environment beside this one stays as it is.
[ -n "${DSBUILD_BESIDE-}" ] || "$DSBUILD_ENV/bin/python" -W ignore - <<'EOF'
import importlib

for name in ("torch", "torch._dynamo", "torch.utils.cpp_extension", "pydantic"):
    try:
        importlib.import_module(name)
    except Exception as e:  # older torch has fewer; what is wrong shows where it is used
        print(f"{name}: {type(e).__name__}: {e}")
EOF
