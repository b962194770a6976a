"""Joins what the parts of a build compiled over torch's stable ABI into one wheel, and gives it the
modules that load the ops (stable/loader.py).

An op that several parts have compiled has a library of each, with the part's variant in its name:
libfused_adam_op.cu12.so. All else is the first part's.

DSBUILD_VARIANTS lists the further parts, joined by spaces: STEP:VARIANT:FIRST, where FIRST is the
variant of the first part's libraries of the same ops. DSBUILD_CPU is the level that every op needs,
DSBUILD_GPU_OPS names the ops with device code.
"""
import os
import pathlib
import re
import subprocess
import sys
import zipfile
import zlib

LOADER = "_stable_abi"
LIBRARY = re.compile(r"(.*/)lib(\w+)\.so")  # as stable.py calls it
# TRIPLE is the prefix of the compiler and its tools for another machine.
TRIPLE = f"{os.environ['DSBUILD_CROSS']}-linux-gnu-" if os.environ.get("DSBUILD_CROSS") else ""

RECORD = "deepspeed/git_version_info_installed.py"
SHM_COMM = "deepspeed/ops/op_builder/cpu/comm.py"
ASYNC_IO = ("deepspeed/ops/op_builder/async_io.py", "deepspeed/ops/op_builder/cpu/async_io.py")

# What DeepSpeed shall say of ops in which it is wrong here: the file, the class, whether the op is compatible, and why.
COMPATIBLE = (
    (SHM_COMM, "ShareMemCommBuilder", False, "the wheel has no shm_comm, and no job shall compile it: torch's gloo takes its place"),
    *((name, "AsyncIOBuilder", True, "the async_io of the wheel needs no libaio, for which DeepSpeed looks with a compiler") for name in ASYNC_IO),
)


def join(folder, to):
    """Writes the wheel that the parts below a folder make together, uncompressed, without symbols and debug information."""
    work = os.environ["DSBUILD_WORK"]
    libraries = {}  # by the op's folder and name: of each variant the bytes, "" where there is one
    for word in os.environ.get("DSBUILD_VARIANTS", "").split():
        step, variant, first = word.split(":")
        with zipfile.ZipFile(compiled(folder, step)) as part:
            for op, data in libraries_of(part, work):
                libraries.setdefault(op, {first: None})[variant] = data
    path = compiled(folder, "compile")
    target = pathlib.Path(to, path.name)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w") as new:
        for op, data in libraries_of(old, work):
            variants = libraries.setdefault(op, {"": None})
            variants[next(iter(variants))] = data
        changed, majors = {}, set()
        for (place, op), variants in sorted(libraries.items()):
            cuda = {major for data in variants.values() for major in cuda_of(data, work)}
            majors |= cuda
            changed[f"{place}{op}.py"] = module(variants, cuda)
            for variant, data in variants.items():
                changed[f"{place}lib{op}{'.' + variant if variant else ''}.so"] = data
        changed[f"deepspeed/{LOADER}.py"] = loader()
        changed[RECORD] = record(old.read(RECORD).decode(), ordered(majors)).encode()
        for name, builder, answer, why in COMPATIBLE:
            has = not answer or any(op == "async_io_op" for _, op in libraries)
            if has and name in old.namelist() and f"class {builder}(".encode() in old.read(name):
                changed[name] = old.read(name) + f"\n\n# dsbuild: {why}.\n{builder}.is_compatible = lambda self, verbose=False: {answer}\n".encode()
        for info in old.infolist():
            if info.filename not in changed and not LIBRARY.fullmatch(info.filename):
                data = old.read(info)
                info.compress_type = zipfile.ZIP_STORED
                new.writestr(info, data)
        for name, data in changed.items():
            new.writestr(name, data)
    return target


def compiled(folder, step):
    """The wheel of a step."""
    (path,) = pathlib.Path(folder, step).glob("*.whl")
    return path


def libraries_of(wheel, work):
    """The libraries in a wheel, stripped."""
    for name in wheel.namelist():
        if found := LIBRARY.fullmatch(name):
            yield found.groups(), stripped(wheel.read(name), work)


def stripped(library, work):
    """A library without symbols and debug information."""
    if os.environ.get("DSBUILD_KEEP_DEBUG"):
        return library
    file = pathlib.Path(work, "library.so")
    file.write_bytes(library)
    subprocess.run([TRIPLE + "strip", "--strip-all", file], check=True)
    return file.read_bytes()


def module(variants, cuda):
    """The module of an op, with the CRC-32 of its libraries and the CUDA that they are for."""
    sums = ", ".join(f'"{variant}": 0x{zlib.crc32(variants[variant]):08x}' for variant in sorted(variants))
    told = f", cuda={ordered(cuda)!r}" if cuda else ""
    return f"from deepspeed.{LOADER} import expose\n\nexpose(globals(), {{{sums}}}{told})\n".encode()


def ordered(values):
    """Majors of CUDA or levels, the lowest first."""
    return tuple(sorted(values, key=lambda value: int(value.lstrip("v"))))


def cuda_of(library, work):
    """The major of the CUDA runtime that a library needs, in a list; none if it needs none."""
    file = pathlib.Path(work, "library.so")
    file.write_bytes(library)
    said = subprocess.run(["readelf", "-d", file], stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "LC_ALL": "C"}).stdout
    return re.findall(r"\(NEEDED\).*\[libcudart\.so\.(\d+)", said)


def loader():
    """The loader, for the level of the wheel."""
    text = pathlib.Path(os.environ["DSBUILD_TOOLS"], "stable", "loader.py").read_text()
    level = re.fullmatch(r"x86-64-(v\d)", os.environ["DSBUILD_CPU"])
    return text.replace('\nLEVEL = ""', f'\nLEVEL = "{level[1]}"', 1).encode() if level else text.encode()


def record(text, cuda):
    """DeepSpeed's record of its build, which it compares with the torch and the accelerator that it
    finds: the loader knows them."""
    device = tuple(os.environ.get("DSBUILD_GPU_OPS", "").split())
    needs = cuda if len(cuda) > 1 else "".join(cuda)
    for line, new in (
        ("torch_info=(.*)", rf"torch_info={LOADER}.torch_info(\1, {needs!r})"),
        ("accelerator_name='cuda'", f"accelerator_name, installed_ops = {LOADER}.accelerator(installed_ops, {device!r})"),
    ):
        text, count = re.subn(f"(?m)^{line}$", new, text)
        if count != 1:
            sys.exit(f"error: DeepSpeed's record of its build (git_version_info_installed.py) has {line} {count} times, not once")
    return f"from deepspeed import {LOADER}\n\n{text}"
