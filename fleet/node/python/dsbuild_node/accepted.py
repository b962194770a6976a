"""The files of a wheel that the controller has accepted, and what the node keeps of the wheel: its statement,
the signatures and its RECORD. The controller checks all of it again before a rollback."""
import hashlib
import json
import os

from dsbuild_node.changes import save_json, sweep
from dsbuild_node.files import content
from dsbuild_node.import_check import Failed
from dsbuild_node.record import HASHES, file_digest, owners, rows_in, unknown_code, written


def stored_path(home, sha256):
    """The path of a wheel's statement and signatures."""
    return os.path.join(home, "signed", sha256 + ".json")


def store_signed(home, signed, sha256):
    """Store a wheel's statement and signatures, if it is signed."""
    if signed["signatures"]:
        os.makedirs(os.path.join(home, "signed"), exist_ok=True)
        save_json(stored_path(home, sha256), signed)


def forget_signed(home, kept):
    """Remove the statements and signatures of all wheels except those with these digests."""
    folder = os.path.join(home, "signed")
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        if name[:-len(".json")] not in kept:
            sweep(os.path.join(folder, name))


def path_in(places, name):
    """Return the path of a wheel's file after the installation, or "" if installers rename it."""
    parts, scheme = name.split("/"), ""
    if parts[0].endswith(".data") and len(parts) > 2:
        scheme, parts = parts[1], parts[2:]
    place = places.get("" if scheme in ("purelib", "platlib") else scheme)
    return os.path.normpath(os.path.join(place, *parts)) if place else ""


def digests_of(path, first_lines=(), new=hashlib.sha256):
    """Return a file's digests, in RECORD's syntax. If an installer gave a command one of these first lines, the second
    digest is the command's in the wheel. A link has no digests."""
    if os.path.islink(path):
        return []
    try:
        found = [file_digest(path, new).digest()]
    except OSError:
        return []
    data = content(path, 1 << 26) if first_lines else b""
    found += [new(b"#!python\n" + data[len(line):]).digest() for line in first_lines if data.startswith(line)]
    return [written(digest) for digest in found]


def refuse_others(record, places, first_lines):
    """Refuse an installation with a file that differs from the accepted wheel, or with more code in DeepSpeed's folder.
    record is the RECORD in the wheel."""
    site, rows = places[""], []
    for row in rows_in(record.encode("utf-8", "surrogateescape")):
        path, (algorithm, _, want) = path_in(places, row[0]), row[1].partition("=")
        if not path or algorithm not in HASHES:
            continue
        commands = first_lines if os.path.dirname(path) == places["scripts"] else ()
        if want.rstrip("=") not in digests_of(path, commands, getattr(hashlib, algorithm)):
            raise Failed("%s does not match the accepted wheel" % row[0], "not-accepted")
        rows.append([os.path.relpath(path, site), row[1]])
    more = [os.path.join(site, path) for path in unknown_code(site, rows)]
    more = sorted(set(more) - set(owners(more, {"deepspeed"})))
    if more:
        raise Failed("%s is not in the accepted wheel" % more[0], "not-accepted")


def kept_answer(home, sha256, places, first_lines, files):
    """Describe the version that a rollback would restore, for the controller's policy check. files maps the path of
    each file after the rollback to its current path."""
    from binascii import b2a_base64  # the controller cuts long texts of a node, and drops line breaks

    told = {path: digests_of(now, first_lines if os.path.dirname(path) == places["scripts"] else ()) for path, now in files.items()}
    signed = content(stored_path(home, sha256), 1 << 26) if sha256.isalnum() else b""
    whole = hashlib.sha256(json.dumps(sorted(told.items())).encode("ascii")).hexdigest()
    pieces = [b2a_base64(signed[at:at + 3000], newline=False).decode("ascii") for at in range(0, len(signed), 3000)]
    return {"sha256": sha256, "signed": pieces, "places": places, "files": told, "digest": whole}
