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

# An instruction of objdump: address, raw bytes, mnemonic.
INSTRUCTION = re.compile(r"^\s*[0-9a-f]+:\t((?:[0-9a-f]{2} )+)\s*\t(?:\{\w+\} |(?:rep[nz]*|lock|data16|addr32|notrack|bnd|[c-gs]s) )*(\S+)", re.M)
# Prefix bytes that may stand before VEX and EVEX.
PREFIXES = {"2e", "36", "3e", "26", "64", "65", "67"}
# In 64-bit code 62 begins nothing but EVEX (AVX-512), c4 and c5 nothing but VEX
# (AVX, AVX2, FMA, BMI). LZCNT and MOVBE came with the same level.
V3_PLAIN = {"lzcnt", "movbe"}
# Extensions that no level includes.
BEYOND = re.compile(r"v?aes\w+|v?gf2p8\w+|sha(1|256)\w+|v?pclmul\w+|vpdp\w+|vpmadd52\w+|tile\w+|tdp\w+|vne2ps2bf16|vcvtne\w+|vb(cst|c)\w*ne\w+|rdrand|rdseed|xtest|xbegin")
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
    """The highest level a disassembly (objdump -d) needs, and what is beyond all."""
    level, beyond = 2, set()
    for raw, mnemonic in INSTRUCTION.findall(disassembly):
        code = raw.split()
        while len(code) > 1 and code[0] in PREFIXES:
            code.pop(0)
        if code[0] == "62":
            level = 4
        elif code[0] in ("c4", "c5") or mnemonic in V3_PLAIN:
            level = max(level, 3)
        if code[0] != "62" and BEYOND.fullmatch(mnemonic):
            beyond.add(mnemonic)
    return {"max": f"x86-64-v{level}", "beyond": sorted(beyond)}


def describe(path, name):
    """The row of one shared object."""
    dynamic = output("readelf", "--wide", "--dynamic", path)
    floors = GLIBC.findall(output("readelf", "--wide", "--version-info", path))
    code = output("objdump", "-d", "--wide", "--insn-width=16", path)
    cuobjdump = os.path.join(os.environ["CUDA_HOME"], "bin", "cuobjdump")
    sections = output("readelf", "--wide", "--section-headers", path)
    return {
        "path": name,
        "size": pathlib.Path(path).stat().st_size,
        "sass": archs(output(cuobjdump, "--list-elf", path)),
        "ptx": archs(output(cuobjdump, "--list-ptx", path)),
        "cpu": cpu(code),
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
