"""What only a build has to know of an environment. Reads files, imports nothing
that is not in the standard library, writes nothing."""
import os
import re
import subprocess
import sys
import sysconfig

from dsbuild_node.controller import emit
from dsbuild_node.files import text


def package_dirs():
    """The path without the standard library: where packages lie."""
    own = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    own |= {os.path.join(p, "lib-dynload") for p in own}
    found = []
    for p in sys.path:
        if os.path.isdir(p) and os.path.realpath(p) not in own and p not in found:
            found.append(p)
    return found


def torch(places):
    """(version, ABI) as the files of the torch on the path say."""
    for place in places:
        home = os.path.join(place, "torch")
        version = re.search(r"^__version__\s*(?::[^=]*)?=\s*['\"]([^'\"]+)", text(os.path.join(home, "version.py")), re.M)
        if version:
            config = text(os.path.join(home, "share", "cmake", "Torch", "TorchConfig.cmake"))
            abi = re.search(r"_GLIBCXX_USE_CXX11_ABI=([01])", config)
            return version.group(1), abi.group(1) == "1" if abi else None
    return "", None


def nvcc():
    """The version of a CUDA toolkit in the prefix, as conda's packages put it there."""
    program = os.path.join(sys.prefix, "bin", "nvcc")
    if not os.access(program, os.X_OK):
        return ""
    try:
        said = subprocess.run([program, "-V"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20).stdout.decode("ascii", "replace")
    except (OSError, subprocess.SubprocessError):
        return ""
    release = re.search(r"release (\d+\.\d+),", said)
    return release.group(1) if release else ""


def has(module):
    import importlib.util

    return importlib.util.find_spec(module) is not None


def main():
    places = package_dirs()
    version, abi = torch(places)
    emit({
        "torch": version, "cxx11abi": abi, "sites": places, "nvcc": nvcc(), "machine": os.uname()[4],
        "header": os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")),
        "parts": [m for m in ("venv", "ensurepip", "pip") if has(m)],
    })
