"""dsbuild's notes on its last change of an environment: change.json while the change is made, then
previous/change.json. They name files relative to the environment and say which environment they are of,
because environments are moved, copied and linked."""
import os
import sys

from dsbuild_node.distributions import home, scripts_folder, sites
from dsbuild_node.files import is_locked, open_regular, read_json
from dsbuild_node.journal import BUSY, LAST, is_run, last_entry

BASES = {"site": sites()[0], "platform": sites()[-1], "prefix": os.path.realpath(sys.prefix), "scripts": scripts_folder()}


class BadNote(ValueError):
    """A note that cannot be used, with the code of a hint."""

    def __init__(self, text, advice):
        ValueError.__init__(self, text)
        self.advice = advice


def name_of(path):
    """The name of a path in this environment: the folder of BASES that it is in, and the rest."""
    for base, folder in BASES.items():
        if path.startswith(folder + os.sep):
            return base + path[len(folder):]
    raise BadNote("%s is outside the environment" % path, "")


def path_of(name):
    """The path of a name. Fails for a name that leads out of the environment."""
    base, _, rest = (name if isinstance(name, str) else "").partition("/")
    if base not in BASES or "\0" in rest or any(part in ("", ".", "..") for part in rest.split("/")):
        raise BadNote("invalid file name %.100r" % (name,), "look-at-kept")
    return os.path.join(BASES[base], rest)


def identity():
    """What notes say of their environment."""
    st = os.stat(BASES["site"])
    return {"path": BASES["site"], "device": st.st_dev, "inode": st.st_ino}


def is_copy(of):
    """Whether a note is of another environment. This one may have been moved: then nothing is at the old path."""
    here = identity()
    return of != dict(here, path=of["path"]) and of["path"] != here["path"] and os.path.isdir(of["path"])


def advice_on(path):
    """The code of the hint for a note that cannot be used."""
    return "look-at-kept" if os.path.dirname(path) == home() else "deploy-wanted"


def rolled_back():
    """The run that the last change undid, None if that was no rollback."""
    try:
        entry = last_entry(os.path.join(home(), "journal.jsonl"))
    except (OSError, ValueError):
        return None
    return entry["undone"] if entry.get("do") == "rollback" and is_run(entry.get("undone")) else None


def read_note(path):
    """The note in a file; None if there is no file. If the file exists but cannot be used (a stale NFS handle, a
    torn file, a copied environment), this fails: the files that it lists may be the only copy of the old DeepSpeed."""
    advice = advice_on(path)
    try:
        with open(open_regular(path), "rb") as f:
            note = read_json(f.read(min(os.fstat(f.fileno()).st_size, 1 << 26)))  # read allocates what it may read
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as e:
        raise BadNote("cannot read %s: %s" % (path, getattr(e, "strerror", None) or e), advice)
    forms = {"run": str, "runs": list, "of": dict, "done": bool, "kept": str, "before": (dict, type(None)), "records": list, "roots": list}
    if isinstance(note, dict) and note.get("done"):
        forms.update(installed=(dict, type(None)), journal=dict, forget=bool, again=bool, digests=dict, foreign=list)
    wrong = [key for key, form in forms.items() if not isinstance(note, dict) or not isinstance(note.get(key), form)]
    if not wrong:
        wrong = [key for key, right in (
            ("runs", note["runs"] and all(map(is_run, note["runs"]))),
            ("run", os.sep not in note["run"]), ("of", isinstance(note["of"].get("path"), str)), ("kept", note["kept"].startswith("kept-") and os.sep not in note["kept"]),
            ("roots", all(isinstance(root, dict) and isinstance(root.get("was"), bool) for root in note["roots"]))) if not right]
    if wrong:
        raise BadNote("cannot read %s: missing or invalid %s" % (path, ", ".join(wrong)), advice)
    for name in [root.get("name") for root in note["roots"]] + list(note.get("digests") or ()):
        path_of(name)
    if is_copy(note["of"]):
        raise BadNote("%s is of %s, of which this environment is a copy" % (path, note["of"]["path"]), advice)
    return note


def noted_sha256(noted):
    """Return the sha256 of the wheel in a note, if any."""
    return str(noted.get("sha256", "")) if isinstance(noted, dict) else ""


def foreign_folder(change):
    """The folder in HOME for those files which a change has moved aside and dsbuild did not install, if any."""
    return "foreign-" + change["run"] if change.get("foreign") else ""


def last_change(drift=lambda change: ("", "")):
    """The change that a rollback undoes, for the controller; None if there is none. drift tells what else has
    changed since, and the code of a hint."""
    told = dict(LAST, version="", sha256="", foreign="")
    try:
        change = read_note(os.path.join(home(), "change.json"))
        told["interrupted"] = change is not None and not change["done"]
        if change and change["done"] and change["forget"]:
            return dict(told, runs=[change["journal"]["undone"]], undone=True) if is_run(change["journal"].get("undone")) else None
        last = change
        if not change or change["done"] and change["again"]:
            last = read_note(os.path.join(home(), "previous", "change.json")) or change
        if not last:
            run = rolled_back()
            return dict(told, runs=[run], undone=True) if run else None
    except BadNote as e:
        return dict(told, wrong=str(e), advice=e.advice)
    was = last["before"] or {}
    runs = last["runs"] + (change["runs"] if change and change is not last else [])
    told.update(version=str(was.get("version", "")), sha256=str(was.get("sha256", "")), runs=runs, foreign=foreign_folder(last))
    if told["interrupted"] and is_locked(os.path.join(home(), "lock")):
        told.update(BUSY)
    else:
        told["wrong"], told["advice"] = drift(last)
    return told
