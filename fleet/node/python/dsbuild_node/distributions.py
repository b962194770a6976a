"""The distributions that are installed in the environment of this Python, DeepSpeed above all.

A probe must cost little more than the start of Python. Modules take long to import, so nothing here
imports one for a few lines."""
import os
import sys

from dsbuild_node.files import content, load_json


def once(find):
    """Make a function without arguments remember its result. Python 2, which can parse the probe, has no lru_cache."""
    found = []

    def remembered():
        if not found:
            found.append(find())
        return found[0]

    return remembered


@once
def site_names():
    """The directories that pip installs into, without links and duplicates, and the name by which Python and RECORD know
    each: one above it may be a link. They are found once: each row of RECORD is compared with them."""
    # They are the same everywhere except in the Pythons of distributions. Only for those
    # this asks sysconfig, which takes long to import.
    tail = "python%d.%d%s/site-packages" % (sys.version_info[0], sys.version_info[1], "t" if "t" in getattr(sys, "abiflags", "") else "")
    paths = [os.path.join(sys.prefix, lib, tail) for lib in ("lib", getattr(sys, "platlibdir", "lib"))]
    if sys.prefix == "/usr" or not all(p in sys.path and os.path.isdir(p) for p in paths):
        import sysconfig

        paths = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    found = {}
    for path in paths:
        found.setdefault(os.path.realpath(path), path)
    return found


def sites():
    """The directories that pip installs into, without links and duplicates."""
    return list(site_names())


@once
def scripts_folder():
    """The folder in which pip puts commands."""
    if sites()[0] == os.path.realpath(os.path.join(sys.prefix, "lib", "python%d.%d" % sys.version_info[:2], "site-packages")):
        return os.path.realpath(os.path.join(sys.prefix, "bin"))
    import sysconfig

    return os.path.realpath(sysconfig.get_path("scripts"))


def home():
    """The folder of dsbuild's own files for this environment: the notes belong to one site-packages, because
    several Pythons may have one prefix."""
    return os.path.join(sites()[0], ".dsbuild")


def dist_infos(places):
    """The dist-info (or egg-info) entries of DeepSpeed in the places; one, if all is well."""
    found = []
    for place in places:
        try:
            names = sorted(os.listdir(place))
        except (FileNotFoundError, NotADirectoryError, PermissionError):  # but a disk that fails does not show that there is none
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


def named_infos(places=()):
    """(normalised name, what says that it is installed) of everything in these places, or in the environment: a
    dist-info, or an older form, which has no RECORD. Names with a tilde are what a pip that was cut off left, and pip
    ignores them."""
    for place in places or sites():
        for entry in sorted(os.listdir(place) if os.access(place, os.R_OK | os.X_OK) else []):
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
    """Return the version in a dist-info, or in its name if METADATA is damaged."""
    return metadata_of(info)[1] or (os.path.splitext(os.path.basename(info))[0].split("-") + [""])[1]


def record_sha256(info):
    """Return the sha256 of RECORD itself, or ""."""
    data = content(os.path.join(info, "RECORD"), 1 << 26)
    if not data:
        return ""
    from hashlib import sha256

    return sha256(data).hexdigest()


def own_note(record):
    """dsbuild's note on the DeepSpeed that has this RECORD; None if something else installed it."""
    noted = load_json(os.path.join(home(), "installed.json"))
    return noted if noted and record and noted.get("record") == record else None


def noted_extra_wheels(noted):
    """The wheels that a note of dsbuild's lists as installed with DeepSpeed: name, sha256 and record of each."""
    extra = (noted or {}).get("extra_wheels")
    keys = ("name", "sha256", "record")
    return [w for w in extra if isinstance(w, dict) and all(isinstance(w.get(key), str) for key in keys)] if isinstance(extra, list) else []


def installed():
    """The DeepSpeed of this environment as {version, sha256, ...}, or None. Its files are not
    compared."""
    info = dist_info(sites())
    if info is None:
        return None
    record = record_sha256(info)
    return {"version": metadata_version(info), "sha256": str((own_note(record) or {}).get("sha256", "")),
            "path": os.path.join(os.path.dirname(info), "deepspeed"), "record": record, "intact": False}
