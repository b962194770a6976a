"""Build the stand-ins for CUDA's libraries: build.py SITE-PACKAGES FOLDER.

SITE-PACKAGES holds torch and NVIDIA's packages for its CUDA, which provide the headers. Each
function that a library exports and a stand-in lacks becomes a stub that prints its name and fails.
FOLDER gets libcudart.so, libcublas.so and libcurand.so with the number of NVIDIA's libraries, and libcuda.so.1."""

import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent / "lib"
FLAGS = [
    "-O1",
    "-g",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-builtin-declaration-mismatch",
    "-Wno-unused-value",
    "-fPIC",
    "-fvisibility=hidden",
]


def exported(library, *options):
    """Return the functions that a library exports, or that an object defines."""
    lines = subprocess.run(["nm", *options, "--defined-only", library], capture_output=True, text=True, check=True).stdout.splitlines()
    return {words[2].split("@")[0] for words in map(str.split, lines) if words[1] in "TW"} - {"_init", "_fini"}


def wanted_of_driver(site):
    """Return the driver functions that torch is linked with."""
    lines = subprocess.run(
        ["nm", "-D", "--undefined-only", site / "torch/lib/libcaffe2_nvrtc.so"], capture_output=True, text=True, check=True
    ).stdout
    return set(re.findall(r"\b(cu[A-Z]\w+)", lines))


def build(folder, source, soname, functions, missing, *, include=(), links=()):
    """Compile a stand-in, with stubs for the functions that its source lacks."""
    compiled = folder / f"{source}.o"
    subprocess.run(["gcc", *FLAGS, *(f"-I{i}" for i in include), "-c", HERE / source, "-o", compiled], check=True)
    stubs = folder / f"stubs_{source}"
    lines = [
        f'__attribute__((visibility("default"))) int {name}(void) {{ return {missing}("{name}"); }}'
        for name in sorted(functions - exported(compiled))
    ]
    stubs.write_text(f"int {missing}(const char *);\n" + "\n".join(lines) + "\n")
    # torch asks for symbols of a version that is the library's soname.
    exports = folder / f"{source}.map"
    exports.write_text(f"{soname} {{ global: cu*; __cuda*; fakecuda_*; local: *; }};\n")
    version = [] if soname == "libcuda.so.1" else [f"-Wl,--version-script={exports}"]
    subprocess.run(
        ["gcc", *FLAGS, "-shared", f"-Wl,-soname,{soname}", *version, compiled, stubs, "-o", folder / soname, *links, "-lpthread"],
        check=True,
    )


def main(site, folder):
    folder.mkdir(parents=True, exist_ok=True)
    include = sorted(site.glob("nvidia/*/include"))
    links = []
    for name, missing in ("cudart", "runtime_missing"), ("cublas", "cublas_missing"), ("curand", "curand_missing"):
        (library,) = site.glob(f"nvidia/*/lib/lib{name}.so.*")
        build(folder, f"{name}.c", library.name, exported(library, "-D"), missing, include=include, links=links)
        links = links or [folder / library.name]  # the others call the runtime
    build(folder, "cuda.c", "libcuda.so.1", wanted_of_driver(site), "cuda_missing", links=links)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
