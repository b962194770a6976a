"""Builds ops over torch's stable ABI: one wheel for every torch from DSBUILD_TORCH_MIN on and
every Python (stable/ has the headers and the loader).

DeepSpeed's setup.py and torch's build_ext stay as they are. Here the extensions that they make
get other headers, flags, libraries and file names, and the wheel gets the modules that load
them.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

import torch

# The folders of torch's headers that a source may read: those of its stable ABI.
HEADERS = ("torch/headeronly", "torch/csrc/stable", "torch/csrc/inductor/aoti_torch/c", "torch/csrc/inductor/aoti_torch/generated")
# Of torch's libraries those with the C functions of that ABI. CUDA's runtime comes with torch.
LIBRARIES = ("torch_cpu", "torch_cuda", "cudart")
LOADER = "_stable_abi"


def torch_include():
    """torch's own include folder."""
    return str(pathlib.Path(torch.__file__).parent / "include")


def use(extensions):
    """Makes torch's build_ext build so. extensions is the module torch.utils.cpp_extension."""
    command = extensions.BuildExtension
    original = command.build_extensions

    def build_extensions(self):
        include = lay_headers(pathlib.Path(os.environ["DSBUILD_WORK"], "stable"))
        # Python's own headers: none of its symbols may be needed.
        self.compiler.set_include_dirs([])
        for extension in self.extensions:
            adapt(extension, include)
        original(self)
        finish(pathlib.Path(self.build_lib), [self.get_ext_fullpath(e.name) for e in self.extensions])

    command.build_extensions = build_extensions
    command.get_ext_filename = lambda self, name: file_name(name)


def file_name(name):
    """The file of an extension. It is not called like a module, or Python would import it in
    place of the module beside it."""
    *folders, last = name.split(".")
    return os.path.join(*folders, f"lib{last}.so")


def lay_headers(folder):
    """Brings our headers and those of torch that sources may read. torch's own include folder
    is never searched: a header that is missing here would be found there, unstable."""
    own, thin = folder / "include", folder / "thin"
    shutil.copytree(pathlib.Path(os.environ["DSBUILD_TOOLS"], "stable", "include"), own)
    for name in HEADERS:
        (thin / name).parent.mkdir(parents=True, exist_ok=True)
        (thin / name).symlink_to(os.path.join(torch_include(), name))
    return [str(own), str(thin)]


def target(version):
    """The value of TORCH_TARGET_VERSION for torch X.Y."""
    major, minor = map(int, version.split("."))
    return f"{major << 56 | minor << 48:#018x}ULL"


def adapt(extension, include):
    """Changes what torch has made of an extension: its own headers, and the libraries that
    have its C++ interface."""
    extension.include_dirs = include + [i for i in extension.include_dirs if not within(i, torch_include())]
    cuda = "cudart" in extension.libraries
    flags = [f"-DTORCH_TARGET_VERSION={target(os.environ['DSBUILD_TORCH_MIN'])}", *(["-DUSE_CUDA"] if cuda else [])]
    # A unique symbol is one in the whole process, whatever exports.map says. torch hides its
    # classes, and g++ warns of ours that hold them.
    host = ["-fno-gnu-unique", "-Wno-attributes"]
    args = extension.extra_compile_args
    if isinstance(args, dict):
        args["nvcc"] = [*args.get("nvcc", []), *flags, "-Xcompiler", ",".join(host)]
        args["cxx"] = [*args.get("cxx", []), *flags, *host]
    else:
        extension.extra_compile_args = [*args, *flags, *host]
    others = [lib for lib in extension.libraries if lib not in LIBRARIES and lib not in ("c10", "c10_cuda", "torch", "torch_python")]
    extension.libraries = []
    # An op names the libraries that it uses, and no others: torch loads its libraries for itself
    # alone, so an op that did not name libtorch_cpu would not find its functions.
    libraries = [*LIBRARIES[: 3 if cuda else 1], *others, "dl", "pthread"]
    exports = os.path.join(os.environ["DSBUILD_TOOLS"], "stable", "exports.map")
    extension.extra_link_args = [
        f"-Wl,--version-script={exports}", "-Wl,--as-needed", *(f"-l{lib}" for lib in libraries), *(extension.extra_link_args or []),
    ]


def within(path, folder):
    return os.path.normpath(path) == folder or os.path.normpath(path).startswith(folder + os.sep)


def refuse_headers(headers):
    """Ends the build if a source has read a header of torch's that is not of the stable ABI."""
    wrong = sorted(h for h in headers if within(h, torch_include()))
    if wrong:
        sys.exit(f"error: a source has read a header of torch's C++ interface, which is not stable: {', '.join(wrong)}")


def cuda_of(library):
    """The major of the CUDA runtime that a library needs, "" for none."""
    said = subprocess.run(["readelf", "-d", library], stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "LC_ALL": "C"}).stdout
    found = re.search(r"\(NEEDED\).*\[libcudart\.so\.(\d+)", said)
    return found[1] if found else ""


def finish(lib, files):
    """Adds the modules to the wheel's files, which lie in lib."""
    shutil.copyfile(pathlib.Path(os.environ["DSBUILD_TOOLS"], "stable", "loader.py"), lib / "deepspeed" / (LOADER + ".py"))
    cudas = set()
    for file in map(pathlib.Path, files):
        cuda = cuda_of(file)
        cudas.add(cuda)
        module = file.with_name(file.stem[len("lib") :] + ".py")
        module.write_text(f"from deepspeed.{LOADER} import expose\n\nexpose(globals(){f', cuda={cuda!r}' if cuda else ''})\n")
    info = lib / "deepspeed" / "git_version_info_installed.py"
    told = told_by_torch(info.read_text(), max(cudas, default=""))
    info.unlink()  # it is a link to the file in the sources
    info.write_text(told)


def told_by_torch(record, cuda):
    """DeepSpeed's record of its build with the torch that the ops fit, which it compares with the
    torch that runs: the loader knows it."""
    changed, count = re.subn(r"(?m)^torch_info=(\{.*\})$", lambda m: f"torch_info={LOADER}.torch_info({m[1]}, {cuda!r})", record)
    if count != 1:
        sys.exit(f"error: DeepSpeed's record of its build (git_version_info_installed.py) has torch_info {count} times, not once")
    return f"from deepspeed import {LOADER}\n\n{changed}"
