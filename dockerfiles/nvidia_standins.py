"""Makes libraries that stand in for those of NVIDIA that torch is linked with, which take 2 GB and are not called without a GPU: with
the same names and the functions that torch's libraries ask for.

usage: nvidia_standins.py SITE-PACKAGES FOLDER      CC: the compiler
"""
import collections
import os
import pathlib
import re
import subprocess
import sys

SYSTEM = re.compile(r"(lib(c|m|dl|rt|pthread|z|gcc_s|stdc\+\+)\.so|ld-linux|libcuda\.so)")


def readelf(file, *what):
    return subprocess.run(["readelf", "-W", *what, file], stdout=subprocess.PIPE, text=True, check=True).stdout


def main():
    site, out = map(pathlib.Path, sys.argv[1:])
    part = out.with_suffix(".part")
    part.mkdir(parents=True, exist_ok=True)
    files = [*(site / "torch" / "lib").glob("*.so*"), *site.glob("nvidia/*/lib/*.so*")]
    there = {file.name for file in files}
    missing, asked, defined = set(), {}, set()
    for file in files:
        missing |= {n for n in re.findall(r"\(NEEDED\).*\[(.*)\]", readelf(file, "-d")) if n not in there and not SYSTEM.match(n)}
        for where, name, version in re.findall(r"(?:GLOBAL|WEAK) +\w+ +(?:\[.*?\] +)?(\w+) ([^\s@]+)(?:@+(\S+))?", readelf(file, "--dyn-syms")):
            if where != "UND":
                defined.add(name)
            else:
                asked[name] = version
    # A version is the name of the library. Other functions the loader looks for in all: each library has them, for a build beside torch
    # brings some of the real ones, which then stand before these.
    functions = collections.defaultdict(list)
    for name in sorted(asked.keys() - defined):
        if not re.match(r"(GLIBC|GLIBCXX|CXXABI|GCC|GOMP|OMP)_", asked[name]) and re.match(r"p?(nccl|cu|nv)", name):
            for library in {asked[name]} & missing or missing:
                functions[library].append(name)
    for library in sorted(missing):
        source, script = part / "source.c", part / "versions"
        source.write_text("#include <stdlib.h>\n" + "".join(f"void {name}(void) {{ abort(); }}\n" for name in functions[library]))
        versions = sorted({asked[name] for name in functions[library]} - {""})
        script.write_text("".join(f"{v} {{ global: {'; '.join(n for n in functions[library] if asked[n] == v)}; }};\n" for v in versions))
        options = [f"-Wl,--version-script={script}"] if versions else []
        subprocess.run([os.environ["CC"], "-shared", "-fPIC", "-O1", "-w", "-s", f"-Wl,-soname,{library}", *options, "-o", part / library, source], check=True)
        print(f"{library}: {len(functions[library])} functions")
    part.rename(out)


if __name__ == "__main__":
    main()
