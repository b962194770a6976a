"""Makes the finished wheel of the compiled one: stripped, pinned to its torch,
with its manifest inside, the same bytes for the same content.

usage: pack.py COMPILED.whl OUTDIR   (DSBUILD_MANIFEST: what is known of it)
"""
import base64
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile

from contents import contents

EPOCH = time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))[:6]


def digest(data):
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def complete(manifest, wheel, name):
    """The manifest with what only the compiled wheel and this place can say."""
    found = contents(wheel)["extensions"]
    by_number = lambda v: [int(x) for x in re.findall(r"\d+", v)]
    union = lambda key: sorted({a for row in found for a in row[key]}, key=by_number)
    gcc = subprocess.run(["/usr/bin/gcc", "-dumpfullversion"], stdout=subprocess.PIPE, text=True, check=True)
    import torch

    manifest.update(
        name=name,
        version=name.split("-")[1],
        ops=sorted(re.sub(r"_op$", "", pathlib.PurePath(row["path"]).name.split(".")[0]) for row in found),
        archs=union("sass"),
        ptx=union("ptx"),
        glibc=max((row["glibc"] for row in found), key=by_number, default=""),
        gcc=gcc.stdout.strip(),
        python=sysconfig.get_python_version(),
        torch=torch.__version__.split("+")[0],
        cuda=torch.version.cuda,
        cxx11abi=torch.compiled_with_cxx11_abi(),
    )
    return manifest


def pinned(metadata, torch):
    """METADATA whose torch requirement is the minor the ops were built for:
    DeepSpeed's own is a lower bound, and an upgrade would leave dead ops."""
    major, minor = torch.split(".")[:2]
    pin = f"Requires-Dist: torch<{major}.{int(minor) + 1},>={major}.{minor}"
    text, n = re.subn(r"(?m)^Requires-Dist: torch(?=[<>=!~ ]|$)[^;\n]*$", pin, metadata)
    if n != 1:
        sys.exit(f"METADATA requires torch {n} times without a condition, expected once")
    return text


def pack(compiled, outdir):
    name = pathlib.Path(compiled).name
    manifest = complete(json.loads(os.environ["DSBUILD_MANIFEST"]), compiled, name)
    files = {}
    with zipfile.ZipFile(compiled) as z, tempfile.TemporaryDirectory() as tmp:
        for member in z.namelist():
            if member.endswith(".so") and not os.environ.get("DSBUILD_KEEP_DEBUG"):
                subprocess.run(["strip", "--strip-all", z.extract(member, tmp)], check=True)
                files[member] = pathlib.Path(tmp, member).read_bytes()
            elif not member.endswith("/"):
                files[member] = z.read(member)
        modes = {i.filename: i.external_attr >> 16 & 0o111 for i in z.infolist()}
    (record,) = (n for n in files if re.fullmatch(r"[^/]+\.dist-info/RECORD", n))
    info = record.removesuffix("RECORD")
    files[info + "METADATA"] = pinned(files[info + "METADATA"].decode(), manifest["torch"]).encode()
    files[info + "dsbuild.json"] = json.dumps(manifest, indent=1, sort_keys=True).encode() + b"\n"
    del files[record]
    order = sorted(files, key=lambda n: (n.startswith(info), n))
    rows = [f"{n},{digest(files[n])},{len(files[n])}" for n in order]
    files[record] = "\n".join([*rows, record + ",,", ""]).encode()
    with zipfile.ZipFile(pathlib.Path(outdir, name), "w") as z:
        for n in [*order, record]:
            entry = zipfile.ZipInfo(n, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3
            entry.external_attr = (0o100755 if modes.get(n) or n.endswith(".so") else 0o100644) << 16
            z.writestr(entry, files[n], compresslevel=9)
    print(f"{name}: {pathlib.Path(outdir, name).stat().st_size} bytes, {len(files)} files")


if __name__ == "__main__":
    pack(*sys.argv[1:])
