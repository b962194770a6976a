"""Strips the extensions of a compiled wheel, compiles its modules to byte code, and
notes what was installed here.

usage: strip.py            (DSBUILD_KEEP_DEBUG: do not strip; DSBUILD_GCC: the compiler's major; DSBUILD_CROSS: the
                            other machine that it compiles for; DSBUILD_ABI=stable: variants.py joins the parts)
       strip.py packages   prints what is installed where a further part compiles

DSBUILD_PROGRAMS: on a machine that is no image, the programs that build.
"""
import concurrent.futures
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
import urllib.parse
import zipfile

import bytecode
import variants

try:
    import lzma
except ImportError:  # an optional part of Python
    lzma = None


def stripped(compiled, outdir):
    """The same wheel, uncompressed, without symbols and debug information."""
    target = pathlib.Path(outdir, pathlib.Path(compiled).name)
    with zipfile.ZipFile(compiled) as old, zipfile.ZipFile(target, "w") as new:
        for info in old.infolist():
            data = old.read(info)
            info.compress_type = zipfile.ZIP_STORED
            new.writestr(info, variants.stripped(data, os.environ["DSBUILD_WORK"]) if info.filename.endswith(".so") else data)
    return target


# STREAM_FOLDERS is how deep folders are told apart: deepspeed/runtime/zero is a stream.
STREAM_FOLDERS = 3


def byte_code(compiled):
    """The byte code of a wheel's modules, which every node would else compile for itself:
    a line of JSON, [[module, length], ...], and then the code of each as marshal writes it.
    The line and each of DeepSpeed's larger folders are by themselves, so that most are the
    same in the next wheel, which need not be sent again. Module by module they would take
    half as much again."""
    modules, streams, made = [], {}, bytecode.made_here()
    with zipfile.ZipFile(compiled) as wheel:
        names = [n for n in wheel.namelist() if n.endswith(".py") and ".data/" not in n]
        for name in sorted(names, key=lambda n: (n.split("/")[:-1], n)):  # what is of one stream in a row
            source = wheel.read(name)
            try:
                code = made.get((name, bytecode.digest(source))) or bytecode.compiled(source, name)
            except (SyntaxError, ValueError):  # no module, whatever its name says
                continue
            modules.append([name, len(code)])
            streams.setdefault(tuple(name.split("/")[:-1][:STREAM_FOLDERS]), []).append(code)
    return [json.dumps(modules).encode() + b"\n", *(b"".join(s) for s in streams.values())]


def compressed(text):
    """One stream. At level 3 it is a sixteenth larger than at 6, in a third of the time."""
    return lzma.compress(text, preset=3)


def purl(kind, name, version):
    """A package URL without qualifiers: its specification leaves colons as they are."""
    return f"pkg:{kind}/{urllib.parse.quote(name, safe='')}@{urllib.parse.quote(version, safe=':')}"


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def python_packages():
    """Each by the RECORD its installer left, which has the hash of every file."""
    seen = set()
    for dist in importlib.metadata.distributions():
        name, version = dist.metadata["Name"].lower().replace("_", "-"), dist.version
        if name in seen:  # of an environment beside this one, behind it on the path
            continue
        seen.add(name)
        record = dist.read_text("RECORD") or ""
        yield {
            "purl": purl("pypi", name, version),
            "file": f"{name}-{version}.dist-info/RECORD",
            "sha256": sha256(installed(record).encode()),
            "beside": not str(dist.locate_file("")).startswith(sys.prefix),
        }


def installed(record):
    """A RECORD without the rows that hold no hash or depend on who installed:
    compiled files, the installer's own, console scripts."""
    rows = (row for row in sorted(record.splitlines()) if "sha256=" in row)
    return "\n".join(row for row in rows if not row.startswith("..") and ".dist-info/" not in row)


def os_release():
    """What this system calls itself; platform knows since Python 3.10."""
    text = pathlib.Path("/etc/os-release").read_text()
    return dict(word.split("=", 1) for word in shlex.split(text, comments=True) if "=" in word)


def debian_packages():
    """Each by the list of md5 sums that came with it; none on other systems."""
    if not shutil.which("dpkg-query"):
        return
    listing = subprocess.run(
        ["dpkg-query", "--show", "--showformat", "${Package}\t${Version}\t${Architecture}\t${Multi-Arch}\n"],
        stdout=subprocess.PIPE, text=True, check=True,
    ).stdout
    distribution, files = os_release()["ID"], installed_files()
    programs = os.environ.get("DSBUILD_PROGRAMS")
    used = used_packages(programs.split(":")) if programs else None
    for row in listing.splitlines():
        name, version, arch, multi = row.split("\t")
        if used is not None and name not in used:
            continue
        stem = f"{name}:{arch}" if multi == "same" else name
        sums = pathlib.Path("/var/lib/dpkg/info", stem + ".md5sums")
        yield {
            "purl": purl(f"deb/{distribution}", name, version) + "?arch=" + arch,
            "file": sums.name,
            "sha256": sha256(sums.read_bytes()) if sums.exists() else "",
            "archive_sha256": files.get((name, version, arch), ""),
        }


def used_packages(programs):
    """The Debian packages of the programs of a build, with all that these depend on. A machine that is no image has others, which change and which a build does not see."""
    query = ["dpkg-query", "--show", "--showformat", "${Package}\t${Provides}\t${Pre-Depends}, ${Depends}\n"]
    depends, providers = {}, {}
    for row in subprocess.run(query, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines():
        name, provides, wants = row.split("\t")
        depends[name] = related(wants)
        for virtual in [name, *related(provides)]:
            providers.setdefault(virtual, set()).add(name)
    search = ["dpkg-query", "--search", *map(os.path.realpath, programs)]  # status 1: one is of no package
    owners = subprocess.run(search, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    used, new = set(), {row.split(":")[0] for row in owners.splitlines()}
    while new:
        used |= new
        wanted = {virtual for name in new for virtual in depends.get(name, ())}
        new = {name for virtual in wanted for name in providers.get(virtual, ())} - used
    return used


def related(relations):
    """The names in a field of relations: a (>= 1), b | c."""
    return re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]+)", relations)


def installed_files():
    """The sha256 of the .deb files that install.sh brought into this image."""
    sums = pathlib.Path("/opt/dsbuild/debian.sums")
    rows = map(str.split, sums.read_text().splitlines() if sums.exists() else ())
    return {(name, version, arch): sha for name, version, arch, sha in rows}


def packages():
    """Those that are installed here, and before them what further parts have printed."""
    told = [package for file in pathlib.Path(os.environ["DSBUILD_IN"]).glob("*/packages.json") for package in json.loads(file.read_text())]
    found = {package["purl"]: package for package in [*told, *python_packages(), *debian_packages()]}
    return [found[purl] for purl in sorted(found)]


def facts():
    """What wheel.Build is read from."""
    # Read, not imported: that takes seconds.
    torch = runpy.run_path(importlib.metadata.distribution("torch").locate_file("torch/version.py"))
    major = os.environ.get("DSBUILD_GCC")
    gcc = subprocess.run([variants.TRIPLE + (f"gcc-{major}" if major else "gcc"), "-dumpfullversion"], stdout=subprocess.PIPE, text=True, check=True)
    return {
        "gcc": gcc.stdout.strip(),
        "python": sysconfig.get_python_version(),
        "torch": torch["__version__"].split("+")[0],
        "cuda": torch["cuda"],
        "patches": pathlib.Path(os.environ["DSBUILD_IN"], "compile", "patches").read_text().split(),
        "packages": packages(),
    }


def main():
    folder, outdir = os.environ["DSBUILD_IN"], os.environ["DSBUILD_OUT"]
    if os.environ.get("DSBUILD_ABI") == "stable":
        wheel = variants.join(folder, outdir)
    else:
        wheel = stripped(variants.compiled(folder, "compile"), outdir)
    built, packed = {}, []
    with concurrent.futures.ThreadPoolExecutor() as pool:  # lzma leaves the interpreter to others
        if lzma:
            texts = byte_code(wheel)
            packed = pool.map(compressed, texts)
            # What wheel.ByteCode is read from.
            built["bytecode"] = {"magic": int.from_bytes(importlib.util.MAGIC_NUMBER[:2], "little"), "sha256": sha256(b"".join(texts))}
        built.update(facts())
    if lzma:
        pathlib.Path(outdir, "bytecode.xz").write_bytes(b"".join(packed))
    pathlib.Path(outdir, "build.json").write_text(json.dumps(built, indent=1))


if __name__ == "__main__":
    if sys.argv[1:] == ["packages"]:
        print(json.dumps(packages()))
    else:
        main()
