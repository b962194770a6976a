"""The byte code of a wheel's modules, which every node would else compile for itself.

usage: bytecode.py make FOLDER...    compiles the modules in folders of this one, leaves
                                     byte code beside them, and all of it in DSBUILD_OUT;
                                     what an earlier build has made is in DSBUILD_OBJECTS
       bytecode.py place             puts what lies beside the wheel beside the modules
                                     that were installed from it, as a deploy does
       bytecode.py compare           proves that it is what this Python makes of them, or
                                     has made in the compile step
"""
import hashlib
import importlib.metadata
import importlib.util
import json
import marshal
import os
import pathlib
import sys
import warnings

MADE = "modules"  # what make leaves: the byte code of modules by their names and the digests of their sources


def compiled(source, name):
    """The byte code of a module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return marshal.dumps(compile(source, name, "exec", dont_inherit=True, optimize=0))


def digest(source):
    """What decides the byte code of a module beside its name."""
    return hashlib.sha256(sys.version.encode() + b"\n" + source).digest()


def write(target, data):
    """Writes a file whole or not at all."""
    new = target.with_name(f"{target.name}.{os.getpid()}")
    new.write_bytes(data)
    os.replace(new, target)


def beside(module, code):
    """Puts byte code where Python looks for that of a module."""
    info, target = module.stat(), pathlib.Path(importlib.util.cache_from_source(module))
    target.parent.mkdir(exist_ok=True)
    head = b"".join((int(n) & 0xFFFFFFFF).to_bytes(4, "little") for n in (0, info.st_mtime, info.st_size))
    write(target, importlib.util.MAGIC_NUMBER + head + code)


def make(*folders):
    kept = pathlib.Path(os.environ["DSBUILD_OBJECTS"], f"{MADE}.{sys.implementation.cache_tag}")
    before = {} if os.environ.get("CCACHE_RECACHE") else made(kept)
    now = {}
    for folder in folders:
        for module in sorted(pathlib.Path(folder).rglob("*.py")):
            source, name = module.read_bytes(), module.as_posix()
            try:
                now[name, digest(source)] = code = before.get((name, digest(source))) or compiled(source, name)
            except (SyntaxError, ValueError):  # no module, whatever its name says
                continue
            beside(module, code)
    data = marshal.dumps(now)
    for file in pathlib.Path(os.environ["DSBUILD_OUT"], MADE), kept:
        write(file, hashlib.sha256(data).digest() + data)


def made(file):
    """What make has left: the byte code of modules by name and digest."""
    try:
        data = file.read_bytes()
    except OSError:
        return {}
    sum, data = data[:32], data[32:]
    return marshal.loads(data) if hashlib.sha256(data).digest() == sum else {}  # else it is damaged


def made_here():
    """What it has left in the compile step of this build."""
    return made(pathlib.Path(os.environ["DSBUILD_IN"], "compile", MADE))


def packed():
    """The modules of the bytecode.xz beside a wheel, installed, each with its byte code."""
    for file in pathlib.Path(os.environ["DSBUILD_IN"], "pack").glob("*.whl.bytecode.xz"):
        import lzma  # an optional part of Python: without it there is no such file

        listing, _, code = lzma.decompress(file.read_bytes()).partition(b"\n")
        site, at = importlib.metadata.distribution("deepspeed").locate_file(""), 0
        for name, size in json.loads(listing):
            yield pathlib.Path(site, name), name, code[at : at + size]
            at += size


def place():
    for module, _, code in packed():
        beside(module, code)


def compare():
    before, count = made_here(), 0
    for module, name, code in packed():
        source = module.read_bytes()
        if marshal.loads(code) != marshal.loads(before.get((name, digest(source))) or compiled(source, name)):
            sys.exit(f"the byte code of {name} is not the byte code of the module in the wheel")
        count += 1
    print(f"byte code of {count} modules")


if __name__ == "__main__":
    {"make": make, "place": place, "compare": compare}[sys.argv[1]](*sys.argv[2:])
