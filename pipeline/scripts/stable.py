"""Builds ops over torch's stable ABI: one wheel for every torch from DSBUILD_TORCH_MIN on and
every Python (stable/ has the headers and the loader).

DeepSpeed's setup.py and torch's build_ext stay as they are. Here the extensions that they make
get other headers, flags, libraries and file names; variants.py adds the modules that load them.
"""
import os
import pathlib
import shutil
import sys

import torch

# The folders of torch's headers that a source may read: those of its stable ABI.
HEADERS = ("torch/headeronly", "torch/csrc/stable", "torch/csrc/inductor/aoti_torch/c", "torch/csrc/inductor/aoti_torch/generated")
# Of torch's libraries those with the C functions of that ABI. CUDA's runtime comes with torch.
LIBRARIES = ("torch_cpu", "torch_cuda", "cudart")


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
