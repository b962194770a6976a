# What only the node's Python knows. Reads files and package metadata, imports
# nothing that is not in the standard library, writes nothing.
import re

NETWORK = ("nfs", "nfs4", "lustre", "beegfs", "ceph", "cifs", "smb3", "gpfs", "glusterfs", "fuse.glusterfs",
           "fuse.sshfs", "afs", "orangefs", "wekafs", "fuse.juicefs", "fuse.ceph", "panfs")


def mount_of(path):
    """(file system type, source) of the mount that holds path."""
    unescape = lambda s: re.sub(r"\\([0-7]{3})", lambda m: chr(int(m.group(1), 8)), s)
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


def torch_build():
    """(version, CUDA) as torch/version.py on the path says; torch is not imported."""
    for place in sys.path:
        source = text(os.path.join(place, "torch", "version.py"))
        version = re.search(r"^__version__\s*(?::[^=]*)?=\s*['\"]([^'\"]+)", source, re.M)
        if version:
            cuda = re.search(r"^cuda\s*(?::[^=]*)?=\s*['\"]([^'\"]+)", source, re.M)
            return version.group(1).split("+")[0], cuda.group(1) if cuda else ""
    return "", ""


def installed_ops(package):
    """The ops that DeepSpeed's own build record lists as compiled."""
    import ast

    match = re.search(r"^installed_ops\s*=\s*(\{[^}]*\})", text(os.path.join(package, "git_version_info_installed.py")), re.M)
    try:
        return sorted(str(k) for k, v in ast.literal_eval(match.group(1)).items() if v) if match else []
    except (ValueError, SyntaxError):
        return []


def distributions():
    """Name → version of what is importable, the first on the path winning."""
    from importlib import metadata

    found = {}
    for dist in metadata.distributions():
        try:
            name, version = dist.metadata["Name"], dist.version
        except Exception:  # one broken dist-info must not hide the rest
            continue
        if name and version:
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), version)
    return found


def along():
    """Name → sha256 of the wheels that dsbuild installed with DeepSpeed, those
    that nobody has replaced since."""
    noted = load_json(os.path.join(sys.prefix, ".dsbuild", "installed.json"))
    wheels = noted.get("along", []) if isinstance(noted, dict) else []
    now = {name: record_sha256(info) for name, info in named_infos()} if wheels else {}
    return {w["name"]: w["sha256"] for w in wheels if w["record"] and now.get(w["name"]) == w["record"]}


def pip_version(places):
    """The version of the pip inside the environment, "" if it has none."""
    for place in places:
        if os.path.isfile(os.path.join(place, "pip", "__main__.py")):
            match = re.search(r"^__version__\s*=\s*['\"]([^'\"]+)", text(os.path.join(place, "pip", "__init__.py")), re.M)
            return match.group(1) if match else "unknown"
    return ""


def pip_wheel():
    """The pip wheel that comes with this Python for making environments, or ""."""
    import glob
    import sysconfig

    for place in (os.path.join(sysconfig.get_path("stdlib"), "ensurepip", "_bundled"), sysconfig.get_config_var("WHEEL_PKG_DIR") or "", "/usr/share/python-wheels"):
        for path in sorted(glob.glob(os.path.join(place, "pip-*.whl"))):
            if os.access(path, os.R_OK):
                return path
    return ""


def probe():
    """All of it, as the fields of Facts."""
    import sysconfig

    places = sites()
    facts = {"python": "%d.%d.%d" % sys.version_info[:3], "executable": sys.executable or "", "prefix": sys.prefix,
             "tag": "cp%d%d%s" % (sys.version_info[0], sys.version_info[1], "t" if "t" in getattr(sys, "abiflags", "") else ""),
             "platform": re.sub(r"[-.]", "_", sysconfig.get_platform()), "site_packages": places[0], "site_id": site_id(places[0])}
    if sys.version_info < (3, 8):
        return facts
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        libc = ""
    home = os.path.join(sys.prefix, ".dsbuild")
    torch, cuda = torch_build()
    facts.update({
        "glibc": libc[len("glibc "):] if libc.startswith("glibc ") else "",
        "externally_managed": sys.prefix == sys.base_prefix and os.path.exists(os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")),
        "writable": all(os.access(p, os.W_OK) for p in places) and os.access(home if os.path.isdir(home) else sys.prefix, os.W_OK),
        "pip": pip_version(places), "pip_wheel": pip_wheel(), "torch": torch, "torch_cuda": cuda, "dists": distributions(),
        "free_bytes": free(places[0]), "free_tmp_bytes": free(home), "unfinished": os.path.exists(os.path.join(home, "change.json")),
    })
    facts["previous"], facts["along"] = previous(home), along()
    facts["deepspeed"] = installed()
    if facts["deepspeed"]:
        facts["deepspeed"]["ops"] = installed_ops(facts["deepspeed"]["path"])
    return facts


emit({"python": probe()})
