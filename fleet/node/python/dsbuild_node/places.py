"""The places of whole environments on a node, and their state. Changes nothing. REQUEST names the
environment and, if it is not the user's own, the folder."""
import hashlib
import os

from dsbuild_node.distributions import metadata_of, normal
from dsbuild_node.controller import REQUEST
from dsbuild_node.files import load_json
from dsbuild_node.interpreter import altered_python, wrong_modules
from dsbuild_node.journal import LAST, is_run, last_entry
from dsbuild_node.private import first_unsafe
from dsbuild_node.record import HASHES, file_digest, is_byte_code, module_of, record_rows, walk, written

FOLDER = REQUEST["folder"] or os.path.join(os.path.expanduser("~"), ".local", "share")
ROOT = os.path.join(FOLDER, "dsbuild", "env")
HOME = os.path.join(ROOT, ".dsbuild")  # of all environments: lock, inbox, files, cache
FILES = os.path.join(HOME, "files")
PYTHONS = os.path.join(HOME, "pythons")  # the Pythons that dsbuild has sent
PLACE = os.path.join(ROOT, REQUEST["name"])
CURRENT, PREVIOUS = os.path.join(PLACE, "current"), os.path.join(PLACE, "previous")
CHANGE, JOURNAL = os.path.join(PLACE, "change.json"), os.path.join(PLACE, "journal.jsonl")
NOTE = "environment.json"  # an environment that is whole has it
MOST_WRONG = 50  # files that are named
OWN = ("INSTALLER", "REQUESTED", "RECORD", "direct_url.json")  # an installer's notes in a dist-info


def unsafe():
    """Return the first folder of the environment that another user could change, or ""."""
    parts = ["dsbuild", "dsbuild/env"] + [os.path.join("dsbuild/env", inner) for inner in (
        ".dsbuild", ".dsbuild/files", ".dsbuild/cache", ".dsbuild/pythons", ".dsbuild/inbox", ".dsbuild/signed", REQUEST["name"])]
    names = [name for name in (target(CURRENT), target(PREVIOUS)) if name]
    parts += [os.path.join("dsbuild/env", REQUEST["name"], name) for name in names]
    return first_unsafe(FOLDER, parts)


def target(link):
    """Return the name of the environment that a link in PLACE points to, or ""."""
    try:
        name = os.readlink(link)
    except OSError:
        return ""
    return name if os.sep not in name and mark_of(name) else ""


def mark_of(name):
    """The note on an environment; None if the environment is not whole."""
    return load_json(os.path.join(PLACE, name, NOTE))


def unfinished_switch():
    """The note on a switch that was cut off once current was a link to the new environment; None if there is none."""
    note = load_json(CHANGE)
    return note if note and note.get("to") and target(CURRENT) == note["to"] and isinstance(note.get("journal"), dict) else None


def last_change():
    """The change that a rollback undoes, for the controller; None if there is none."""
    cut, now = unfinished_switch(), describe(target(CURRENT))
    try:
        entry = cut["journal"] if cut else last_entry(JOURNAL)
    except (OSError, ValueError) as e:
        return dict(LAST, wrong="cannot read %s: %s" % (JOURNAL, getattr(e, "strerror", None) or e), advice="one-environment-back")
    if is_run(entry.get("undone")):
        return dict(LAST, runs=[entry["undone"]], undone=True)
    if not is_run(entry):
        return dict(LAST, wrong="%s has no entry" % JOURNAL, advice="one-environment-back") if now else None
    again = entry["again"] if isinstance(entry.get("again"), list) else []
    told = dict(LAST, runs=list(filter(is_run, again)) + [{key: entry[key] for key in ("run", "at", "by")}], interrupted=cut is not None)
    if not now or now["digest"] != entry.get("digest"):
        told.update(wrong="%s was changed after the last deploy" % CURRENT, advice="one-environment-back")
    return told


def describe(name):
    """An environment in the form for the controller; None if there is none."""
    mark = mark_of(name) if name else None
    if mark is None:
        return None
    return {"name": name, "digest": str(mark.get("digest", "")), "python": python_of(os.path.join(PLACE, name)), "deepspeed": mark.get("deepspeed")}


def python_of(folder):
    return os.path.join(folder, "bin", "python")


def whole_of(digest):
    """Return the name of a whole environment with this digest, or "". The current one comes first."""
    names = [target(CURRENT), target(PREVIOUS)] + sorted(os.listdir(PLACE) if os.path.isdir(PLACE) else [])
    for name in names:
        if name and not name.startswith(".") and name not in ("current", "previous"):
            mark = mark_of(name)
            if mark and mark.get("digest") == digest:
                return name
    return ""


def listed_folders(path):
    """The names of the folders in a folder, without links."""
    return [n for n in (os.listdir(path) if os.path.isdir(path) else []) if os.path.isdir(os.path.join(path, n)) and not os.path.islink(os.path.join(path, n))]


def stored(files):
    """Return the sha256 of the files that are in FILES."""
    return [f["sha256"] for f in files if os.path.isfile(os.path.join(FILES, f["sha256"], f["name"]))]


def site_of(folder):
    """The site-packages of an environment."""
    lib = os.path.join(folder, "lib")
    found = sorted(name for name in (os.listdir(lib) if os.path.isdir(lib) else []) if name.startswith("python3"))
    return os.path.join(lib, found[0], "site-packages") if found else lib


def told_file(path, is_link):
    """The content of a file or link, as the note on an environment has it."""
    try:
        return "link to " + os.readlink(path) if is_link else file_digest(path).hexdigest()
    except OSError:
        return "not readable"


class Whole:
    """Compares every file of an environment with RECORD, its own files with the note on it, and its Python with
    the archive, if it was sent. A new environment has no note yet: then python names its Python. Does
    not read known files."""

    def __init__(self, folder, python=None, known=None):
        self.folder, self.site, self.listed, self.wrong, self.lines = folder, site_of(folder), set(), [], []
        self.packages, self.known = {}, known
        mark = mark_of(os.path.basename(folder))
        self.python = python or (mark or {}).get("python") or None
        if self.python:
            self.interpreter(folder)
        for entry in sorted(os.listdir(self.site) if os.path.isdir(self.site) else []):
            if entry.endswith(".dist-info"):
                self.package(entry)
        self.own = {}  # the content of those files that belong to no package, such as pyvenv.cfg
        for path, is_link in walk(folder, byte_code=True):
            inside = path.startswith(self.site + os.sep)
            name = path[len(self.site) + 1:] if inside else os.path.relpath(path, self.site)
            if name.startswith(".dsbuild/"):  # the notes of a deploy into this environment
                continue
            if name in self.listed or is_byte_code(name) and not is_link and module_of(name) in self.listed:
                continue
            if inside:
                self.wrong.append(name + " belongs to no package")
            elif path != os.path.join(folder, NOTE):
                self.own[path[len(folder) + 1:]] = told_file(path, is_link)
        if mark:
            noted = mark.get("own") if isinstance(mark.get("own"), dict) else {}
            self.wrong += [name + " is missing" for name in noted if name not in self.own]
            self.wrong += [name + (" is altered" if name in noted else " belongs to no package") for name in self.own if self.own[name] != noted.get(name)]

    def interpreter(self, folder):
        """Check that the Python that was sent matches its archive, and that the environment uses it."""
        place, program = os.path.join(PYTHONS, self.python["sha256"]), os.path.join(PYTHONS, self.python["program"])
        self.wrong += ["python: " + fault for fault in altered_python(place, self.python["tree"])]
        if os.path.realpath(python_of(folder)) != os.path.realpath(program):
            self.wrong.append("bin/python is a different Python")

    def package(self, entry):
        info, lines = os.path.join(self.site, entry), []
        rows = record_rows(info)
        if rows is None:
            self.wrong.append(entry + " has no RECORD")
            return
        for row in rows:
            path = row[0]
            whole = os.path.normpath(os.path.join(self.site, path))
            if not whole.startswith(self.folder + os.sep):
                self.wrong.append("%s, listed in %s, is outside the environment" % (whole, entry))
                continue
            algorithm, _, want = row[1].partition("=")
            if algorithm in HASHES or path.startswith(entry + "/") and path[len(entry) + 1:] in OWN:
                self.listed.add(path)
            if algorithm not in HASHES:
                continue
            try:
                sum = self.known.sha256(os.path.join(self.site, path)) if self.known else file_digest(os.path.join(self.site, path)).hexdigest()
                same = bytes.fromhex(sum) if algorithm == "sha256" else file_digest(os.path.join(self.site, path), getattr(hashlib, algorithm)).digest()
            except OSError:
                self.wrong.append(row[0] + " is missing")
                continue
            if written(same) != want.rstrip("="):
                self.wrong.append(row[0] + " is altered")
            line = "%s\0%s\n" % (path, sum)
            if path.startswith(".."):
                self.lines.append(line)
            elif not (path.startswith(entry + "/") and path[len(entry) + 1:] in OWN):
                lines.append(line)
        self.wrong += wrong_modules(self.site, [row[0] for row in rows], self.known)
        name, version = metadata_of(info)
        sum = hashlib.sha256("".join(sorted(set(lines))).encode("utf-8", "surrogateescape")).hexdigest()
        self.packages[normal(name)] = {"version": version, "digest": sum}

    def describe(self):
        """The result in the form for the controller."""
        every = sorted(self.lines + ["%s\0%s\n" % (name, p["digest"]) for name, p in self.packages.items()])
        sum = hashlib.sha256("".join(every).encode("utf-8", "surrogateescape")).hexdigest()
        return {"python_tree": self.python["tree"] if self.python else "", "packages": self.packages, "digest": sum, "wrong": sorted(self.wrong)[:MOST_WRONG], "more": max(0, len(self.wrong) - MOST_WRONG)}
