# What only the node's Python knows. Reads files and package metadata, imports
# nothing that is not in the standard library, writes nothing.
NETWORK = ("nfs", "nfs4", "lustre", "beegfs", "ceph", "cifs", "smb3", "gpfs", "glusterfs", "fuse.glusterfs",
           "fuse.sshfs", "afs", "orangefs", "wekafs", "fuse.juicefs", "fuse.ceph", "panfs")


def unescape(s):
    """A path as mountinfo writes it."""
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\043", "#"), ("\\134", "\\")):
        s = s.replace(code, char)
    return s


def mount_of(path):
    """(file system type, source) of the mount that holds path."""
    best = ("", "", "")
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as f:
            for line in f:
                left, _, right = line.rstrip("\n").partition(" - ")
                point = unescape(left.split(" ")[4])
                kind, source = right.split(" ")[:2]
                inside = path == point or path.startswith(point.rstrip("/") + "/")
                # Of two mounts on one point the later hides the earlier.
                if inside and len(point) >= len(best[0]):
                    best = (point, kind, unescape(source))
    except (OSError, ValueError, IndexError):
        pass
    return best[1], best[2]


def machine():
    """A name of the running kernel, equal in every container on it."""
    for path in ("/proc/sys/kernel/random/boot_id", "/etc/machine-id"):
        try:
            with open(path) as f:
                return f.read().strip()
        except OSError:
            pass
    return os.uname()[1]


def site_id(path):
    """Equal on two nodes exactly if they see one and the same directory there.

    Inode and device numbers repeat from machine to machine, so a local file
    system counts with its kernel; a network one with its server."""
    try:
        st = os.stat(path)
    except OSError:
        return ""
    kind, source = mount_of(path)
    if kind in NETWORK and source:
        return "%s:%s:%d" % (kind.rstrip("34"), source, st.st_ino)
    return "local:%s:%d:%d" % (machine(), st.st_dev, st.st_ino)


def free(path):
    """Bytes that this user may still write at path or, if it is not there, above it."""
    while not os.path.isdir(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    try:
        st = os.statvfs(path)
    except OSError:
        return 0
    return st.f_bavail * st.f_frsize


def text(path):
    """The beginning of a text file, "" where there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read(1 << 20)
    except OSError:
        return ""


def blocks(path, overlap=256):
    """A file of at most 16 MB in blocks, each with the end of the one before."""
    try:
        with open(path, "rb", buffering=0) as f:
            tail = b""
            for _ in range(256):
                block = f.read(1 << 16)
                if not block:
                    return
                yield tail + block
                tail = block[-overlap:]
    except OSError:
        pass


def listed(path):
    """The names in a directory, in order; none where there is none."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def constants(path):
    """Name → value of what a Python file assigns, where that is written out. The
    file is parsed, not run."""
    try:
        tree = compile(text(path), path, "exec", 0x400, True)  # ast.PyCF_ONLY_AST, without the import of ast
    except Exception:  # whatever a broken file makes of the parser
        return {}
    found = {}
    for node in tree.body:
        if type(node).__name__ in ("Assign", "AnnAssign"):
            for target in getattr(node, "targets", None) or [node.target]:
                found[getattr(target, "id", None)] = constant(node.value)
    return found


def constant(node):
    """The value of an expression, None if it is not written out."""
    kind = type(node).__name__
    if kind == "Constant":
        return node.value
    if kind == "Dict":
        return {constant(k): constant(v) for k, v in zip(node.keys, node.values)}
    return None


def words(value):
    """A version as text; "" for none, which DeepSpeed writes as 0.0."""
    return str(value) if isinstance(value, (str, int, float)) and str(value) != "0.0" else ""


def torch_build():
    """(directory, version, CUDA) as torch/version.py on the path says; torch is not imported."""
    for place in sys.path:
        home = os.path.join(place, "torch")
        found = constants(os.path.join(home, "version.py")) if os.path.isdir(home) else {}
        if found.get("__version__"):
            return home, words(found["__version__"]).split("+")[0], words(found.get("cuda"))
    return "", "", ""


def cxx11abi(torch):
    """Which std::string torch uses: True for the new one, None if unknown. Its CMake
    file says so up to 2.6; later ones name a constructor that takes one."""
    config = text(os.path.join(torch, "share", "cmake", "Torch", "TorchConfig.cmake"))
    _, said, value = config.partition("_GLIBCXX_USE_CXX11_ABI=")
    if said and value[:1] in ("0", "1"):
        return value[:1] == "1"
    symbol = b"_ZN3c105ErrorC2ENS_14SourceLocationE"
    for data in blocks(os.path.join(torch, "lib", "libc10.so")):
        _, there, rest = data.partition(symbol)
        if there and len(rest) > 16:
            return True if rest.startswith(b"NSt7__cxx11") else False if rest.startswith(b"Ss") else None
    return None


def head_of(path):
    """What the ELF header of a library says of its machine."""
    try:
        with open(path, "rb") as f:
            head = f.read(20)
    except OSError:
        return b""
    return head[:6] + head[18:20] if head.startswith(b"\x7fELF") else b""


def cached(name):
    """Where the loader's cache says a library is, the first to be tried first."""
    data = b"".join(block[256 if i else 0:] for i, block in enumerate(blocks("/etc/ld.so.cache")))
    base = max(0, data.find(b"glibc-ld.so.cache"))  # offsets count from here
    found, at = [], 0
    wanted = b"/" + name.encode("ascii") + b"\0"
    while True:
        at = data.find(wanted, at)
        if at < 0:
            return [path for _, path in sorted(found)]
        start = data.rfind(b"\0", 0, at) + 1
        # An entry holds the offset of its path; entries are in the order of preference.
        entry = data.find((start - base).to_bytes(4, sys.byteorder), base)
        found.append((entry, os.fsdecode(data[start:at + len(wanted) - 1])))
        at += 1


def library(name):
    """The file that the loader takes for a library when this Python loads it, or "":
    conda's own, what LD_LIBRARY_PATH names, then the system's."""
    conda = [os.path.join(p, "lib") for p in (sys.prefix, sys.base_prefix) if os.path.isdir(os.path.join(p, "conda-meta"))]
    named = [p for p in os.environ.get("LD_LIBRARY_PATH", "").split(":") if p]
    mine = head_of("/proc/self/exe") or head_of(sys.executable)
    for path in [os.path.join(p, name) for p in conda + named] + cached(name) + \
            [os.path.join(p, name) for p in ("/lib64", "/usr/lib64", "/lib", "/usr/lib")]:
        if os.path.isfile(path) and head_of(path) == mine:
            return path
    return ""


def newest_glibcxx():
    """The newest symbol version that the C++ library offers, "" if that is unknown."""
    best, prefix = (), b"GLIBCXX_3."
    for data in blocks(library("libstdc++.so.6")):
        at, seen = data.find(prefix), False
        while at >= 0:
            version = data[at + len(prefix) - 2:at + 32].split(b"\0")[0].split(b".")
            if data.find(b"\0", at, at + 32) > 0 and all(v.isdigit() for v in version):
                best, seen = max(best, tuple(int(v) for v in version)), True
            at = data.find(prefix, at + 1)
        if best and not seen:
            break  # they stand side by side
    return ".".join(str(v) for v in best)


def nccl(torch, cuda, dists):
    """The version of the NCCL that torch uses, "" if that is unknown."""
    if not torch:
        return ""
    packages = sorted(n for n in dists if n.startswith("nvidia-nccl-cu"))
    for name in ["nvidia-nccl-cu" + cuda.split(".")[0]] + packages:
        if name in dists:
            return dists[name]
    files = [n for n in listed(os.path.join(sys.prefix, "conda-meta")) if n.startswith("nccl-")]
    if files:
        return files[-1].split("-")[1]
    beside = [os.path.join(torch, "lib", n) for n in listed(os.path.join(torch, "lib")) if n.startswith("libnccl.so.2")]
    for path in beside + ([library("libnccl.so.2")] if cuda else []):
        version = os.path.basename(os.path.realpath(path)).partition("libnccl.so.")[2]
        if version.count("."):
            return version
    return ""


def build_record(package):
    """(ops, build) of DeepSpeed's own record of how it was compiled; build is None where there is none."""
    found = constants(os.path.join(package, "git_version_info_installed.py"))
    ops, torch = found.get("installed_ops"), found.get("torch_info")
    ops = sorted(str(k) for k, v in ops.items() if v) if isinstance(ops, dict) else []
    if not isinstance(torch, dict):
        return ops, None
    return ops, {"torch": words(torch.get("version")), "cuda": words(torch.get("cuda_version")),
                 "nccl": words(torch.get("nccl_version")), "accelerator": words(found.get("accelerator_name"))}


def distributions():
    """Name → version of what is importable, the first on the path winning."""
    found = {}
    for place in sys.path:
        if os.path.isfile(place):
            pairs = zipped(place)
        else:
            egg = place.lower().endswith(".egg")
            pairs = [metadata_of(os.path.join(place, entry)) for entry in listed(place)
                     if entry.lower().endswith((".dist-info", ".egg-info")) and not entry.startswith("~") or egg and entry.lower() == "egg-info"]
        for name, version in pairs:
            if name and version:
                found.setdefault(normal(name), version)
    return found


def zipped(place):
    """(name, version) of what an archive on the path holds."""
    from importlib import metadata

    found = []
    for dist in metadata.distributions(path=[place]):
        try:
            found.append((dist.metadata["Name"], dist.version))
        except Exception:  # one broken dist-info must not hide the rest
            pass
    return found


def along():
    """Name → sha256 of the wheels that dsbuild installed with DeepSpeed, those
    that nobody has replaced since."""
    noted = load_json(os.path.join(sys.prefix, ".dsbuild", "installed.json"))
    wheels = noted.get("along", []) if isinstance(noted, dict) else []
    names = [w["name"] for w in wheels]
    now = {name: record_sha256(info) for name, info in named_infos() if name in names} if names else {}
    return {w["name"]: w["sha256"] for w in wheels if w["record"] and now.get(w["name"]) == w["record"]}


def pip_version(places):
    """The version of the pip inside the environment, "" if it has none."""
    for place in places:
        if os.path.isfile(os.path.join(place, "pip", "__main__.py")):
            return words(constants(os.path.join(place, "pip", "__init__.py")).get("__version__")) or "unknown"
    return ""


def pip_wheel(stdlib):
    """The pip wheel that comes with this Python for making environments, or ""."""
    import sysconfig

    for place in (os.path.join(stdlib, "ensurepip", "_bundled"), sysconfig.get_config_var("WHEEL_PKG_DIR") or "", "/usr/share/python-wheels"):
        for name in listed(place):
            if name.startswith("pip-") and name.endswith(".whl") and os.access(os.path.join(place, name), os.R_OK):
                return os.path.join(place, name)
    return ""


def cpu_flags():
    """What the first processor can do, as the kernel names it."""
    try:
        fd = os.open("/proc/cpuinfo", os.O_RDONLY)
    except OSError:
        return ""
    try:  # the whole file is long, and slow to make, where there are many processors
        for line in os.read(fd, 1 << 14).decode("ascii", "replace").split("\n"):
            if line.startswith("flags"):
                return line.partition(":")[2].strip()
    finally:
        os.close(fd)
    return ""


def environment():
    """venv, conda or system."""
    if os.path.isfile(os.path.join(sys.prefix, "pyvenv.cfg")):
        return "venv"
    return "conda" if os.path.isdir(os.path.join(sys.prefix, "conda-meta")) else "system"


def probe():
    """All of it, as the fields of Facts."""
    import sysconfig

    places, stdlib = sites(), sysconfig.get_path("stdlib")
    facts = {"python": "%d.%d.%d" % sys.version_info[:3], "executable": sys.executable or "", "prefix": sys.prefix,
             "tag": "cp%d%d%s" % (sys.version_info[0], sys.version_info[1], "t" if "t" in getattr(sys, "abiflags", "") else ""),
             "platform": sysconfig.get_platform().replace("-", "_").replace(".", "_"), "machine": os.uname()[4], "flags": cpu_flags(),
             "site_packages": places[0], "site_id": site_id(places[0])}
    if sys.version_info < (3, 8):
        return facts
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        libc = ""
    home = os.path.join(sys.prefix, ".dsbuild")
    torch, version, cuda = torch_build()
    dists = distributions()
    facts.update({
        "glibc": libc[len("glibc "):] if libc.startswith("glibc ") else "", "environment": environment(),
        "externally_managed": sys.prefix == sys.base_prefix and os.path.exists(os.path.join(stdlib, "EXTERNALLY-MANAGED")),
        "writable": all(os.access(p, os.W_OK) for p in places) and os.access(home if os.path.isdir(home) else sys.prefix, os.W_OK),
        "pip": pip_version(places), "pip_wheel": pip_wheel(stdlib), "dists": dists, "transformers": dists.get("transformers", ""),
        "torch": version, "torch_cuda": cuda, "cxx11abi": cxx11abi(torch) if torch else None, "nccl": nccl(torch, cuda, dists),
        "libstdcxx": newest_glibcxx(), "previous": previous(home), "along": along(), "deepspeed": installed(REQUEST["files"]),
        "free_bytes": free(places[0]), "free_tmp_bytes": free(home), "unfinished": os.path.exists(os.path.join(home, "change.json")),
    })
    if facts["deepspeed"]:
        facts["deepspeed"]["ops"], facts["deepspeed"]["build"] = build_record(facts["deepspeed"]["path"])
    facts.update(users())
    return facts


emit({"python": probe()})
os._exit(ANSWERED)  # taking Python down in good order takes as long as half of this
