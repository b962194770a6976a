"""Comes first in every program that dsbuild runs on a node. MARK and REQUEST are set
before it. Runs on Python 3.8 and later; much older ones can parse it.

A probe must cost little more than the start of Python. Modules take long to import, so
nothing here imports one for a few lines.

dsbuild splits every program at two blank lines (inParts in script.go), so that Python
compiles it in small parts. So no function and no string may contain two blank lines."""
import json
import os
import sys

# The first entry is the working directory or "": a folder named deepspeed that
# happens to lie in the user's home is not what a training script would import.
if sys.path and sys.path[0] in ("", os.getcwd()):
    del sys.path[0]

# Types of file systems that several machines may share.
NETWORK = ("nfs", "nfs4", "lustre", "beegfs", "ceph", "cifs", "smb3", "gpfs", "glusterfs", "fuse.glusterfs",
           "fuse.sshfs", "afs", "orangefs", "wekafs", "fuse.juicefs", "fuse.ceph", "panfs")


def emit(message):
    """Sends one message. dsbuild ignores all other output on stdout."""
    data = ("\n" + MARK + json.dumps(message, separators=(",", ":")) + "\n").encode("ascii")
    while data:
        data = data[os.write(1, data):]


def content(path, most=1 << 20):
    """The beginning of a file, b"" if it cannot be read."""
    data = b""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe must not block
    except OSError:
        return data
    try:
        while len(data) < most:
            block = os.read(fd, min(most, 1 << 16))
            if not block:
                break
            data += block
    except OSError:  # a directory, or a file that vanished meanwhile
        pass
    finally:
        os.close(fd)
    return data


def text(path):
    """The beginning of a text file, "" if it cannot be read."""
    return content(path).decode("utf-8", "replace")


def sites():
    """The directories that pip installs into, without duplicates."""
    # They are the same everywhere except in the Pythons of distributions. Only for those
    # this asks sysconfig, which takes long to import.
    tail = "python%d.%d%s/site-packages" % (sys.version_info[0], sys.version_info[1], "t" if "t" in getattr(sys, "abiflags", "") else "")
    paths = [os.path.join(sys.prefix, lib, tail) for lib in ("lib", getattr(sys, "platlibdir", "lib"))]
    if sys.prefix == "/usr" or not all(p in sys.path and os.path.isdir(p) for p in paths):
        import sysconfig

        paths = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    paths = [os.path.realpath(p) for p in paths]
    return paths[:1] if paths[0] == paths[1] else paths


def dist_infos(places):
    """The dist-info (or egg-info) entries of DeepSpeed in the places; one, if all is well."""
    found = []
    for place in places:
        try:
            names = sorted(os.listdir(place))
        except OSError:
            continue
        for ending in (".dist-info", ".egg-info"):
            found += [os.path.join(place, n) for n in names if n.lower().startswith("deepspeed-") and n.endswith(ending)]
    return found


def dist_info(places):
    """The first of them, one with a RECORD if there is any; None if there is none."""
    return (sorted(dist_infos(places), key=lambda info: not os.path.isfile(os.path.join(info, "RECORD"))) + [None])[0]


def normal(name):
    """A distribution's name as PEP 503 compares it."""
    name = name.lower().replace("_", "-").replace(".", "-")
    while "--" in name:
        name = name.replace("--", "-")
    return name


def named_infos():
    """(normalised name, what says that it is installed) of everything in the environment: a dist-info, or
    an older form, which has no RECORD. Names with a tilde are what a pip that was cut off left, and pip ignores them."""
    for place in sites():
        for entry in sorted(os.listdir(place) if os.path.isdir(place) else []):
            stem, ending = os.path.splitext(entry)
            if ending in (".dist-info", ".egg-info", ".egg", ".egg-link") and stem[0] != "~":
                yield normal(stem.split("-")[0]), os.path.join(place, entry)


def metadata_of(info):
    """(name, version) in the headers of a dist-info, egg-info or egg-info file,
    "" for what it does not say."""
    for part in ("/METADATA", "/PKG-INFO", ""):
        data = content(info + part, 4096)
        if data:
            found = headers(data)
            if len(found) < 2 and len(data) >= 4096:  # an unusual order: they come after a long description
                found = headers(content(info + part))
            return found.get(b"name", ""), found.get(b"version", "")
    return "", ""


def headers(data):
    """The name and the version in the headers at the beginning of data."""
    found = {}
    for line in data.split(b"\n"):
        key, colon, value = line.partition(b":")
        if not colon and not key.strip():
            break  # the headers end here
        key = key.lower()
        if key in (b"name", b"version") and key not in found:
            found[key] = value.strip().decode("utf-8", "replace")
            if len(found) == 2:
                break
    return found


def metadata_version(info):
    """The version in a dist-info."""
    return metadata_of(info)[1]


def record_sha256(info):
    """The sha256 of RECORD itself, "" if there is none."""
    data = content(os.path.join(info, "RECORD"), 1 << 26)
    if not data:
        return ""
    from hashlib import sha256

    return sha256(data).hexdigest()


def load_json(path):
    """The content of a JSON file of dsbuild, or None."""
    source = content(path, 1 << 26)
    try:
        return json.loads(source.decode("utf-8")) if source else None
    except ValueError:
        return None


def installed(files=True):
    """The DeepSpeed of this environment as {version, sha256, ...}, or None. Its
    files are compared with RECORD if files is True, or holds the sha256 of the wheel it
    came from; else intact is False."""
    info = dist_info(sites())
    if info is None:
        return None
    found = {"version": metadata_version(info), "sha256": "", "path": os.path.join(os.path.dirname(info), "deepspeed"),
             "record": record_sha256(info), "intact": False}
    noted = load_json(os.path.join(sys.prefix, ".dsbuild", "installed.json"))
    ours = isinstance(noted, dict) and found["record"] and noted.get("record") == found["record"]
    if ours:
        found["sha256"] = str(noted.get("sha256", ""))
    if files is True or ours and files and found["sha256"] in files:
        found["altered"] = faults(info)
        found["intact"] = ours and not found["altered"] and len(dist_infos(sites())) == 1
    return found


def previous(home):
    """The DeepSpeed before the last deploy, None if dsbuild keeps none."""
    last = load_json(os.path.join(home, "previous", "change.json"))
    if not isinstance(last, dict):
        return None
    was = last.get("before") or {}
    return {"version": str(was.get("version", "")), "sha256": str(was.get("sha256", ""))}
