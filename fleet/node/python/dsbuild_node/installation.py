"""Which files belong to the DeepSpeed of this environment, and what has become of it since dsbuild's last change: for
programs that change an environment. One that only verifies it need not compile this."""
import os
import sys

from dsbuild_node.distributions import (
    dist_info, dist_infos, home, installed, metadata_version, named_infos, noted_extra_wheels, own_note, record_sha256,
    scripts_folder, site_names, sites)
from dsbuild_node.files import content, load_json, text
from dsbuild_node.record import (
    altered, interpreter_of, is_as_recorded, owners, record_rows, rows_in, unknown_code, unknown_entries, wrong_byte_code)


def record_of(name):
    """Return the sha256 of a distribution's RECORD, or ""."""
    for found, info in named_infos():
        if found == name:
            return record_sha256(info)
    return ""


def other_pythons():
    """The site-packages of the other Pythons that put their commands into the same folder as this one."""
    folder, found = scripts_folder(), {}
    base = sys.prefix if os.path.realpath(os.path.join(sys.prefix, "bin")) == folder else os.path.dirname(folder)
    for lib in os.listdir(base):
        libraries = os.path.join(base, lib)
        for python in os.listdir(libraries) if lib.startswith("lib") and os.path.isdir(libraries) else ():
            there = python.startswith(("python", "pypy")) and any(os.path.exists(os.path.join(bin, python)) for bin in (folder, "/usr/bin"))
            for place in [os.path.join(libraries, python, name) for name in ("site-packages", "dist-packages") if there]:
                found.setdefault(os.path.realpath(place), place)
    return sorted(place for real, place in found.items() if real not in sites() and os.path.isdir(place))


def recorded_commands(paths, places):
    """Those of the commands that a RECORD in these places lists, and that are as it says: the place of each."""
    found, marks = {}, [os.fsencode("/" + os.path.basename(path)) + b"," for path in paths]
    for _, info in named_infos(places) if paths else ():
        data, place = content(os.path.join(info, "RECORD"), 1 << 26), os.path.dirname(info)
        for row in rows_in(data, place) if any(mark in data for mark in marks) else ():
            path = os.path.normpath(os.path.join(os.path.realpath(place), row[0]))
            if path in paths and is_as_recorded(path, row[1]):
                found[path] = place
    return found


def of_other_pythons(paths):
    """Those of the commands that belong to another Python of this prefix: its site-packages for each. A command is
    this Python's if it is as this one's RECORD says; else the other's if it is as the other's RECORD says, or starts it."""
    folder = scripts_folder()
    paths = {path for path in paths if os.path.dirname(path) == folder and os.path.lexists(path)}
    others = other_pythons() if paths else []
    if not others:
        return {}
    paths -= set(recorded_commands(paths, sites()))
    found, names = recorded_commands(paths, others), {os.path.basename(os.path.dirname(place)): place for place in others}
    for path in paths.difference(found):
        program = interpreter_of(path)
        place = names.get(os.path.basename(os.path.realpath(program))) if program else None
        found.update({path: place} if place else {})
    return found


def entry_commands(info):
    """The names of the commands in the entry_points.txt of a distribution."""
    section, names = "", set()
    for line in text(os.path.join(info, "entry_points.txt")).splitlines():
        section = line.strip(" \t[]") if line.lstrip().startswith("[") else section
        if section in ("console_scripts", "gui_scripts") and "=" in line:
            names.add(line.partition("=")[0].strip())
    return names


def is_environments(path):
    """Whether a file outside of site-packages is part of the environment itself: no RECORD makes it a package's own."""
    folder, name = os.path.split(path)
    stem = name.lower().replace("-config", "").rstrip("0123456789.dtw")
    if folder == scripts_folder() and (stem in ("python", "pypy", "pydoc") or name.lower().split(".")[0] in ("activate", "deactivate", "activate_this")):
        return True
    libraries = [os.path.realpath(path) for path in [os.path.dirname(name) for name in site_names().values()] + [os.path.dirname(os.__file__)]]
    return name == "pyvenv.cfg" or any(mark + os.sep in path for mark in (os.sep + "conda-meta", os.sep + ".dsbuild")) or \
        path.startswith(tuple(library + os.sep for library in libraries))


def recorded_file(info, row, commands):
    """(path, whether the file is the package's own) of a row of RECORD. A folder never is: it may have files of others.
    Outside of site-packages a row alone does not make a file the package's own: it needs the digest of the file, or the
    file is one of commands."""
    path = os.path.normpath(os.path.join(os.path.dirname(info), row[0]))
    if path.startswith(tuple(place + os.sep for place in sites())) and os.sep + ".dsbuild" + os.sep not in path:
        return path, os.path.islink(path) or not os.path.isdir(path)
    if is_environments(path):
        return path, False
    if os.path.dirname(path) == scripts_folder() and os.path.basename(path) in commands:
        return path, True
    return path, not os.path.islink(path) and is_as_recorded(path, row[1])


def taken(commands):
    """The commands of wheels that exist here and do not belong to DeepSpeed, each with the distribution that
    owns it, the site-packages of the other Python that does, or ""."""
    folder = scripts_folder()
    there = {os.path.join(folder, name): name for name in commands if os.path.lexists(os.path.join(folder, name))}
    others = of_other_pythons(there)
    for info in dist_infos(sites()) if there else ():
        for row in record_rows(info) or ():
            path, _ = recorded_file(info, row, ())
            if path not in others:  # a command that RECORD lists may be replaced even if it was altered
                there.pop(path, None)
    owner = dict(owners(list(there), {"deepspeed"}), **others)
    return {name: owner.get(path, "") for path, name in there.items()}


def edits(info):
    """The first few paths of a DeepSpeed that were changed: files that differ from RECORD; code that
    RECORD does not list and no other distribution owns. Byte code in __pycache__ is Python's, and no one's work."""
    wrong, rows, site = altered(info), record_rows(info), os.path.dirname(info)
    if wrong or rows is None:
        return wrong
    unknown = [os.path.join(site, path) for path in unknown_code(site, rows)]
    owned = owners(unknown, {"deepspeed"})
    return ([path[len(site) + 1:] for path in unknown if path not in owned] or unknown_entries(info, rows))[:5]


def faults(info):
    """The first few paths of a DeepSpeed that are not as installed: edits, or byte code of other code than its module."""
    rows = record_rows(info)
    return edits(info) or ([] if rows is None else wrong_byte_code(info, rows)[:5])


def stranger(change):
    """The dist-info of a DeepSpeed that was installed after an unfinished change was cut off; None if there is none."""
    for info in dist_infos(sites()):
        rows = [row[:2] for row in record_rows(info) or ()]
        # An installer unpacks the wheel's RECORD, and lists its own files there at the end.
        whole = any(name.endswith("/INSTALLER") for name, _ in rows)
        own = "wheel" in change and all(row in rows for row in change["wheel"])
        if whole and not own and record_sha256(info) not in change["records"]:
            return info
    return None


def built_as(info):
    """The file name of an installed wheel, by its manifest. Empty if dsbuild did not build it."""
    whole = load_json(os.path.join(info, "dsbuild.json"))
    return str(whole.get("name", "")) if isinstance(whole, dict) else ""


def drift(change, found=None):
    """What is not as a change of dsbuild's has left it, in words, and the code of a hint. found is the DeepSpeed
    there, if its files are compared."""
    infos, noted = dist_infos(sites()), load_json(os.path.join(home(), "installed.json"))
    if not change["done"]:
        info = stranger(change)
        since = "DeepSpeed %s was installed after the interrupted deploy, whose files are in %s"
        return (since % (metadata_version(info), os.path.join(home(), change["kept"])), "look-at-kept") if info else ("", "")
    if noted is None:
        return "cannot read %s" % os.path.join(home(), "installed.json"), "deploy-wanted"
    was = "%s, which dsbuild installed, " % (noted.get("wheel") or "DeepSpeed %s" % noted.get("version", ""))
    if not infos:
        return was + "was removed", "deploy-wanted"
    if len(infos) > 1 or own_note(record_sha256(infos[0])) is None:
        return was + "was replaced: %s" % ", ".join(built_as(info) or os.path.basename(info) for info in infos), "deploy-wanted"
    edited = edits(infos[0]) if (found or {}).get("altered", True) else []
    extra = {w["name"]: w["record"] for w in noted_extra_wheels(change)}
    for name, info in named_infos() if extra else ():
        if name in extra:
            edited += altered(info) if record_sha256(info) == extra.pop(name) else [os.path.basename(info)]
    edited += sorted(extra)  # they are gone
    return (was + "was changed: %s" % ", ".join(edited[:5]), "deploy-wanted") if edited else ("", "")


def compared(files=True):
    """The DeepSpeed of this environment as installed returns it. Its files are compared with RECORD if
    files is True, or holds the sha256 of the wheel it came from."""
    found = installed()
    if found and (files is True or found["sha256"] and found["sha256"] in files):
        info = dist_info(sites())
        found["altered"] = faults(info)
        found["intact"] = own_note(found["record"]) is not None and not found["altered"] and len(dist_infos(sites())) == 1
    return found
