"""The byte code of a wheel's modules, which every node would else compile for itself.

usage: bytecode.py make FOLDER...    compiles the modules in folders of this one, leaves
                                     byte code beside them, and all of it in DSBUILD_OUT
       bytecode.py place             puts what lies beside the wheel beside the modules
                                     that were installed from it, as a deploy does
       bytecode.py compare           proves that it is what this Python makes of them
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

MADE = "modules"  # what make leaves: of each module its name, the digest of its source, its byte code


def compiled(source, name):
    """The byte code of a module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return marshal.dumps(compile(source, name, "exec", dont_inherit=True, optimize=0))


def digest(source):
    return hashlib.sha256(source).digest()


def beside(module, code):
    """Puts byte code where Python looks for that of a module."""
    info, target = module.stat(), pathlib.Path(importlib.util.cache_from_source(module))
    target.parent.mkdir(exist_ok=True)
    head = b"".join((int(n) & 0xFFFFFFFF).to_bytes(4, "little") for n in (0, info.st_mtime, info.st_size))
    new = target.with_suffix(f".{os.getpid()}")
    new.write_bytes(importlib.util.MAGIC_NUMBER + head + code)
    os.replace(new, target)


def make(*folders):
    made = {}
    for folder in folders:
        for module in sorted(pathlib.Path(folder).rglob("*.py")):
            source, name = module.read_bytes(), module.as_posix()
            try:
                made[name] = digest(source), compiled(source, name)
            except (SyntaxError, ValueError):  # no module, whatever its name says
                continue
            beside(module, made[name][1])
    pathlib.Path(os.environ["DSBUILD_OUT"], MADE).write_bytes(marshal.dumps(made))


def made_before():
    """What make has left: the byte code of modules by name and digest."""
    data = pathlib.Path(os.environ["DSBUILD_IN"], "compile", MADE).read_bytes()
    return {(name, sum): code for name, (sum, code) in marshal.loads(data).items()}


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
    count = 0
    for module, name, code in packed():
        if marshal.loads(code) != marshal.loads(compiled(module.read_bytes(), name)):
            sys.exit(f"the byte code of {name} is not that of the module in the wheel")
        count += 1
    print(f"byte code: that of {count} modules")


if __name__ == "__main__":
    {"make": make, "place": place, "compare": compare}[sys.argv[1]](*sys.argv[2:])
