"""Device code of ops, read from the cubins in their libraries.

    devicecode.py kernels LIBRARY …   a line for each kernel: mangled name, registers, size of each parameter in bytes
    devicecode.py compare A B cu13   compares the ops of two unpacked wheels for a CUDA, kernel by kernel; JSON

Two kernels are the same if everything that a launch depends on is the same to the last bit: code,
relocations, constant banks, attributes (.nv.info), registers, barriers, the ELF file's flags. PTX is compared as
text. cuobjdump (on the PATH) extracts the cubins from a library. The format is ELF; cuobjdump -elf prints the
attributes in .nv.info."""

import collections
import hashlib
import json
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

# nvcc puts hashes of the compiler's run, and sometimes its process's number, into names of static objects:
# _INTERNAL_1a2b3c4d_13_dequantize_cu_5e6f7a8b_627.
OF_THE_RUN = re.compile(r"\d*(_INTERNAL_|_GLOBAL__N__)[0-9a-f]{8}_(\d+)_(\w+?_cu)_[0-9a-f]{8}(?:_\d+(?=\d[A-Za-z]|\d\d_GLOBAL__N_))?")

SECTION = struct.Struct("<IIQQQQIIQQ")
SECTION_FIELDS = "name kind flags address offset size link info alignment entry_size"
SYMBOL = struct.Struct("<IBBHQQ")
RELA, NOBITS, REL = 4, 8, 9  # kinds of sections

# Attributes of .nv.info: the size of a parameter, and those whose value begins with the number of a symbol.
PARAMETER_INFO = 0x17
NAMES_A_SYMBOL = {0x02, 0x0A, 0x0F, 0x11, 0x12, 0x23, 0x2F, 0x43, 0x44, 0x46}
SIZED = 4  # format of an attribute: a payload of as many bytes as its value says

Section = collections.namedtuple("Section", SECTION_FIELDS)
Symbol = collections.namedtuple("Symbol", "name info other section value size")


# thrust names a namespace after the archs of the build; its length stands before it: thrust16_V_300200_SM_800.
OF_THE_ARCHS = re.compile(r"(\d+)_V_\d+_SM_")


def without_run(name):
    """Return a name without its parts that identify a compiler run or the archs of the build."""
    name, at = OF_THE_RUN.sub(r"\1_\2_\3", name), 0
    while found := OF_THE_ARCHS.search(name, at):
        at = found.start() + len("_V_SM")
        name = name[: found.start()] + "_V_SM" + name[found.end(1) + int(found[1]) :]
    return name


class Cubin:
    """An ELF file of device code for one arch."""

    def __init__(self, data):
        self.data = data
        (self.machine,) = struct.unpack_from("<H", data, 18)
        table, self.flags = struct.unpack_from("<QI", data, 40)
        _, count, names = struct.unpack_from("<HHH", data, 58)
        raw = [Section(*SECTION.unpack_from(data, table + i * SECTION.size)) for i in range(count)]
        self.sections = [s._replace(name=self._text(raw[names].offset + s.name)) for s in raw]
        self.by_name = {s.name: s for s in self.sections}
        symbols = self.by_name[".symtab"]
        strings = self.sections[symbols.link].offset
        raw = [Symbol(*SYMBOL.unpack_from(data, at)) for at in range(symbols.offset, symbols.offset + symbols.size, SYMBOL.size)]
        self.symbols = [s._replace(name=self._text(strings + s.name)) for s in raw]

    def _text(self, at):
        return self.data[at : self.data.index(b"\0", at)].decode()

    def content(self, section):
        return b"" if section.kind == NOBITS else self.data[section.offset : section.offset + section.size]

    def symbol_name(self, number):
        """Return the name of a symbol, or its section's name for a section symbol."""
        symbol = self.symbols[number]
        return without_run(symbol.name or self.sections[symbol.section].name)

    def relocations(self, section):
        """Return (offset, kind, symbol, addend) of each relocation of a section."""
        index, found = self.sections.index(section), []
        for s in self.sections:
            if s.kind not in (REL, RELA) or s.info != index or not s.name.startswith((".rel.", ".rela.")):
                continue
            for at in range(s.offset, s.offset + s.size, 24 if s.kind == RELA else 16):
                offset, info = struct.unpack_from("<QQ", self.data, at)
                addend = struct.unpack_from("<q", self.data, at + 16)[0] if s.kind == RELA else 0
                found.append((offset, info & 0xFFFFFFFF, self.symbol_name(info >> 32), addend))
        return sorted(found)

    def attributes(self, name):
        """Return (attribute, symbol or None, payload) of a .nv.info section, or [] if it does not exist."""
        data, at, found = self.content(self.by_name[name]) if name in self.by_name else b"", 0, []
        while at < len(data):
            form, attribute, value = struct.unpack_from("<BBH", data, at)
            at += 4
            symbol, payload = None, value
            if form == SIZED:
                payload = data[at : at + value]
                at += value
                if attribute in NAMES_A_SYMBOL and len(payload) >= 4:
                    (number,) = struct.unpack_from("<I", payload)
                    symbol, payload = self.symbol_name(number) if number < len(self.symbols) else number, payload[4:]
            found.append((attribute, symbol, payload))
        return found

    def kernel_names(self):
        return [s.name.removeprefix(".text.") for s in self.sections if s.name.startswith(".text.")]

    def is_entry(self, name):
        """Return whether the host can launch it. A device function has no attribute section."""
        return ".nv.info." + name in self.by_name

    def registers(self, name):
        return self.by_name[".text." + name].info >> 24

    def parameter_sizes(self, name):
        sizes = {}
        for attribute, _, payload in self.attributes(".nv.info." + name):
            if attribute == PARAMETER_INFO:
                _, ordinal, _, bits = struct.unpack("<IHHI", payload)
                sizes[ordinal] = bits >> 18
        return [sizes[ordinal] for ordinal in sorted(sizes)]

    def kernel(self, name):
        """Return everything that a launch of a kernel depends on."""
        text = self.by_name[".text." + name]
        banks = {}
        for s in self.sections:
            prefix = s.name.removesuffix("." + name)
            if prefix != s.name and s != text and not prefix.startswith((".rel", ".debug", ".nv.info", ".nv.merc")):
                banks[prefix] = (s.size, s.kind, self.content(s), self.relocations(s))
        symbol = next(s for s in self.symbols if s.name == name)
        return {
            "code": self.content(text),
            "relocations": self.relocations(text),
            "registers": text.info >> 24,
            "barriers": text.flags >> 20,
            "symbol": (symbol.info, symbol.other, symbol.size),
            "attributes": self.attributes(".nv.info." + name),
            "attributes of the file": [(a, p) for a, s, p in self.attributes(".nv.info") if s == without_run(name)],
            "banks": banks,
            "file": (self.machine, self.flags),
        }

    def variables(self):
        """Yield data that is shared by kernels, and address tables."""
        for s in self.symbols:
            if s.info & 15 == 1 and s.section < len(self.sections):
                section = self.sections[s.section]
                start = section.offset + s.value
                yield without_run(s.name), (section.name, s.size, b"" if section.kind == NOBITS else self.data[start : start + s.size])
        for name in (".nv.constant3", ".nv.constant4"):
            if name in self.by_name:
                section = self.by_name[name]
                yield name, (self.content(section), self.relocations(section))


def extracted(library, kind):
    """Return the (name, bytes) of each file that cuobjdump extracts from a library. kind is elf or ptx."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["cuobjdump", f"-x{kind}", "all", pathlib.Path(library).resolve()], cwd=folder, capture_output=True, text=True
        )
        files = sorted(pathlib.Path(folder).iterdir(), key=lambda f: [int(n) for n in re.findall(r"\.(\d+)\.", f.name)])
        if done.returncode and files:
            sys.exit(f"cuobjdump {library}: {done.stderr.strip()}")
        return [(f.name, f.read_bytes()) for f in files]


def cubins(library):
    """Return the (arch, Cubin) of each device code file, in the library's order."""
    return [(re.search(r"\.(sm_\w+)\.cubin$", name)[1], Cubin(data)) for name, data in extracted(library, "elf")]


def print_kernels(libraries):
    rows = {}
    for library in libraries:
        for _, cubin in cubins(library):
            for name in filter(cubin.is_entry, cubin.kernel_names()):
                rows[name] = [cubin.registers(name), *cubin.parameter_sizes(name)]
    for name in sorted(rows):
        print(name, *rows[name])


def ops_of(wheel, cuda):
    """Return the libraries of an unpacked wheel by op, for one CUDA if an op has libraries for two.

    libfused_adam_op.cu13.so, libfused_adam_op.so and fused_adam_op.cpython-311-….so are the same op."""
    found = {}
    for path in pathlib.Path(wheel).glob("deepspeed/**/*.so"):
        name, variant = path.name.split(".")[:2]
        if not variant.startswith("cu") or variant == cuda:
            # DeepSpeed writes deepspeed.inference.v2.kernels and inference_core_ops without a dot between them.
            found[name.removeprefix("lib").removeprefix("kernels").removesuffix("_op")] = path
    return found


def gathered(library):
    """Return a library's kernels by arch and name, variables and PTX."""
    kernels, variables = collections.defaultdict(list), collections.Counter()
    for arch, cubin in cubins(library):
        for name in cubin.kernel_names():
            kernels[arch, without_run(name)].append(cubin.kernel(name))
        variables.update((arch, name, repr(value)) for name, value in cubin.variables())
    return kernels, variables, sorted(without_run(data.decode()) for _, data in extracted(library, "ptx"))


def compare_op(first, second):
    """Return statistics of two builds of an op, and a description of each difference."""
    (a, a_variables, a_ptx), (b, b_variables, b_ptx) = gathered(first), gathered(second)
    same, size, digest, differences = 0, 0, hashlib.sha256(), []
    for arch, name in sorted(a.keys() | b.keys()):
        ours, theirs = a.get((arch, name), []), b.get((arch, name), [])
        if len(ours) != len(theirs):
            differences.append(f"{arch} {name}: {len(ours)} times in the first, {len(theirs)} in the second")
        for one, other in zip(ours, theirs):
            parts = [part for part in one if one[part] != other[part]]
            if parts:
                differences.append(f"{arch} {name}: {', '.join(parts)}")
                continue
            same += 1
            size += len(one["code"])
            digest.update(one["code"])
    differences += [f"variable {arch} {name} is not in both" for arch, name, _ in (a_variables - b_variables) + (b_variables - a_variables)]
    if a_ptx != b_ptx:
        differences.append(f"PTX: {len(a_ptx)} texts in the first, {len(b_ptx)} in the second, or others")
    return {
        "kernels": sum(map(len, a.values())),
        "same": same,
        "bytes": size,
        "sha256": digest.hexdigest(),
        "ptx": len(a_ptx),
        "differences": differences,
    }


def compare(first, second, cuda):
    a, b = ops_of(first, cuda), ops_of(second, cuda)
    return {
        op: compare_op(a[op], b[op]) if op in a and op in b else {"differences": ["is in one wheel alone"]}
        for op in sorted(a.keys() | b.keys())
    }


if __name__ == "__main__":
    if sys.argv[1] == "kernels":
        print_kernels(sys.argv[2:])
    else:
        json.dump(compare(*sys.argv[2:]), sys.stdout, indent=1)
