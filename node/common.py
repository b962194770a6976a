"""Prepended to every program that dsbuild runs on a node: MARK and REQUEST are
set above. Runs on Python 3.8 and later; parses on much older ones.

A probe must cost little more than the start of Python, and json, re and hashlib
each take a third of that to import. So nothing here imports them for a few lines."""
import os
import sys

# The first entry is the working directory or "": a folder named deepspeed that
# happens to lie in the user's home is not what a training script would import.
if sys.path and sys.path[0] in ("", os.getcwd()):
    del sys.path[0]


def dumps(value):
    """value as JSON, in ASCII."""
    try:
        from _json import encode_basestring_ascii as quote  # the part of json that is written in C
    except ImportError:
        from json import dumps as quote

    def encode(v):
        if v is None or v is True or v is False:
            return {None: "null", True: "true", False: "false"}[v]
        if isinstance(v, dict):
            return "{" + ",".join([quote(str(k)) + ":" + encode(x) for k, x in v.items()]) + "}"
        if isinstance(v, (list, tuple)):
            return "[" + ",".join([encode(x) for x in v]) + "]"
        return repr(v) if isinstance(v, (int, float)) else quote(v)

    return encode(value)


def loads(source):
    """What a JSON text holds."""
    try:
        from _json import make_scanner

        class Plain:
            strict, object_hook, object_pairs_hook, parse_float, parse_int, parse_constant = True, None, None, float, int, float

        value, end = make_scanner(Plain)(source.strip(), 0)
        if end == len(source.strip()):
            return value
    except Exception:  # another Python's scanner, or no JSON: the module says which
        pass
    import json

    return json.loads(source)


def emit(message):
    """Sends one message; what else reaches stdout is noise and passed over."""
    data = ("\n" + MARK + dumps(message) + "\n").encode("ascii")
    while data:
        data = data[os.write(1, data):]


def sites():
    """The directories that pip installs into, without doubles."""
    import sysconfig

    found, paths = [], sysconfig.get_paths()
    for name in ("purelib", "platlib"):
        path = os.path.realpath(paths[name])
        if path not in found:
            found.append(path)
    return found


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
    """The first of them, or None."""
    return (dist_infos(places) + [None])[0]


def normal(name):
    """A distribution's name as PEP 503 compares it."""
    name = name.lower().replace("_", "-").replace(".", "-")
    while "--" in name:
        name = name.replace("--", "-")
    return name


def named_infos():
    """(normalised name, dist-info or egg-info) of everything in the environment."""
    for place in sites():
        for entry in sorted(os.listdir(place) if os.path.isdir(place) else []):
            stem, ending = os.path.splitext(entry)
            if ending in (".dist-info", ".egg-info"):
                yield normal(stem.split("-")[0]), os.path.join(place, entry)


def record_of(name):
    """The sha256 of the RECORD of a distribution, "" where there is none."""
    for found, info in named_infos():
        if found == name:
            return record_sha256(info)
    return ""


def metadata_of(info):
    """(name, version) in the headers of a dist-info, egg-info or egg-info file,
    "" for what it does not say."""
    for part in ("METADATA", "PKG-INFO", ""):
        try:
            fd = os.open(os.path.join(info, part) if part else info, os.O_RDONLY)
        except OSError:
            continue
        try:
            found, data = {}, os.read(fd, 4096)
            read_headers(data, found)
            if len(found) < 2 and len(data) == 4096:  # unusual order: the name behind a long description
                read_headers(data + os.read(fd, 1 << 20), found)
            return found.get(b"name", ""), found.get(b"version", "")
        except OSError:  # a directory
            continue
        finally:
            os.close(fd)
    return "", ""


def read_headers(data, found):
    """Adds the name and version of the headers that data begins with to found."""
    for line in data.split(b"\n"):
        key, colon, value = line.rstrip(b"\r").partition(b":")
        if not key and not colon:
            return  # the headers end here
        key = key.lower()
        if colon and key in (b"name", b"version") and key not in found:
            found[key] = value.strip().decode("utf-8", "replace")
            if len(found) == 2:
                return


def metadata_version(info):
    """The version that a dist-info names."""
    return metadata_of(info)[1]


def file_sha256(path, new=None):
    """The sha256 of a file as a digest object."""
    if new is None:
        from hashlib import sha256 as new
    digest = new()
    with open(path, "rb") as f:
        for block in iter(lambda: f.read(1 << 20), b""):
            digest.update(block)
    return digest


def record_rows(info):
    """The rows of a dist-info's RECORD, or None where there is none."""
    try:
        from _csv import reader
    except ImportError:
        from csv import reader
    try:
        with open(os.path.join(info, "RECORD"), newline="", encoding="utf-8") as f:
            return [row for row in reader(f) if row and row[0]]
    except OSError:
        return None


def altered(info):
    """Files that are not what RECORD says, the first few of them."""
    from binascii import b2a_base64

    wrong = []
    for row in record_rows(info) or []:
        want = row[1] if len(row) > 1 else ""
        if not want.startswith("sha256="):
            continue
        try:
            digest = file_sha256(os.path.join(os.path.dirname(info), row[0])).digest()
        except OSError:
            wrong.append(row[0])
            continue
        if b2a_base64(digest).rstrip(b"=\n").replace(b"+", b"-").replace(b"/", b"_").decode("ascii") != want[len("sha256="):]:
            wrong.append(row[0])
        if len(wrong) > 4:
            break
    return wrong


def record_sha256(info):
    """The sha256 of RECORD itself, "" where there is none."""
    new = None  # one small file is not worth OpenSSL, which hashlib brings
    for module in ("_sha2", "_sha256"):
        try:
            new = __import__(module).sha256
            break
        except ImportError:
            pass
    try:
        return file_sha256(os.path.join(info, "RECORD"), new).hexdigest()
    except OSError:
        return ""


def load_json(path):
    """What a JSON file of dsbuild's holds, or None."""
    try:
        with open(path, encoding="utf-8") as f:
            return loads(f.read())
    except (OSError, ValueError):
        return None


def installed(files=True):
    """The DeepSpeed of this environment as {version, sha256, ...}, or None. Its
    files are compared with RECORD unless files is False; then intact is too."""
    info = dist_info(sites())
    if info is None:
        return None
    found = {"version": metadata_version(info), "sha256": "", "path": os.path.join(os.path.dirname(info), "deepspeed"),
             "record": record_sha256(info), "intact": False}
    if files:
        found["altered"] = altered(info)
    noted = load_json(os.path.join(sys.prefix, ".dsbuild", "installed.json"))
    if isinstance(noted, dict) and found["record"] and noted.get("record") == found["record"]:
        found["sha256"] = str(noted.get("sha256", ""))
        found["intact"] = files and not found["altered"]
    return found


def previous(home):
    """What was there before the last deploy, None if nothing is kept of it."""
    last = load_json(os.path.join(home, "previous", "change.json"))
    if not isinstance(last, dict):
        return None
    was = last.get("before") or {}
    return {"version": str(was.get("version", "")), "sha256": str(was.get("sha256", ""))}
