"""Finds the facts that need the node's Python. Reads files and package metadata, imports only the
standard library, writes nothing. The only program that it starts is nvidia-smi; the shell finds
everything else about GPUs."""
import os
import sys

from dsbuild_node.distributions import (
    home, installed, metadata_of, named_infos, normal, noted_extra_wheels, record_sha256, scripts_folder, sites)
from dsbuild_node.controller import REQUEST, emit, module
from dsbuild_node.files import content, foreign_owner, load_json, owner_name, text
from dsbuild_node.in_use import users
from dsbuild_node.view import account, existing, mounted_type, seen_by_node, unescape

QUERY = ["nvidia-smi", "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader"]


def file_system(path):
    """The type of the file system that holds path: "ext4", or "ext4, exported" if this node may serve it to others."""
    path = os.path.realpath(path)
    return mounted_type(path) + (", exported" if is_exported(path) else "")


def is_exported(path):
    """Whether an NFS server of this node exports a folder above path, or one of the same file system: the kernel's by
    the table of exportfs, or Ganesha by its configuration."""
    words = {unescape(line.split("\t")[0]) for line in text("/var/lib/nfs/etab").split("\n")}
    words.update(text("/etc/ganesha/ganesha.conf").replace('"', " ").replace(";", " ").split())
    device = os.stat(existing(path)).st_dev
    return any(path.startswith(word.rstrip("/") + "/") or os.path.exists(word) and os.stat(word).st_dev == device
               for word in words if word.startswith("/"))


def free(path):
    """The bytes that this user may still write at path, or above it if path does not exist."""
    try:
        st = os.statvfs(existing(path))
    except OSError:
        return 0
    return st.f_bavail * st.f_frsize


def locked(paths, records):
    """The first path that this user cannot read and change, or of RECORDs, cannot read: (path, whether it cannot be
    read, its owner if it is another user)."""
    for path in paths + records:
        path = path if os.path.exists(path) else existing(path)
        readable = os.access(path, os.R_OK | os.X_OK if os.path.isdir(path) else os.R_OK)
        if not readable or not os.access(path, os.W_OK) and path not in records:
            return path, not readable, "" if os.stat(path).st_uid == os.geteuid() else owner_name(os.stat(path).st_uid)
    return "", False, ""


def read_only(path):
    """Whether the file system at path is mounted read-only."""
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def behind(path, prefix, most):
    """What follows each prefix in a library, up to a NUL: the names in it stand side
    by side. One buffer, for memory that is new costs more than reading."""
    found, buffer, at = [], bytearray(1 << 16), 0
    try:
        fd = os.open(path, os.O_RDONLY)
        while at < 1 << 24:
            n, before, i = os.preadv(fd, [buffer], at), len(found), buffer.find(prefix)
            while 0 <= i and i + len(prefix) < n:
                name, end, _ = bytes(buffer[i + len(prefix):min(n, i + 200)]).partition(b"\0")
                if end:
                    found.append(name.decode("ascii", "replace"))
                i = buffer.find(prefix, i + 1)
            if n < len(buffer) or len(found) >= most or found and len(found) == before:
                break
            at += n - 256
    except OSError:
        pass
    return found[:1000]


def listed(path):
    """Return the names in a directory, sorted, or [] if it cannot be read."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def torch_home():
    """Return the folder of the torch on the path, or "". It is not imported."""
    for place in sys.path:
        if os.path.isfile(os.path.join(place, "torch", "version.py")):
            return os.path.join(place, "torch")
    return ""


def abi_text(torch):
    """The text that shows which std::string torch uses: up to 2.6 its CMake file; later the name of
    a constructor that takes one."""
    said = text(os.path.join(torch, "share", "cmake", "Torch", "TorchConfig.cmake")).partition("_GLIBCXX_USE_CXX11_ABI=")[2][:1]
    return said or "".join(behind(os.path.join(torch, "lib", "libc10.so"), b"_ZN3c105ErrorC2ENS_14SourceLocationE", 1)[:1])


def head_of(path):
    """The machine in the ELF header of a library."""
    head = content(path, 20)
    return head[:6] + head[18:20] if head.startswith(b"\x7fELF") else b""


def cached(name):
    """The paths of a library in the loader's cache, in the order of preference."""
    data = content("/etc/ld.so.cache", 1 << 24)
    base = max(0, data.find(b"glibc-ld.so.cache"))  # offsets count from here
    wanted, found, at = b"/" + name.encode("ascii") + b"\0", [], -1
    while True:
        at = data.find(wanted, at + 1)
        if at < 0:
            return [path for _, path in sorted(found)]
        start = data.rfind(b"\0", 0, at) + 1
        # An entry holds the offset of its path; entries are in the order of preference.
        entry = data.find((start - base).to_bytes(4, sys.byteorder), base)
        found.append((entry, os.fsdecode(data[start:at + len(wanted) - 1])))


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


def nccl_files(torch, dists):
    """Names of files that tell which NCCL torch uses, where no distribution does."""
    if not torch or any(n.startswith("nvidia-nccl-") for n in dists):
        return []
    found = [n for place in (os.path.join(sys.prefix, "conda-meta"), os.path.join(torch, "lib")) for n in listed(place)
             if n.startswith(("nccl-", "libnccl.so."))]
    return found or [os.path.basename(os.path.realpath(library("libnccl.so.2")))]


def distributions():
    """The version of each distribution that is importable, the first on the path winning."""
    found = {}
    for place in [place for place in sys.path if isinstance(place, str)]:  # an import, too, ignores what a .pth file adds else
        egg = place.lower().endswith(".egg")
        for entry in listed(place):
            low = entry.lower()
            # pip moves what it replaces to names with a tilde, and leaves some behind.
            if low.endswith((".dist-info", ".egg-info")) and low[0] != "~" or egg and low == "egg-info":
                name, version = metadata_of(os.path.join(place, entry))
                if name and version:
                    found.setdefault(normal(name), version)
        if os.path.isfile(place):
            zipped(place, found)
    return found


def zipped(place, found):
    """Add the distributions in an archive on the path."""
    from importlib import metadata

    for dist in metadata.distributions(path=[place]):
        try:
            found.setdefault(normal(dist.metadata["Name"]), dist.version)
        except Exception:  # one broken dist-info must not hide the rest
            pass


def extra_wheels():
    """Return the sha256, by name, of the wheels that dsbuild installed with DeepSpeed and nothing replaced since."""
    wheels = noted_extra_wheels(load_json(os.path.join(home(), "installed.json")))
    names = [w["name"] for w in wheels]
    now = {name: record_sha256(info) for name, info in named_infos() if name in names} if names else {}
    return {w["name"]: w["sha256"] for w in wheels if w["record"] and now.get(w["name"]) == w["record"]}


def pip_text(places):
    """Return the source of the pip inside the environment, or ""."""
    for place in places:
        if os.path.isfile(os.path.join(place, "pip", "__main__.py")):
            return text(os.path.join(place, "pip", "__init__.py"))[:4000] or "?"
    return ""


def pip_wheel():
    """The pip wheel that comes with this Python for making environments, or ""."""
    for place in (os.path.join(os.path.dirname(os.__file__), "ensurepip", "_bundled"), "/usr/share/python-wheels", None):
        if place is None:
            import sysconfig  # some Pythons are built to look elsewhere

            place = sysconfig.get_config_var("WHEEL_PKG_DIR") or ""
        for name in listed(place):
            if name.startswith("pip-") and name.endswith(".whl") and os.access(os.path.join(place, name), os.R_OK):
                return os.path.join(place, name)
    return ""


def cpu_flags():
    """The flags of the first processor, in the kernel's words."""
    # The whole file is long, and slow to make, where there are many processors.
    for line in content("/proc/cpuinfo", 1 << 13).decode("ascii", "replace").split("\n"):
        if line.startswith("flags"):
            return line.partition(":")[2].strip()
    return ""


def environment():
    """venv, conda or system."""
    if os.path.isfile(os.path.join(sys.prefix, "pyvenv.cfg")):
        return "venv"
    return "conda" if os.path.isdir(os.path.join(sys.prefix, "conda-meta")) else "system"


def previous(drift):
    """dsbuild's last change of the environment, and what has changed since."""
    from dsbuild_node.notes import last_change  # a node without notes need not compile it

    return last_change(drift)


def conda_record():
    """The name of conda's record of DeepSpeed, if any."""
    return ([name for name in listed(os.path.join(sys.prefix, "conda-meta")) if name.startswith("deepspeed-") and name.endswith(".json")] + [""])[0]


def start_smi():
    """nvidia-smi, started: (pid, what it says); None where it cannot be."""
    if not any(os.access(os.path.join(folder, QUERY[0]), os.X_OK) for folder in os.get_exec_path()):
        return None  # a process would take twenty times as long to find that out
    out, into = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    actions = [(os.POSIX_SPAWN_DUP2, null, 0), (os.POSIX_SPAWN_DUP2, into, 1), (os.POSIX_SPAWN_DUP2, null, 2)]
    try:
        return os.posix_spawnp(QUERY[0], QUERY, dict(os.environ, LC_ALL="C"), file_actions=actions), out
    except OSError:
        return None
    finally:
        os.close(into)


def end_smi(pid, out):
    """(the lines that it printed, how this program is to end)."""
    from select import select

    said = b""
    while select([out], [], [], 20)[0]:
        block = os.read(out, 1 << 16)
        said += block
        if not block:
            os.waitpid(pid, 0)
            rows = [row for row in said.decode("utf-8", "replace").split("\n") if row.count(",") > 1]
            return rows[:1000], REQUEST["answered"] if rows else REQUEST["answered"] + 1
    os.kill(pid, 9)  # a broken driver makes it hang for ever; then even this may not end it
    return [], REQUEST["answered"] + 2


def probe(installed, taken, drift):
    """All facts: fields of Facts, and texts that dsbuild parses. Returns the status of this program, too."""
    uname = os.uname()
    facts = {"python": "%d.%d.%d" % sys.version_info[:3], "executable": sys.executable or "", "prefix": sys.prefix,
             "tag": "cp%d%d%s" % (sys.version_info[0], sys.version_info[1], "t" if "t" in getattr(sys, "abiflags", "") else ""),
             "machine": uname[4], "platform": (uname[0].lower() + "_" + uname[4]).replace("-", "_"), "flags": cpu_flags()}
    if sys.version_info < (3, 8):
        return facts, 0  # the shell continues
    places = sites()
    smi = start_smi()
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        libc = ""
    pip = pip_text(places)
    kept, torch, dists = home(), torch_home(), distributions()
    own = os.listdir(kept) if os.path.isdir(kept) and os.access(kept, os.R_OK | os.X_OK) else []
    scripts = scripts_folder()
    deepspeed, infos = installed(), [info for name, info in named_infos() if name == "deepspeed"]
    folders = [folder for folder in (os.path.join(place, "deepspeed") for place in places) if os.path.isdir(folder)]
    records = [path for path in (os.path.join(info, "RECORD") for info in infos) if os.path.isfile(path)]
    lock, unreadable, owner = locked(places + infos + folders + [path for path in (scripts, kept) if os.path.isdir(path)], records)
    facts.update({
        "site_packages": places[0], "file_system": file_system(places[0]), "seen": seen_by_node(existing(places[0])), "uid": account(),
        "glibc": libc[len("glibc "):] if libc.startswith("glibc ") else "", "glibcxx": behind(library("libstdc++.so.6"), b"GLIBCXX_3.", 1000), "environment": environment(),
        "externally_managed": sys.prefix == sys.base_prefix and os.path.exists(os.path.join(os.path.dirname(os.__file__), "EXTERNALLY-MANAGED")),
        "writable": not lock,
        "pip_text": pip, "pip_wheel": "" if pip else pip_wheel(), "dists": dists, "transformers": dists.get("transformers", ""),
        "torch_text": text(os.path.join(torch, "version.py"))[:4000] if torch else "", "abi_text": abi_text(torch) if torch else "",
        "nccl_files": nccl_files(torch, dists), "deepspeed": deepspeed, "conda_record": conda_record(), "extra_wheels": extra_wheels(), "taken": taken(),
        "build_text": text(os.path.join(deepspeed["path"], "git_version_info_installed.py"))[:4000] if deepspeed else "",
        "free_bytes": free(places[0]), "free_tmp_bytes": free(kept),
        "read_only": read_only(places[0]), "home_owner": owner_name(os.stat(kept).st_uid) if os.path.isdir(kept) and not os.access(kept, os.W_OK) else "",
        "foreign_owner": foreign_owner([sys.prefix, scripts] + places),
        "no_record": [info for info in infos if b"," not in content(os.path.join(info, "RECORD"), 1 << 26)],
        "leftovers": any(name == "inbox" or name.startswith(("run-", "kept-")) or name.endswith(".part") for name in own),
    })
    # Another run may have begun a change meanwhile, or ended it.
    facts["unfinished"] = "change.json" in own or os.path.lexists(os.path.join(kept, "change.json"))
    facts.update({"locked": lock, "unreadable": unreadable, "locked_by": owner} if lock else {})
    if not REQUEST["then"]:  # only who will change the environment needs these
        facts.update(users(), previous=previous(lambda change: drift(change, deepspeed)) if own else None)
    facts["smi"], status = end_smi(*smi) if smi else ([], REQUEST["answered"] + 1)
    return facts, status


def undone(*raised):
    """End a program whose errand fails, after it has sent the facts."""
    sys.__excepthook__(*raised)
    sys.stderr.flush()
    os._exit(REQUEST["answered"] + 3)


def send_facts(installed, taken, drift=lambda *_: ("", "")):
    """Send the facts, and run the program that is to follow. End Python immediately: an orderly shutdown
    takes as long as half of a probe."""
    found, status = probe(installed, taken, drift)
    emit({"python": found})
    if status and REQUEST["then"]:
        sys.excepthook = undone
        module(REQUEST["then"]).follow(found)
    os._exit(status)


def main():
    send_facts(installed, dict)
