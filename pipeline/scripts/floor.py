"""Links an extension so that it needs no newer C and C++ libraries than its torch does.

usage: floor.py COMPILER ARGUMENT...      a command with -shared
       DSBUILD_FLOOR: the newest versions that it may need: "GLIBC_2.28 GLIBCXX_3.4.24"

A linker takes the newest version of each symbol that the libraries of its machine have,
and what it links is refused where the libraries are older. Here a symbol that is too new
is asked for by its newest version that is not. One that has no such version is
defined in the extension, hidden: by floor.cc, or by a member of libstdc++.a.
What can be had neither way is linked as it is, and the audit names it.

The objects themselves stay as they are: the names are changed in copies.
"""
import collections
import os
import re
import subprocess
import sys
import tempfile

LIBRARIES = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1", "libstdc++.so.6")


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "LC_ALL": "C"}, text=True)
    if done.returncode:
        sys.exit(f"{done.stderr}error: {command[0]} failed; it links extensions for older libraries: exit code {done.returncode}")
    return done.stdout


def version(text):
    """GLIBC_2.34 as ("GLIBC", (2, 34)); what is no such version counts as none."""
    family, _, numbers = text.rpartition("_")
    return family, tuple(map(int, re.findall(r"\d+", numbers)))


def tool(compiler, name):
    """The program of binutils for the machine that a compiler is for."""
    return run(compiler, "-print-prog-name=" + name).strip()


class Libraries:
    """The versions of the symbols that the machine's C and C++ libraries have."""

    def __init__(self, compiler, floors):
        self.floors = dict(map(version, floors))
        self.versions, self.default = collections.defaultdict(set), {}
        for name in LIBRARIES:
            path = run(compiler, "-print-file-name=" + name).strip()
            if not os.path.isabs(path):
                continue
            for symbol, at, tag in re.findall(r" (\w+)(@@?)(\w+\.[\w.]+)$", run("readelf", "--dyn-syms", "-W", path), re.M):
                self.versions[symbol].add(tag)
                if at == "@@":
                    self.default[symbol] = tag

    def allows(self, tag):
        family, numbers = version(tag)
        return numbers <= self.floors.get(family, numbers)

    def too_new(self, symbol):
        return symbol in self.default and not self.allows(self.default[symbol])

    def older(self, symbol):
        """The symbol by its newest version that is allowed; "" where it has none."""
        allowed = [tag for tag in self.versions[symbol] if self.allows(tag)]
        return f"{symbol}@{max(allowed, key=version)}" if allowed else ""

    def instead(self, symbol):
        """What to ask for in place of a symbol that is too new; "" where there is nothing.
        The functions that read numbers as C23 does (glibc 2.38) differ from those before
        in taking 0b101, too."""
        plain = symbol[len("__isoc23_"):] if symbol.startswith("__isoc23_") else None
        for name in [symbol] if plain is None else [symbol, "__isoc99_" + plain, plain]:
            if name in self.default and not self.too_new(name):
                return name
            if self.older(name):
                return self.older(name)
        return ""


def symbols(file, nm):
    """The names that an object or an archive asks for, and those that it defines."""
    asked, defined = set(), set()
    for name, kind in re.findall(r"^(\S+) (\w)\b", run(nm, "-P", "-g", file), re.M):
        (asked if kind in "Uvw" else defined).add(name)
    return asked - defined, defined


class Link:
    """One extension being linked."""

    def __init__(self, compiler, folder, libraries):
        self.compiler, self.folder, self.libraries = compiler, folder, libraries
        self.copies, self.archived = 0, None
        self.nm, self.objcopy, self.ar = (tool(compiler, name) for name in ("nm", "objcopy", "ar"))
        self.given = set()  # names that floor.cc or a member of libstdc++.a defines

    def copy(self, file, defined):
        """A file with other names for what is too new, or itself where nothing is; and
        what of it has to be defined."""
        changed, lacking = [], set()
        for symbol in sorted(symbols(file, self.nm)[0] - defined):
            if self.libraries.too_new(symbol):
                instead = self.libraries.instead(symbol)
                if instead:
                    changed.append(f"{symbol} {instead}\n")
                else:
                    lacking.add(symbol)
        if not changed:
            return file, lacking
        self.copies += 1
        names, copy = os.path.join(self.folder, "names"), os.path.join(self.folder, f"{self.copies}-{os.path.basename(file)}")
        with open(names, "w") as f:
            f.writelines(changed)
        run(self.objcopy, "--redefine-syms=" + names, file, copy)
        return copy, lacking

    def define(self, lacking):
        """Files that define, hidden, what is lacking and can be defined."""
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "floor.cc")
        with open(source) as f:
            known = set(re.findall(r"^#ifdef NEED_(\w+)", f.read(), re.M))
        files = []
        while lacking - self.given:
            symbol = sorted(lacking - self.given)[0]
            self.given.add(symbol)
            if symbol in known:
                file = os.path.join(self.folder, f"floor-{len(self.given)}.o")
                run(self.compiler, "-std=gnu++11", "-O2", "-fPIC", "-fvisibility=hidden", "-DNEED_" + symbol, "-c", source, "-o", file)
            else:
                file = self.member(symbol)
            if file:
                asked, defined = symbols(file, self.nm)
                copy, more = self.copy(file, defined)
                files.append(copy)
                # Members of libstdc++.a ask each other for what the library does not export.
                lacking |= more | {name for name in asked if name not in self.libraries.versions and name in (self.archived or {})}
                self.given |= defined
        return files

    def member(self, symbol):
        """The member of libstdc++.a that defines a symbol, as a file of its own; "" where there is none."""
        archive = run(self.compiler, "-print-file-name=libstdc++.a").strip()
        if self.archived is None:
            self.archived = {}
            if os.path.isabs(archive):
                for member, name in re.findall(r"\[([^\]]+)\]: (\S+) [A-TV-Z]\b", run(self.nm, "-A", "-P", "-g", archive)):
                    self.archived.setdefault(name, member)
        member = self.archived.get(symbol)
        if not member:
            return ""
        file = os.path.join(self.folder, member)
        with open(file, "wb") as f:
            subprocess.run([self.ar, "p", archive, member], stdout=f, check=True)
        return file


def link(compiler, arguments, folder, floors):
    """The arguments of a command that links no newer symbols than the floors."""
    libraries = Libraries(compiler, floors)
    inputs = [a for a in arguments if a.endswith((".o", ".a")) and not a.startswith("-") and os.path.isfile(a)]
    # What follows -o is no input, though it may be called like one.
    inputs = [a for a in inputs if arguments[arguments.index(a) - 1] != "-o"]
    step, copies, lacking = Link(compiler, folder, libraries), {}, set()
    defined = set().union(*(symbols(file, step.nm)[1] for file in inputs))
    for file in inputs:
        copies[file], more = step.copy(file, defined)
        lacking |= more
    more = step.define(lacking)
    if more:
        archive = os.path.join(folder, "libfloor.a")
        run(step.ar, "rcD", archive, *more)
        more = [archive, "-Wl,--exclude-libs,libfloor.a"]
    return [copies.get(a, a) for a in arguments] + more


def main():
    compiler, *arguments = sys.argv[1:]
    with tempfile.TemporaryDirectory(dir=os.environ["DSBUILD_WORK"]) as folder:
        arguments = link(compiler, arguments, folder, os.environ["DSBUILD_FLOOR"].split())
        sys.exit(subprocess.call([compiler, *arguments]))


if __name__ == "__main__":
    main()
