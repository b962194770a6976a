"""Follows the probe: inspects the DeepSpeed of a node, regardless of its installer. It sends the
digests of the files; the control node checks them. Writes nothing."""
import hashlib
import os
import sys
from errno import ENOENT, ENOTDIR

from dsbuild_node.distributions import (
    dist_infos, home, installed, metadata_version, named_infos, noted_extra_wheels, record_sha256, scripts_folder,
    sites)
from dsbuild_node.controller import REQUEST, emit
from dsbuild_node.files import load_json, text
from dsbuild_node.import_check import Failed, attempt, check_found, check_place, found_by_import, shadow_advice
from dsbuild_node.record import (
    HASHES, altered, file_digest, interpreter_of, is_code, is_vouched, owners, record_rows, unknown_entries, walk, written,
    wrong_byte_code)

MOST_FILES = 10000  # of one package; more are not DeepSpeed's
MOST_NAMED = 50  # files of one kind that are named


def digests(rows):
    """(files of the package, files elsewhere, other files in the package's folder, its links).
    The first two map a path to "RECORD ACTUAL": the digest in RECORD (empty if RECORD does not
    list the file), a space, and the actual digest (empty if the file is missing, or "unreadable"). If RECORD uses
    another algorithm than sha256, a space and the actual sha256 follow. Paths start at the
    working directory, because the kernel is quicker with short ones."""
    new, files, others, listed, besides = hashlib.sha256, {}, {}, set(), []
    links = {"folders": [], "files": []}
    for row in rows or []:
        path, said = row[0], row[1]
        if not is_vouched(path, said):
            continue
        listed.add(path)
        algorithm = said.partition("=")[0]
        if algorithm not in HASHES:
            continue  # byte code, RECORD itself
        try:
            told = file_digest(path, new).hexdigest()
            if algorithm != "sha256":
                told = file_digest(path, getattr(hashlib, algorithm)).hexdigest() + " " + told
        except OSError as e:
            told = "" if e.errno in (ENOENT, ENOTDIR) else "unreadable"
        (files if path.startswith("deepspeed/") else others)[path] = said + " " + told
    for path, is_link in walk("deepspeed"):
        if path in listed:
            links["files"] += [path] * is_link
        elif is_link and os.path.isdir(path):
            links["folders"].append(path)
        elif rows is None or is_code(path):
            files[path] = " " + digest_or_not(path)
        else:
            besides.append(path)
        if len(files) > MOST_FILES:
            break
    return files, others, besides, links


def digest_or_not(path):
    """The digest of a file that RECORD does not list, or "unreadable"."""
    try:
        return file_digest(path).hexdigest()
    except OSError:
        return "unreadable"


def tell_modes(paths):
    """Report files, by paths from the working directory, that other users cannot read though they may read the
    folder of the packages, and files that every user can change."""
    readable, private, open_to_all = os.stat(".").st_mode & 0o044, [], []
    for path in paths:
        try:
            mode = os.stat(path).st_mode
        except OSError:
            continue
        private += [path] * bool(readable & ~mode)
        open_to_all += [path] * bool(mode & 0o002)
    if private:
        emit({"note": "unreadable for other users of this environment: %s; restore permissions with chmod -R go+rX" % some(private)})
    if open_to_all:
        emit({"note": "world-writable: %s; fix permissions with chmod -R o-w" % some(open_to_all)})


def digests_agree(told):
    """Whether the two digests in a value of digests are equal."""
    said, actual = told.split(" ")[:2]
    try:
        return written(bytes.fromhex(actual)) == said.partition("=")[2].rstrip("=")
    except ValueError:  # unreadable
        return False


def leave_to_owners(info, files):
    """Report code that belongs to other distributions, and remove from files what RECORD does not list of it: a deploy
    does not move that code. If DeepSpeed has a file at the same path, a deploy fails."""
    site = os.path.dirname(info)
    owned = owners([os.path.join(site, path) for path, told in files.items() if not digests_agree(told)], {"deepspeed"})
    for owner in sorted(set(owned.values())):
        paths = sorted(path[len(site) + 1:] for path in owned if owned[path] == owner)
        unlisted = [path for path in paths if files[path].startswith(" ")]
        emit({"wrong": "code in DeepSpeed's directory belongs to %s: %s" % (owner, some(paths)),
              "advice": "code-of-package" if paths == unlisted else "another-package"})
        for path in unlisted:
            del files[path]


def some(paths):
    """The first paths, for a sentence."""
    return ", ".join(paths[:4]) + (" and more" if paths[4:] else "")


def folder_id(path):
    """(device, inode) of a file's folder. It returns None if that does not exist."""
    try:
        st = os.stat(os.path.dirname(path))
    except OSError:
        return None
    return st.st_dev, st.st_ino


def tell_foreign_commands(site, rows):
    """Report commands that start a Python outside this environment: nodes may have mounted one environment
    at several paths, and its commands know one of them."""
    for row in rows:
        if not row[0].startswith("../"):
            continue
        path = os.path.normpath(os.path.join(site, row[0]))
        program = interpreter_of(path) if os.path.dirname(path) == scripts_folder() else ""
        is_python = program.startswith("/") and os.path.basename(program).startswith("python")
        if is_python and folder_id(program) not in (folder_id(path), folder_id(sys.executable)):
            # The system's Python may have another link to it, but a venv's is a link to the Python of another environment.
            if sys.prefix == sys.base_prefix and os.path.realpath(program) == os.path.realpath(sys.executable):
                continue
            emit({"wrong": "command %s starts the Python of another environment: %s" % (path, program), "advice": "other-python"})
            return


def look_at_files(info):
    """The files of DeepSpeed, their digests and their faults."""
    rows, here = record_rows(info), os.open(".", os.O_PATH)
    tell_foreign_commands(os.path.dirname(info), rows or [])
    os.chdir(os.path.dirname(info))
    try:
        files, others, besides, links = digests(rows)
        others.update((path, " " + digest_or_not(path)) for path in unknown_entries(info, rows or []) if rows is not None)
        tell_modes(["deepspeed"] + sorted(files) + sorted(others))
    finally:
        os.fchdir(here)
    if len(files) + len(others) > MOST_FILES:
        raise Failed("more than %d files in the deepspeed directory: not a DeepSpeed installation" % MOST_FILES, "too-many-files")
    if rows is not None:
        leave_to_owners(info, files)
    if links["files"]:
        emit({"note": "DeepSpeed files are symbolic links, whose targets were compared: %s" % some(sorted(links["files"]))})
    code = wrong_byte_code(info, rows or [[path, ""] for path in files])
    lines = "".join(["%s\0%s\n" % file for file in sorted(files.items())])
    digest = hashlib.sha256(lines.encode("utf-8", "replace")).hexdigest()
    # The controller need not get a list again that another node has sent.
    return {"digest": digest, "files": {} if digest in REQUEST["known"] else files, "others": others, "bare": rows is None,
            "conda": text(os.path.join(info, "INSTALLER")).strip() == "conda",
            "links": counted(links["folders"]), "code": counted(code), "litter": counted(besides)}


def counted(paths):
    """The number of paths, and the first of them."""
    return {"count": len(paths), "first": sorted(paths)[:MOST_NAMED]}


def noted_by_dsbuild(record):
    """dsbuild's note on its installation, and whether RECORD is still the one in the note."""
    noted = load_json(os.path.join(home(), "installed.json"))
    if noted is None:
        return {}
    kept = {key: str(noted.get(key, "")) for key in ("wheel", "sha256", "version")}
    kept["same"] = bool(record) and noted.get("record") == record
    kept["extra_wheels"] = noted_extra_wheels(noted)
    return kept


def inspect_extra_wheels(wheels):
    """Check the wheels that dsbuild installed with DeepSpeed."""
    infos = dict(reversed(list(named_infos()))) if wheels else {}
    for wheel in wheels:
        name = wheel["name"]
        info = infos.get(name)
        if info is None:
            emit({"wrong": "%s, which dsbuild installed with DeepSpeed, is missing" % name, "advice": "deploy-bundle"})
            continue
        if record_sha256(info) != wheel["record"]:
            emit({"note": "%s, which was installed with DeepSpeed, has been replaced" % name})
            continue
        wrong = altered(info)
        if wrong:
            emit({"wrong": "files of %s are missing or do not match RECORD: %s" % (name, some(wrong)), "advice": "deploy-bundle-force"})
        attempt(lambda: check_found(name, metadata_version(info)))


def manifest(info):
    """The targets in the manifest of a wheel that dsbuild built, or None."""
    whole = load_json(os.path.join(info, "dsbuild.json"))
    keys = ("name", "version", "source", "ops", "archs", "ptx", "op_archs", "variants", "cpu", "python", "torch", "cuda", "torch_abi", "glibc",
            "glibcxx", "cxx11abi")
    return {key: whole[key] for key in keys if key in whole} if isinstance(whole, dict) else None


def check_unregistered(package):
    """No distribution of the environment is the DeepSpeed that an import finds."""
    if os.path.dirname(package) not in sites():
        raise Failed("no DeepSpeed in the environment: import finds %s" % package, shadow_advice(os.path.dirname(package)))
    owner = "".join(set(owners([os.path.join(package, "__init__.py")], {"deepspeed"}).values()))
    raise Failed("no DeepSpeed in the environment, but %s, which belongs to %s" % (package, owner or "no package"),
                 "another-package" if owner else "deploy-again")


def check_interrupted():
    """The next deploy must be able to undo a change that was interrupted."""
    from dsbuild_node.installation import drift  # few nodes need to compile it
    from dsbuild_node.notes import BadNote, read_note

    try:
        change = read_note(os.path.join(home(), "change.json"))
    except BadNote as e:
        raise Failed(str(e), e.advice)
    wrong, advice = drift(change) if change and not change["done"] else ("", "")
    if wrong:
        raise Failed(wrong, advice)


def tell_taken(rows):
    """Send the commands that RECORD does not list and that a deploy would find in its way."""
    listed = {os.path.basename(row[0]) for row in rows}
    there = [name for name in REQUEST["commands"] if name not in listed and os.path.lexists(os.path.join(scripts_folder(), name))]
    if there:
        from dsbuild_node.installation import taken

        emit({"taken": taken(there)})


def look(found):
    infos = dist_infos(sites())
    tell_taken(record_rows(infos[0]) or [] if infos else [])
    if found["unfinished"]:
        attempt(check_interrupted)
    if not infos:
        package = found_by_import("deepspeed")
        if package:
            attempt(lambda: check_unregistered(package))
        return
    attempt(check_place)
    info = infos[0]
    if len(infos) > 1:
        emit({"wrong": "several DeepSpeed distributions are installed: %s" % ", ".join(os.path.basename(i) for i in infos),
              "advice": "several"})
    facts = found["deepspeed"] or installed()  # a deploy may have come in between
    noted = noted_by_dsbuild(facts["record"])
    extra = noted.pop("extra_wheels", [])
    looked = {"version": facts["version"], "noted": noted or None, "manifest": manifest(info)}
    looked.update(look_at_files(info))
    emit({"looked": looked})
    inspect_extra_wheels(extra)


def follow(found):
    """Run after the probe has found its facts."""
    attempt(lambda: look(found))
    emit({"done": True})
