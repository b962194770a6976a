#!/bin/sh
# Adds to the environment DSBUILD_ENV what DeepSpeed needs beside torch. PINS are
# requirements that take the place of those in runtime.txt, joined by spaces.
# What is in an environment beside this one (DSBUILD_BESIDE) is not added: it is
# what DeepSpeed will be run with. ninja's program is needed on PATH.
set -eu
here=$(dirname "$0")
. "$here/site.sh"
pins=$(mktemp)
lacking=$(mktemp)
printf '%s\n' $PINS >"$pins"
"$DSBUILD_ENV/bin/python" - "$here/runtime.txt" >"$lacking" <<'EOF'
import importlib.metadata, os, re, sys

def plain(name):
    return re.sub("[-_.]+", "-", name).lower()

beside = [path for path in os.environ.get("DSBUILD_BESIDE", "").split(":") if path]
there = {plain(d.metadata["Name"] or "") for d in importlib.metadata.distributions(path=beside)} - {"ninja"}
with open(sys.argv[1]) as f:
    sys.stdout.writelines(line for line in f if plain(re.match(r"[\w.-]*", line).group()) not in there)
EOF
uv pip install --python "$DSBUILD_ENV" ${DSBUILD_BESIDE:+--no-deps} --overrides "$pins" -r "$lacking"
rm "$pins" "$lacking"
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
