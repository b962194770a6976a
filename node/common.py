"""Prepended to every program that dsbuild runs on a node: MARK and REQUEST are
set above. Runs on Python 3.8 and later; parses on much older ones."""
import base64
import csv
import hashlib
import json
import os
import re
import sys

# The first entry is the working directory or "": a folder named deepspeed that
# happens to lie in the user's home is not what a training script would import.
if sys.path and sys.path[0] in ("", os.getcwd()):
    del sys.path[0]


def emit(message):
    """Sends one message; what else reaches stdout is noise and passed over."""
    data = ("\n" + MARK + json.dumps(message) + "\n").encode("ascii")
    while data:
        data = data[os.write(1, data):]


def sites():
    """The directories that pip installs into, without doubles."""
    import sysconfig

    found = []
    for name in ("purelib", "platlib"):
        path = os.path.realpath(sysconfig.get_path(name))
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
    return re.sub(r"[-_.]+", "-", name).lower()


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


def metadata_version(info):
    """The version that a dist-info names."""
    for name in ("METADATA", "PKG-INFO"):
        try:
            with open(os.path.join(info, name), encoding="utf-8", errors="replace") as f:
                for line in f:
                    if line.lower().startswith("version:"):
                        return line.split(":", 1)[1].strip()
        except OSError:
            pass
    return ""


def file_sha256(path):
    """The sha256 of a file as a digest object."""
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        for block in iter(lambda: f.read(1 << 20), b""):
            digest.update(block)
    return digest


def record_rows(info):
    """The rows of a dist-info's RECORD, or None where there is none."""
    try:
        with open(os.path.join(info, "RECORD"), newline="", encoding="utf-8") as f:
            return [row for row in csv.reader(f) if row and row[0]]
    except OSError:
        return None


def altered(info):
    """Files that are not what RECORD says, the first few of them."""
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
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii") != want[len("sha256="):]:
            wrong.append(row[0])
        if len(wrong) > 4:
            break
    return wrong


def record_sha256(info):
    """The sha256 of RECORD itself, "" where there is none."""
    try:
        return file_sha256(os.path.join(info, "RECORD")).hexdigest()
    except OSError:
        return ""


def load_json(path):
    """What a JSON file of dsbuild's holds, or None."""
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    except (OSError, ValueError):
        return None


def installed():
    """The DeepSpeed of this environment as {version, sha256, ...}, or None."""
    info = dist_info(sites())
    if info is None:
        return None
    found = {"version": metadata_version(info), "sha256": "", "path": os.path.join(os.path.dirname(info), "deepspeed"),
             "record": record_sha256(info), "intact": False}
    noted = load_json(os.path.join(sys.prefix, ".dsbuild", "installed.json"))
    if isinstance(noted, dict) and found["record"] and noted.get("record") == found["record"]:
        found["sha256"] = str(noted.get("sha256", ""))
        found["intact"] = not altered(info)
    return found


def previous(home):
    """What was there before the last deploy, None if nothing is kept of it."""
    last = load_json(os.path.join(home, "previous", "change.json"))
    if not isinstance(last, dict):
        return None
    was = last.get("before") or {}
    return {"version": str(was.get("version", "")), "sha256": str(was.get("sha256", ""))}
