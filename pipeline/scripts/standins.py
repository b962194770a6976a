"""Makes what ops for another machine are linked with, where the libraries of torch and CUDA are of this machine: libraries without
code. They have the names, functions and versions of functions of those that are here, which are the same on every machine for the
C functions that ops of torch's stable ABI use. Nodes have the real libraries.

usage: standins.py FOLDER
"""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

import stable


def readelf(library, *what):
    return subprocess.run(["readelf", "-W", *what, library], stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "LC_ALL": "C"}).stdout


def functions(library, names):
    """The functions that a library exports, of those whose names match, each with its version or ""."""
    exported = re.findall(r" (?:FUNC|IFUNC) +(?:GLOBAL|WEAK) +DEFAULT +\d+ ([A-Za-z_]\w*)(?:@@(\S+))?$", readelf(library, "--dyn-syms"), re.M)
    return sorted({(name, version) for name, version in exported if re.match(names, name)})


def make(library, names, out):
    """Writes what stands in for a library as lib<out>.so."""
    soname = re.search(r"\(SONAME\).*\[(.*)\]", readelf(library, "-d"))[1]
    have = functions(library, names)
    source, script = out.with_suffix(".c"), out.with_suffix(".map")
    source.write_text("".join(f"void {name}(void) {{}}\n" for name, _ in have))
    versions = {version: [name for name, of in have if of == version] for _, version in have if version}
    script.write_text("".join(f"{version} {{ global: {'; '.join(of)}; }};\n" for version, of in sorted(versions.items())))
    options = [f"-Wl,-soname,{soname}", *([f"-Wl,--version-script={script}"] if versions else [])]
    subprocess.run([os.environ["DSBUILD_CC"], "-shared", "-fPIC", "-w", "-fno-builtin", "-s", "-nostdlib", *options, "-o", out, source], check=True)
    return f"{out.name} stands in for {soname}: {len(have)} functions"


# CUDA are the libraries of CUDA that ops use beside its runtime.
CUDA = ("cublas", "cublasLt", "cufile", "curand")


def main():
    folder = pathlib.Path(sys.argv[1])
    torch, cuda = pathlib.Path(stable.torch_include()).parent / "lib", pathlib.Path(os.environ["CUDA_HOME"], "lib64")
    jobs = []
    for name in (*stable.LIBRARIES, *CUDA):
        library = torch / f"lib{name}.so"
        # torch's C++ functions are not offered: an op that uses one would not link.
        names = r"(aoti_torch|torch)_" if library.exists() else ""
        if not library.exists():
            library = cuda / f"lib{name}.so"
        if library.exists():
            jobs.append((library, names, folder / f"lib{name}.so"))
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for line in pool.map(lambda job: make(*job), jobs):
            print(line)


if __name__ == "__main__":
    main()
