"""Loads the machine code of installed packages, each in a separate process with bounds on time and memory, as a job that
imports them would. Writes nothing, not even byte code."""
import os
import re
import signal
import sys
import time

from dsbuild_node.controller import REQUEST, emit
from dsbuild_node.distributions import named_infos
from dsbuild_node.files import content
from dsbuild_node.ops import without_compiler
from dsbuild_node.record import record_rows

ONE_LIMIT, ALL_LIMIT = 120, 400  # seconds for a package, and for all
MEMORY = 16 << 30  # bytes of data of one process
MOST = 4  # findings of one package that are reported
# Libraries of drivers, fast networks and MPI: a node may lack what they are for.
OF_HARDWARE = re.compile(r"lib(cuda|nvidia-[a-z]+|nvcuvid|gdrapi|mpi\w*|pmix?2?|ibverbs|rdmacm|mlx[45]|efa|fabric|psm2|uc[pstm]|cufile\w*)\.so")
# Libraries of other makers' GPUs, for which packages have builds, too.
OF_OTHERS = re.compile(r"lib(amdhip|hip|roc|rccl|MIOpen|amd|sycl|ze_loader|musa|ascend)")
MISSING = re.compile(r"([^\s:/]+\.so[.\w]*): cannot open shared object file")
UNDEFINED = re.compile(r"undefined symbol: (\S+)")
VERSION = re.compile(r"version [`'](\S+)' not found")
LOADER = re.compile("|".join(r.pattern for r in (MISSING, UNDEFINED, VERSION)))  # the loader's words, in whatever exception
OF_TORCH = re.compile(r"(aoti_)?torch_|_Z(T[ISVTC]|GV)?N[rVKRO]*(2at|3c10|4c10d|5torch|6caffe2)[0-9A-Z]")
WITHOUT_TORCH = re.compile(r"lib(torch|c10)\w*\.so")


class Package:
    """The machine code of a distribution."""

    def __init__(self, name, info):
        from importlib.machinery import EXTENSION_SUFFIXES

        self.name, self.files, tops = name, [], set()
        site = os.path.dirname(info)
        for row in record_rows(info) or []:
            path, base = os.path.join(site, row[0]), os.path.basename(row[0])
            if row[0].startswith("..") or not (base.endswith(".so") or ".so." in base) or content(path, 4) != b"\x7fELF":
                continue
            if ".cpython-" in base and not base.endswith(EXTENSION_SUFFIXES[0]):
                continue  # for another Python
            module = base.endswith(".so") and not base.startswith("lib")
            self.files.append((path, row[0], module))
            top = row[0].split("/")[0]
            if top != base and os.path.isfile(os.path.join(site, top, "__init__.py")):
                tops.add(top)
            elif top == base and module:
                tops.add(base.split(".")[0])
        if self.files and os.path.isfile(os.path.join(site, name.replace("-", "_"), "__init__.py")):
            tops.add(name.replace("-", "_"))
        self.tops = sorted(tops)

    def load(self, owned, say):
        """Import the package and load its libraries. Call say with the kind of a finding and words."""
        import ctypes
        import importlib

        def load_library(path, owned, most=20):
            """Load a library, after the libraries of the environment that it needs and the loader does not find:
            packages load these first."""
            try:
                ctypes.CDLL(path)
            except OSError as e:
                first = owned.get((MISSING.findall(str(e)) or [""])[0])
                if not first or not most:
                    raise
                load_library(first, {n: p for n, p in owned.items() if p != first}, most - 1)
                load_library(path, owned, most - 1)

        def with_torch(do):
            """Call do. If it needs torch's libraries, as most extensions of torch do, import torch and call do again."""
            try:
                return do()
            except (ImportError, OSError) as e:
                if not WITHOUT_TORCH.search(str(e)) and not any(OF_TORCH.match(s) for s in UNDEFINED.findall(str(e))):
                    raise
            try:
                importlib.import_module("torch")
            except ImportError:
                pass
            return do()

        broken = False  # an import has failed, and the words may not say for which library
        for top in self.tops:
            say("doing", "import %s" % top)
            try:
                with_torch(lambda: importlib.import_module(top))
            except BaseException as e:
                of_loader = isinstance(e, (ImportError, OSError)) and not isinstance(e, ModuleNotFoundError) or LOADER.search(str(e))
                kind = judge(str(e), True, owned, imports=True) if of_loader else "note"
                broken = broken or of_loader and not OF_HARDWARE.search(str(e))
                say(kind, "import %s: %s: %s" % (top, type(e).__name__, shortened(str(e))))
        say("doing", "")  # a library that nothing has imported may end this process
        alike = {}  # the words about each library, by its name without numbers: torchcodec has one for each FFmpeg
        for path, short, module in self.files:
            group, words = alike.setdefault(re.sub(r"\d+", "", short), {}), None
            try:
                with_torch(lambda: load_library(path, owned))
            except OSError as e:
                words = str(e).replace(path + ": ", "")
                kind = judge(str(e), module, owned, imports=broken)
                if kind:
                    say(kind, "%s: %s" % (short, words))
            group[short] = None if module else words
        for group in alike.values():
            if len(group) > 1 and all(words and MISSING.search(words) and not OF_OTHERS.search(words) for words in group.values()):
                say("note", "%s and %d like it cannot be loaded: %s" % (max(group), len(group) - 1, group[max(group)]))


def shortened(words):
    """The words of an exception, of long ones the beginning and what the loader said."""
    words, of_loader = " ".join(words.split()), LOADER.search(words)
    return words if len(words) < 300 or not of_loader else "%s ... %s" % (words[:120], of_loader.group())


def judge(words, module, owned, imports=False):
    """Whether the loader's words about an import, a module or another library are an error, a note or, for another library, nothing:
    what loads it later may define its symbols, and most such parts of a package are not needed by an import of it."""
    undefined, missing = UNDEFINED.search(words), MISSING.search(words)
    if undefined and OF_TORCH.match(undefined.group(1)):
        return "error"
    if not module:
        return ""
    if undefined or VERSION.search(words):
        return "error"
    if missing and not OF_HARDWARE.match(missing.group(1)) and (imports or missing.group(1) in owned):
        return "error"
    return "note"


def child(package, owned, out):
    """Load a package in this new process, and write lines to out."""
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)

    def say(kind, words):
        os.write(out, ("%s\t%s\n" % (kind, " ".join(words.split())[:600])).encode("utf-8", "backslashreplace"))

    package.load(owned, say)
    say("done", "")


def load(package, owned, limit):
    """The findings about a package: pairs of kind and words."""
    import select

    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(ours)
            os.setpgid(0, 0)
            child(package, owned, theirs)
        except BaseException:
            os._exit(1)
        os._exit(0)
    os.close(theirs)
    data, end, late = b"", time.monotonic() + limit, False
    while True:
        left = end - time.monotonic()
        late = left <= 0 or not select.select([ours], [], [], left)[0]
        more = b"" if late else os.read(ours, 1 << 16)
        if not more:
            break
        data = (data + more)[:1 << 20]
    os.close(ours)
    try:
        os.kill(-pid, signal.SIGKILL)  # with all that an import has started
    except OSError:
        pass
    status = os.waitpid(pid, 0)[1]
    said = [tuple(line.split("\t", 1)) for line in data.decode("utf-8", "replace").splitlines() if "\t" in line]
    found, doing = [s for s in said if s[0] in ("error", "note")], ([""] + [w for k, w in said if k == "doing"])[-1]
    if late:
        found.append(("note", "%s did not end within %d s" % (doing or "loading its libraries", limit)))
    elif os.WIFSIGNALED(status) and ("done", "") not in said:
        number = os.WTERMSIG(status)
        ill = number == signal.SIGILL
        if ill or doing:
            found.append(("error", "%s: killed by signal %d%s" % (doing or "loading its libraries", number, ", an instruction that this CPU does not have" if ill else "")))
    return found


def load_all(names):
    """Load the packages with machine code among these names. Return errors and notes, in words."""
    infos = dict(named_infos())
    packages = [p for p in (Package(name, infos[name]) for name in sorted(names) if name in infos) if p.files]
    owned = {os.path.basename(path): path for p in (Package(n, i) for n, i in infos.items()) for path, _, _ in p.files}
    result, end = {"error": [], "note": []}, time.monotonic() + ALL_LIMIT
    for package in packages:
        emit({"package": package.name})
        left = end - time.monotonic()
        found = load(package, owned, min(ONE_LIMIT, left)) if left > 0 else [("note", "not loaded: the packages before it took %d s" % ALL_LIMIT)]
        for kind in result:
            result[kind] += ["%s: %s" % (package.name, words) for k, words in found if k == kind][:MOST]
    return result


def main():
    sys.dont_write_bytecode = True
    result = without_compiler(lambda: load_all(REQUEST["packages"]))
    emit({"loaded": {"errors": result["error"][:20], "notes": result["note"][:20]}})
