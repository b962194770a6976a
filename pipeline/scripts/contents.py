"""What the compiled part of a wheel holds, by objdump, readelf and cuobjdump.

usage: contents.py WHEEL  -> JSON on stdout, in the shape of wheel.Contents
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

# EVEX: 512-bit registers, registers 16 to 31, mask registers. VEX: 256-bit
# registers, or the three-operand forms, whose mnemonics begin with v.
EVEX = re.compile(r"%(zmm\d|[xy]mm(1[6-9]|2\d|3[01])|k[0-7]\b)")
VEX = re.compile(r"%ymm\d|^\S+:\s+v[a-z0-9]+\s")
CUOBJDUMP = os.path.join(os.environ["CUDA_HOME"], "bin", "cuobjdump")
GLIBC = re.compile(r"GLIBC_(\d+(?:\.\d+)+)")


def output(*argv):
    """The output of a program; cuobjdump's failure on a file without device code is none."""
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode and "does not contain device code" not in done.stdout:
        sys.exit(f"{argv[0]}: exit {done.returncode}: {done.stdout[-500:]}")
    return done.stdout


def archs(listing):
    """['8.0', '9.0a'] of lines such as 'ELF file 1: x.sm_80.cubin'."""
    found = {m for m in re.findall(r"\bsm_(\d+[af]?)\b", listing)}
    return sorted(re.sub(r"(\d)([af]?)$", r".\1\2", m) for m in found)


def cpu(disassembly):
    if EVEX.search(disassembly):
        return "x86-64-v4"
    if any(VEX.search(line) for line in disassembly.splitlines()):
        return "x86-64-v3"
    return "x86-64-v2"


def describe(path, name):
    """The row of one shared object."""
    dynamic = output("readelf", "--wide", "--dynamic", path)
    floors = GLIBC.findall(output("readelf", "--wide", "--version-info", path))
    code = output("objdump", "-d", "--no-show-raw-insn", "-M", "att", path)
    sections = output("readelf", "--wide", "--section-headers", path)
    return {
        "path": name,
        "size": pathlib.Path(path).stat().st_size,
        "sass": archs(output(CUOBJDUMP, "--list-elf", path)),
        "ptx": archs(output(CUOBJDUMP, "--list-ptx", path)),
        "cpu": {"max": cpu(code)},
        "glibc": max(floors, key=lambda v: [int(x) for x in v.split(".")], default=""),
        "needs": re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic),
        "rpath": re.findall(r"\(R(?:UN)?PATH\).*\[(.*)\]", dynamic),
        "stripped": ".symtab" not in sections and ".debug_info" not in sections,
    }


def contents(wheel):
    """All shared objects of a wheel."""
    rows = []
    with zipfile.ZipFile(wheel) as z, tempfile.TemporaryDirectory() as tmp:
        for name in sorted(n for n in z.namelist() if n.endswith(".so")):
            rows.append(describe(z.extract(name, tmp), name))
    return {"extensions": rows}


if __name__ == "__main__":
    (wheel,) = sys.argv[1:]
    print(json.dumps(contents(wheel), indent=1))
