"""The agent that changes an environment. It lives as long as its standard input: when the
controller goes away, for any reason, the input ends and the node itself restores the
environment.

All files of dsbuild are in HOME:
  lock             held while this program runs
  change.json      a change under way: enough to undo it after a power cut
  kept-RUN/        the files that the change has moved aside
  foreign-RUN/     files that a change moved aside and dsbuild had not installed: they stay
  inbox/           uploads; the next run continues those that a lost connection cut off
  run-*/           temporary files
  installed.json   a note on the installed version
  previous/        the version before it
  bytecode.xz      the byte code that came with the wheel
  signed/          the signatures of the installed wheel and of the previous one
  journal.jsonl    a line for each change"""
import errno
import hashlib
import os
import shutil
import stat
import sys
import zipfile

from dsbuild_node.accepted import forget_signed, kept_answer, refuse_others, store_signed
from dsbuild_node.changes import (
    GONE, Workplace, digest_of, end_sync, exists, installer_env, mounted, put_aside, remove, run_agent, run_program,
    save_json, start_sync, sweep, sweep_trials)
from dsbuild_node.check import check
from dsbuild_node.distributions import (
    dist_info, dist_infos, home, installed, metadata_version, named_infos, normal, noted_extra_wheels, own_note,
    record_sha256, scripts_folder, sites)
from dsbuild_node.controller import REQUEST
from dsbuild_node.files import content, foreign_owner, load_json, resolved
from dsbuild_node.import_check import Failed
from dsbuild_node.in_use import users
from dsbuild_node.installation import (
    compared, drift, entry_commands, is_environments, of_other_pythons, record_of, recorded_file)
from dsbuild_node.notes import (
    BASES, BadNote, advice_on, foreign_folder, identity, last_change, name_of, noted_sha256, path_of, read_note)
from dsbuild_node.private import first_unsafe
from dsbuild_node.record import file_digest, owners, record_rows, rows_in, unknown_code, walk, written, wrong_byte_code

HOME = home()
CHANGE = os.path.join(HOME, "change.json")
INSTALLED = os.path.join(HOME, "installed.json")
PREVIOUS = os.path.join(HOME, "previous")
BYTE_CODE = os.path.join(HOME, "bytecode.xz")
MOST_FIRST_LINE = 120  # bytes of an interpreter's path that every kernel reads in a script
OTHERS = ("torch", "torchgen", "functorch", "triton", "nvidia", "deepspeed", "sitecustomize", "usercustomize")  # names that no other wheel owns
COPY = ".dsbuild-copy"  # move leaves a file with this ending, or with GONE, if it is cut off


def read_change(path):
    """The change that a file notes; None if there is no file. Every path that it names must be in the environment."""
    try:
        change = read_note(path)
        for root in change["roots"] if change else ():
            inside(path_of(root["name"]))
    except BadNote as e:
        raise Failed(str(e), e.advice)
    except Failed as e:
        raise Failed("%s: %s" % (path, e), advice_on(path))
    return change


def previous_change():
    """The change that PREVIOUS keeps the files of; None if there is none."""
    if os.path.islink(PREVIOUS):
        raise Failed("%s is a link" % PREVIOUS, "deploy-wanted")
    return read_change(os.path.join(PREVIOUS, "change.json"))


def kept_change():
    """previous_change, None also if its note cannot be used."""
    try:
        return previous_change()
    except Failed:
        return None


def move(source, target):
    """Rename source to target. If that is impossible (a lower layer of an overlay, another
    file system), copy it: target appears under its name at once and whole, and then source
    disappears from its name at once."""
    try:
        os.rename(source, target)
        return
    except OSError as e:
        if e.errno != errno.EXDEV:
            raise
    copy, gone = target + COPY, source + GONE
    remove(copy)
    if os.path.isdir(source) and not os.path.islink(source):
        shutil.copytree(source, copy, symlinks=True)
    else:
        shutil.copy2(source, copy, follow_symlinks=False)
    end_sync(start_sync([os.path.dirname(copy)]))
    os.rename(copy, target)
    try:
        os.rename(source, gone)
    except OSError:
        gone = source
    remove(gone)


def inside(path):
    """Return path resolved. It must be in this environment, and not among dsbuild's own files."""
    real = resolved(path)
    if (real + os.sep).startswith((HOME + os.sep, os.path.realpath(HOME) + os.sep)):
        raise Failed("package file %s is among dsbuild's own files" % path)
    if not real.startswith(tuple(base + os.sep for base in BASES.values())):
        raise Failed("package file %s is outside the environment" % path)
    return real


def outermost(paths):
    """Return paths without those inside another path, which move with it."""
    kept = []
    for path in sorted(set(paths), key=lambda p: p.split(os.sep)):
        if not kept or not path.startswith(kept[-1] + os.sep):
            kept.append(path)
    return kept


def check_wheel(wheel, digests):
    """Check that the file is the wheel that was sent."""
    got = digest_of(wheel["file"], digests)
    if got != wheel["sha256"]:
        raise Failed("%s has sha256 %s, not %s" % (wheel["file"], got, wheel["sha256"]))


class Replacement:
    """The paths that a change moves aside: the files of the replaced distributions, and files
    that are in the way of new ones. All other files stay, also in shared folders."""

    def __init__(self, names):
        self.names, self.own, self.packages, self.altered = set(names), set(), [], set()
        for name, info in named_infos():
            if name not in self.names:
                continue
            rows = record_rows(info) if os.path.isdir(info) else None
            if not rows:
                raise Failed("%s has no RECORD, which a rollback of %s needs" % (info, name), "remove-deepspeed" if name == "deepspeed" else "replace-by-hand")
            commands, files, altered = entry_commands(info), {info}, set()
            for row in rows:
                path, own = recorded_file(info, row, commands)
                if own:
                    files.add(path)
                elif os.path.dirname(path) == scripts_folder() and not is_environments(path):
                    altered.add(path)
            others = set(owners(files | altered, self.names)) | set(of_other_pythons(files | altered))
            self.own |= files - others
            self.altered |= altered - others
        for place in sites() if "deepspeed" in self.names else ():
            self.packages.append(os.path.join(place, "deepspeed"))
            # verify reports code without an owner as a difference, so a deploy removes it.
            unknown = [os.path.join(place, path) for path in unknown_code(place, [])]
            self.own |= set(unknown) - set(owners([path for path in unknown if path not in self.own], self.names))

    def roots(self, incoming):
        """The paths to move aside for new files. incoming maps the path of each new file to a
        function that reports whether the file there is the same; None if that is unknown."""
        self.own |= self.altered & set(incoming)  # a new command replaces the old one even if that was altered
        moved, blocking = self.own_roots(), {}
        for path in sorted(incoming):
            root = first_new(path, BASES.values(), moved)
            if root is None:
                continue
            if exists(root):
                blocking[root] = incoming[path] if root == path else None
            moved.add(root)
        self.refuse_foreign(blocking)
        return outermost([inside(path) for path in moved])

    def own_roots(self):
        """All paths of the replaced distributions. A folder that holds nothing else is one path."""
        moved, tops, places = set(), set(), sites()
        for path in self.own:
            place = [place for place in places if path.startswith(place + os.sep)]
            top = os.path.join(place[0], path[len(place[0]) + 1:].split(os.sep)[0]) if place else path
            if top == path or os.path.islink(top) and top not in self.packages:
                moved |= {path} if exists(path) else set()
            else:
                tops.add(top)
        for top in tops:
            moved |= {top} if os.path.islink(top) else set(self.parts(top)) if os.path.isdir(top) else set()
        return moved

    def parts(self, folder):
        """The paths in a folder that move; only the folder itself if all of it moves."""
        found, whole = [], True
        with os.scandir(folder) as listing:
            entries = list(listing)
        for entry in entries:
            if entry.path in self.own or self.is_own_byte_code(entry.path):
                found.append(entry.path)
            elif entry.is_dir(follow_symlinks=False):
                inner = self.parts(entry.path)
                whole = whole and inner == [entry.path]
                found += inner
            else:
                whole = False
        package = any((folder + os.sep).startswith(package + os.sep) for package in self.packages)
        return [folder] if whole and (found or package) else found

    def is_own_byte_code(self, path):
        """Whether path is byte code of a replaced module, or of a module of DeepSpeed that is gone."""
        cache, name = os.path.split(path)
        folder, above = os.path.split(cache)
        if above != "__pycache__" or not name.endswith(".pyc"):
            return False
        module = os.path.join(folder, name.split(".")[0] + ".py")
        return module in self.own or not exists(module) and any(path.startswith(package + os.sep) for package in self.packages)

    def refuse_foreign(self, blocking):
        """Refuse a change that would replace files of other packages, or of no package."""
        blocking = {path: same for path, same in blocking.items() if not path.endswith(".pyc")}
        owned, others, places = owners(list(blocking), self.names), of_other_pythons(blocking), sites()
        for path, same in sorted(blocking.items()):
            owner = owned.get(path)
            if path in others:
                raise Failed("%s belongs to the Python of %s and would be overwritten" % (path, others[path]), "another-python")
            if owner and not (same and same(path)):
                raise Failed("%s belongs to %s and would be overwritten" % (path, owner), "another-package")
            if not owner and (os.path.isdir(path) or not path.startswith(tuple(place + os.sep for place in places))):
                raise Failed("%s already exists, belongs to no package and would be overwritten" % path, "in-the-way")


def first_new(path, bases, moved):
    """The outermost folder or file, below one of bases, that a new file at path creates or
    replaces; None if that is moved aside anyway."""
    at = next((base for base in bases if path.startswith(base + os.sep)), os.path.dirname(path))
    for part in path[len(at) + 1:].split(os.sep):
        at = os.path.join(at, part)
        if at in moved:
            return None
        if not os.path.isdir(at):
            break
    return at


def holds(path, data):
    """Whether a plain file has this content."""
    return os.path.isfile(path) and not os.path.islink(path) and content(path, len(data) + 1) == data


def rows_of_info(wheel):
    """The names and digests of the files in a wheel's dist-info, which an installer copies as they are."""
    with zipfile.ZipFile(wheel) as z:
        record = next(name for name in z.namelist() if name.endswith(".dist-info/RECORD") and name.count("/") == 1)
        return [row[:2] for row in rows_in(z.read(record)) if row[1] and os.path.dirname(row[0]) == os.path.dirname(record)]


def new_files(wheel):
    """Every file that pip will install from a wheel, with byte code and commands. Maps its path to
    a function that reports whether a file there is the same; None if that is unknown."""
    import importlib.util
    import sysconfig

    files = {}
    with zipfile.ZipFile(wheel) as z:
        names = [n for n in z.namelist() if not n.endswith("/")]
        texts = {n.split("/")[1]: z.read(n).decode("utf-8", "replace") for n in names
                 if n.split("/")[0].endswith(".dist-info") and n.split("/")[1] in ("WHEEL", "entry_points.txt")}
    pure = "root-is-purelib: true" in texts.get("WHEEL", "").lower()
    site = os.path.realpath(sysconfig.get_path("purelib" if pure else "platlib"))
    headers = sysconfig.get_path("include")
    if sys.prefix != sys.base_prefix:
        headers = os.path.join(sys.prefix, "include", "site", "python%d.%d" % sys.version_info[:2])
    for name in names:
        parts, same = name.split("/"), same_as_member(wheel, name)
        if not parts[0].endswith(".data") or len(parts) < 3:
            files[os.path.join(site, *parts)] = same
        elif parts[1] in ("purelib", "platlib"):
            files[os.path.join(os.path.realpath(sysconfig.get_path(parts[1])), *parts[2:])] = same
        elif parts[1] == "headers":
            # pip adds a folder with the package's name, in one of two spellings.
            stem = parts[0].split("-")[0]
            files.update((resolved(os.path.join(headers, spelled, *parts[2:])), same) for spelled in (stem, stem.replace("_", "-")))
        elif parts[1] in ("scripts", "data"):
            files[resolved(os.path.join(sysconfig.get_path(parts[1]), *parts[2:]))] = same
        else:
            raise Failed("wheel has files for an unknown scheme: %r" % parts[1])
    files.update((os.path.join(scripts_folder(), command), None) for command in commands_of(texts.get("entry_points.txt", "")))
    files.update([(importlib.util.cache_from_source(path, optimization=""), None) for path in files if path.endswith(".py")])
    return files


def same_as_member(wheel, name):
    def same(path):
        with zipfile.ZipFile(wheel) as z:
            return holds(path, z.read(name))
    return same


def commands_of(entry_points):
    """The commands that pip makes from an entry_points.txt. Fails for a line that is not a plain
    NAME = MODULE:FUNCTION, because pip may read another name there."""
    import re

    found, section = set(), ""
    for line in entry_points.splitlines():
        line = line.strip()
        if line.startswith("[") and line.endswith("]"):
            section = line.strip("[]").strip()
        elif section in ("console_scripts", "gui_scripts") and line and line[0] not in "#;":
            plain_entry = re.fullmatch(r"([A-Za-z0-9_][A-Za-z0-9_.-]*)\s*=\s*[^\W\d][\w.]*(:[^\W\d][\w.]*)?\s*(\[[\w., -]*\])?", line)
            if not plain_entry:
                raise Failed("wheel has an ambiguous entry point: %.100r" % line)
            found.add(plain_entry.group(1))
    # pip adds versioned commands of pip and easy_install.
    if "pip" in found:
        found |= {"pip%d" % sys.version_info[0], "pip%d.%d" % sys.version_info[:2]}
    if "easy_install" in found:
        found.add("easy_install-%d.%d" % sys.version_info[:2])
    return found


def first_lines():
    """The first lines of a script that start this environment's Python: first the line of mend_first_lines, then
    pip's."""
    from shlex import quote

    folder, lines = os.path.dirname(sys.executable), []
    for name in dict.fromkeys((os.path.basename(sys.executable), "python", "python3", "python%d.%d" % sys.version_info[:2])):
        path, by_shell = os.path.join(folder, name), b"#!/bin/sh\n'''exec' %s \"$0\" \"$@\"\n' '''\n"
        python = os.fsencode(path)
        lines += [by_shell % os.fsencode(quote(path)), b"#!" + python + b"\n", by_shell % python, by_shell % (b'"' + python + b'"')]
    return lines


def mend_first_lines(info):
    """Correct the first line that pip gives to scripts. If the path of the interpreter has a
    space, or is longer than a kernel reads, the kernel cannot run that line, and a shell reads
    the line of a command wrongly. Then a shell starts the interpreter; RECORD gets the new digests."""
    python, place, record = os.fsencode(sys.executable), os.path.dirname(info), os.path.join(info, "RECORD")
    if len(python) < MOST_FIRST_LINE and not python.split()[1:]:
        return
    right, *wrong = first_lines()[:4]
    wrong = [line for line in wrong if line != right]
    lines = content(record, 1 << 26).splitlines(True)
    for i, row in enumerate(lines):
        for name, *_ in rows_in(row, place):
            path = os.path.join(place, name)
            data = content(path, 1 << 26) if name.startswith("../") else b""
            line = next((line for line in wrong if data.startswith(line)), b"")
            if line:
                data = right + data[len(line):]
                with open(path, "wb") as f:
                    f.write(data)
                lines[i] = b"%s,sha256=%s,%d\n" % (row.rsplit(b",", 2)[0], written(hashlib.sha256(data).digest()).encode("ascii"), len(data))
    with open(record, "wb") as f:
        f.write(b"".join(lines))


def refuse_vital(wheel, files):
    """Reject a wheel of another package that has files of torch, DeepSpeed or the interpreter, or of the environment
    itself: without its Python the node can restore nothing. The controller has rejected it before (own.go)."""
    places = tuple(place + os.sep for place in sites())
    for f in files:
        if not f.startswith(places):
            if is_environments(f):
                raise Failed("%s would overwrite %s, a part of the environment's Python" % (os.path.basename(wheel), f))
            continue
        below = next(f[len(place):] for place in places if f.startswith(place)).lower()
        top = below[len("__pycache__/"):] if below.startswith("__pycache__/") else below
        if top.split("/")[0].split(".")[0] in OTHERS:
            raise Failed("%s would install files into a directory of torch or DeepSpeed" % os.path.basename(wheel))


def aside_files(change, place):
    """The files that a change has moved aside to a folder, but for byte code in __pycache__: the name of
    each, and the path that it has now."""
    files = {}
    for i, root in enumerate(change["roots"]):
        aside, name = os.path.join(place, str(i)), root["name"]
        if os.path.isdir(aside) and not os.path.islink(aside):
            files.update((name + file[len(aside):], file) for file, _ in walk(aside))
        elif root["was"] and exists(aside):
            files[name] = aside
    return files


def foreign_files(change, files):
    """The names of those files moved aside that dsbuild did not install, or that were changed since then: all but
    those which a RECORD in dsbuild's note lists with the digest that they have."""
    known, noted = set(), change["noted"] or {}
    records = [noted.get("record")] + [w["record"] for w in noted_extra_wheels(noted)]
    for name, path in files.items():
        record = content(path, 1 << 26) if name.endswith(".dist-info/RECORD") else b""
        if not record or hashlib.sha256(record).hexdigest() not in records:
            continue
        site = os.path.dirname(os.path.dirname(path_of(name)))
        known.add(name)
        for row in rows_in(record, site):
            other = os.path.normpath(os.path.join(site, row[0]))
            other = name_of(other) if other.startswith(tuple(base + os.sep for base in BASES.values())) else ""
            digest = change["digests"].get(other, "")
            if digest and row[1] in ("", "sha256=" + written(bytes.fromhex(digest) if digest.isalnum() else b"")):
                known.add(other)
    return sorted(set(files) - known)


def noted_digests(files):
    """Return each file's sha256 or each link's target, by the keys of files, or "" for anything else."""
    def noted(path):
        try:
            return "-> " + os.readlink(path) if os.path.islink(path) else file_digest(path).hexdigest()
        except OSError:
            return ""

    return {key: noted(path) for key, path in files.items()}


def refuse_changed(is_now, was):
    """Refuse files that are not as they were when they were moved aside."""
    changed = sorted(path for path in set(is_now) | set(was) if is_now.get(path) != was.get(path))
    if changed:
        raise Failed("%s differs from its state before the deploy" % ", ".join(changed[:3]), "deploy-wanted")


def same_as_file(kept):
    def same(path):
        if os.path.islink(kept):
            return os.path.islink(path) and os.readlink(path) == os.readlink(kept)
        return holds(path, content(kept, 1 << 30))
    return same


def open_as_environment():
    """Let those who may read and write the folder of the packages also read and write new files, including pip's,
    regardless of the login's umask: by its group if they get it too, never written by others.
    HOME gets that folder's group and mode. A link in the place of HOME stays as it is, if it is private."""
    owner = foreign_owner([sys.prefix, scripts_folder()] + sites())
    if owner:
        raise Failed("%s could redirect what root changes in this environment" % owner, "not-as-root")
    site = os.stat(sites()[0])
    os.umask(0o077 & ~site.st_mode | (0o002 if site.st_mode & stat.S_ISGID or site.st_gid == os.getegid() else 0o022))
    if os.path.islink(HOME):
        danger = first_unsafe(HOME)
        if danger or not os.path.isdir(HOME):
            raise Failed("%s is a link: %s" % (HOME, danger or "to no directory"), "unsafe-link")
        return
    os.makedirs(HOME, exist_ok=True)
    fd = os.open(HOME, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)  # another account may be able to replace its name
    try:
        if os.fstat(fd).st_uid == os.geteuid():
            try:
                os.fchown(fd, -1, site.st_gid)
            except OSError:  # the user is not in that group
                pass
            shared = os.fstat(fd).st_gid == site.st_gid
            os.fchmod(fd, 0o700 | site.st_mode & (0o2775 if shared else 0o755))
    finally:
        os.close(fd)


class Environment(Workplace):
    """The environment under change."""

    def __init__(self):
        Workplace.__init__(self, HOME, os.path.join(HOME, "journal.jsonl"))
        self.change = None
        self.recorded = False  # our change is final and cannot be undone
        self.syncing = None
        self.dir = None
        self.extra_wheels = []  # the wheels that were installed with DeepSpeed
        self.byte_code = ""  # the path of the uploaded byte code, once it is installed
        self.keep = False  # keep the uploads, so that the next run continues them

    def begin(self, orders):
        """Take the lock, finish or undo the change of an interrupted run, and prepare
        the inbox, unless the controller only looks."""
        open_as_environment()
        self.take_lock(orders)
        sweep_trials(sites())
        repaired, undone = self.repair()
        found = {"now": compared([f["sha256"] for f in REQUEST["files"]]), "previous": last_change(), "repaired": repaired, "undone": undone,
                 "run": self.last_run()}
        if REQUEST["look"]:
            return dict(found, inbox="", arrived=[])
        for name in os.listdir(HOME):  # no other program works here while the lock is held
            if name.startswith(("run-", "kept-")) or name.endswith(".part"):
                sweep(os.path.join(HOME, name))
        self.dir = os.path.join(HOME, "run-" + REQUEST["run"])
        os.mkdir(self.dir, 0o700)
        return dict(found, inbox=self.inbox, arrived=self.arrived())

    def keep_byte_code(self):
        """Keep the byte code that came with the wheel. The change is final, so an error here does
        not fail the deploy: without this file, verify compares byte code with its module."""
        try:
            if self.byte_code:
                os.replace(self.byte_code, BYTE_CODE)
        except OSError:
            pass

    def repair(self):
        """End an interrupted change: finish it if it was recorded, else undo it and record that in the
        journal. Return whether there was one, and the run that it undid."""
        self.change = read_change(CHANGE)
        if not self.change:
            return False, ""
        run = self.change["run"]
        if self.change["done"]:
            self.finish()
            return True, ""
        text, advice = drift(self.change)
        if text:
            raise Failed(text, advice)
        entry = self.change.get("repair") or {"do": "repair", "run": REQUEST["run"], "at": REQUEST["at"], "by": REQUEST["by"], "node": REQUEST["label"], "undone": self.change["runs"][-1]}
        self.change["repair"] = entry  # if this repair is cut off, too, the journal gets the same line
        try:
            save_json(CHANGE, self.change)
        except OSError:  # the disk is full; to restore the environment needs no space
            pass
        self.restore(entry)
        return True, run

    def start_change(self, roots, **more):
        """Record what will be moved, then move it aside. more is what the change installs."""
        roots = sorted(set(roots))
        at = mounted(roots)
        if at:
            raise Failed("%s is a mount point in a directory that would be replaced" % at, "unmount")
        kept, now = "kept-" + REQUEST["run"], before()
        remove(os.path.join(HOME, kept))
        os.mkdir(os.path.join(HOME, kept), 0o770)
        records = [record_sha256(info) for info in dist_infos(sites())]
        self.change = dict({"run": REQUEST["run"], "runs": [{"run": REQUEST["run"], "at": REQUEST["at"], "by": REQUEST["by"]}], "of": identity(),
                            "done": False, "kept": kept, "before": now, "noted": own_note(now and record_sha256(dist_info(sites()))),
                            "roots": [{"name": name_of(p), "was": exists(p)} for p in roots]}, **more)
        self.change["records"] = records + more.get("records", [])
        save_json(CHANGE, self.change)
        for path, aside, was in self.roots():
            if was:
                move(path, aside)
        files = aside_files(self.change, os.path.join(HOME, kept))
        self.change["digests"] = noted_digests(files)
        self.change["foreign"] = foreign_files(self.change, files)

    def roots(self):
        """What the change moves: the path, where it is aside, and whether it was there."""
        kept = os.path.join(HOME, self.change["kept"])
        if os.path.islink(kept):
            raise Failed("%s is a link" % kept, "look-at-kept")
        return [(inside(path_of(root["name"])), os.path.join(kept, str(i)), root["was"]) for i, root in enumerate(self.change["roots"])]

    def restore(self, entry=None):
        """Restore every path. May be interrupted and repeated. entry is for the journal."""
        for path, aside, was in self.roots():
            if exists(aside) or not was:
                put_aside(path, aside + GONE)
            if exists(aside):
                move(aside, path)
        self.sweep_roots()
        try:
            if entry:
                self.note(entry)
        except OSError:  # the disk is full
            pass
        remove(CHANGE)
        sweep(os.path.join(HOME, self.change["kept"]))
        self.change = None

    def sweep_roots(self):
        """Remove the copies that an interrupted move has left among the packages."""
        for path, _, _ in self.roots():
            for ending in (COPY, GONE):
                sweep(path + ending)

    def install(self, order, orders):
        """Move the replaced files aside and let pip install the new wheels, all or none.
        The first wheel is DeepSpeed's."""
        for wheel in order["wheels"]:
            check_wheel(wheel, self.digests)
        store_signed(HOME, order["accepted"], order["wheels"][0]["sha256"])
        first, extra = order["wheels"][0]["file"], order["wheels"][1:]
        incoming = new_files(first)
        for wheel in extra:
            files = new_files(wheel["file"])
            refuse_vital(wheel["file"], files)
            incoming.update(files)
        self.start_change(Replacement(["deepspeed"] + [w["name"] for w in extra]).roots(incoming), wheel=rows_of_info(first))
        code = byte_code(order["bytecode"]) if order.get("bytecode") else {}
        run_pip(order, ["install", "--no-deps", "--no-index", "--no-user", "--force-reinstall", "--no-warn-script-location", "--no-compile"] +
                [w["file"] for w in order["wheels"]], self.dir, orders, self.lock)
        info = dist_info(sites())
        if info is None:
            raise Failed("pip succeeded, but DeepSpeed is not in %s" % " or ".join(sites()), "installs-elsewhere")
        names = {"deepspeed"} | {w["name"] for w in extra}
        infos = [found for name, found in named_infos() if name in names]
        for found in infos:
            mend_first_lines(found)
        refuse_others(order["accepted"]["record"], installed_places(info), first_lines())
        if code:
            add_byte_code(os.path.dirname(info), code)
        else:
            for found in infos:
                compile_modules(found)
        self.extra_wheels = [{"name": w["name"], "sha256": w["sha256"], "record": record_of(w["name"])} for w in extra]
        self.byte_code = order["bytecode"]["file"] if order.get("bytecode") else ""
        self.sync()
        return {"version": metadata_version(info), "record": record_sha256(info)}

    def record(self, order):
        """Make the change final: once change.json says done, the change cannot be undone."""
        if order["installed"] and self.extra_wheels:
            names = [other["name"] for other in self.extra_wheels]
            kept = [other for other in noted_extra_wheels(load_json(INSTALLED)) if other["name"] not in names]
            order["installed"]["extra_wheels"] = kept + self.extra_wheels
        end_sync(self.syncing)
        done = dict(self.change, done=True, extra_wheels=self.extra_wheels, installed=order["installed"], journal=order["journal"], forget=order["forget"])
        last = kept_change()
        same = noted_sha256(done["before"]) and noted_sha256(done["before"]) == noted_sha256(done["installed"])
        done["again"] = bool(last and same and not self.extra_wheels)  # other wheels are a change to roll back
        if order["forget"] or done["again"]:
            stays = foreign_folder(done)
        else:
            stays = foreign_folder(last) if last else "foreign-before-" + done["run"] if exists(PREVIOUS) else ""
        if stays:
            done["journal"]["kept"] = os.path.join(HOME, stays)
        if order["forget"] and last:
            done["journal"]["undone"] = last["runs"][-1]
        done["runs"] = [dict(done["runs"][0], at=order["journal"].get("at", REQUEST["at"]))]
        save_json(CHANGE, done)
        self.look()
        self.finish()
        self.keep_byte_code()
        return {"kept": done["journal"].get("kept", "")}

    def look(self):
        """Read from change.json whether our change is final. Only the file is right: this program
        may be interrupted, or find the disk full, just after it has replaced the file."""
        try:
            self.change = read_change(CHANGE) or self.change
        except Failed:  # then the copy in memory counts
            pass
        self.recorded = self.change["done"]

    def sync(self):
        """Start to write the installed files to the disk, while dsbuild verifies them."""
        folders = {os.stat(folder).st_dev: folder for folder in {os.path.dirname(path) for path, _, _ in self.roots()}}
        self.syncing = start_sync(sorted(folders.values()))

    def finish(self):
        """Complete a change that is recorded. May be repeated."""
        change = self.change
        if change["installed"]:
            save_json(INSTALLED, change["installed"])
        else:
            remove(INSTALLED)
        kept, last = os.path.join(HOME, change["kept"]), kept_change()
        if change["forget"]:
            put_aside(PREVIOUS, kept + GONE)
            self.drop(kept, change)
        elif exists(kept) and change["again"] and last:  # a wheel installed again replaces no older version
            last["runs"] = [run for run in last["runs"] if run not in change["runs"]] + change["runs"]
            save_json(os.path.join(PREVIOUS, "change.json"), last)
            self.drop(kept, change)
        elif exists(kept):
            save_json(os.path.join(kept, "change.json"), change)
            if last:
                self.drop(PREVIOUS, last)
            elif exists(PREVIOUS):  # its note cannot be used
                os.rename(PREVIOUS, os.path.join(HOME, "foreign-before-" + change["run"]))
            os.rename(kept, PREVIOUS)
        self.note(change["journal"])
        self.sweep_roots()
        remove(CHANGE)
        self.change = None
        forget_signed(HOME, [noted_sha256(load_json(INSTALLED)), noted_sha256((load_json(os.path.join(PREVIOUS, "change.json")) or {}).get("noted"))])
        for name in os.listdir(HOME):
            if name.startswith("kept-"):
                sweep(os.path.join(HOME, name))

    def drop(self, folder, change):
        """Remove a folder of files that a change moved aside, but for those that dsbuild had not installed."""
        files, stays = aside_files(change, folder), os.path.join(HOME, foreign_folder(change))
        if change["foreign"] and os.path.islink(stays):
            remove(stays)
        for name in change["foreign"]:
            target = os.path.join(stays, name)
            if name in files and not exists(target):
                os.makedirs(os.path.dirname(target), exist_ok=True)
                os.rename(files[name], target)
        put_aside(folder, os.path.join(HOME, self.change["kept"] + GONE))

    @staticmethod
    def kept():
        """Return the previous change, and the files that a rollback restores: the name and the path of each."""
        last = previous_change()
        if not last:
            raise Failed("no previous version to roll back to", "one-version-back")
        return last, aside_files(last, PREVIOUS)

    def tell_kept(self, _):
        """Describe the version that a rollback would restore, for the controller's policy check."""
        last, files = self.kept()
        files = {path_of(name): aside for name, aside in files.items()}
        infos = [os.path.dirname(path) for path in files if path.endswith(".dist-info/RECORD") and normal(os.path.basename(path[:-7]).split("-")[0]) == "deepspeed"]
        places = installed_places((infos + [os.path.join(sites()[0], "-")])[0])
        return kept_answer(HOME, noted_sha256(last.get("noted")), places, first_lines(), files)

    def roll_back(self, order):
        """Exchange the installed version for the previous one."""
        last, files = self.kept()
        if order["accepted"] and self.tell_kept(order)["digest"] != order["accepted"]:
            raise Failed("previous version changed during the policy check", "deploy-wanted")
        text, advice = drift(last)
        if text:
            raise Failed(text, advice)
        refuse_changed(noted_digests(files), last["digests"])
        incoming = {path_of(name): same_as_file(aside) for name, aside in files.items()}
        roots = [(inside(path_of(root["name"])), os.path.join(PREVIOUS, str(i))) for i, root in enumerate(last["roots"]) if root["was"]]
        incoming.update((path, None) for path, _ in roots if not any(file.startswith(path) for file in incoming))  # empty folders
        names = ["deepspeed"] + [other["name"] for other in noted_extra_wheels(last)]
        self.start_change(Replacement(names).roots(incoming), records=last["records"])
        for path, aside in roots:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            clone(aside, path)
        wrong = remove_wrong_byte_code()
        self.sync()
        now = dict({"version": "", "record": "", "altered": []}, **compared() or {})
        return {"version": now["version"], "record": now["record"], "altered": now["altered"], "noted": last.get("noted"), "wrong_byte_code": wrong}

    def verify_back(self, _):
        """Compare the restored version with its state before the deploy."""
        was = self.kept()[0]["digests"]
        refuse_changed(noted_digests({name: path_of(name) for name in was}), was)
        return {}

    def undo(self):
        """Undo the change, if any. A recorded change stays: completing it is retried."""
        if self.change:
            self.look()
        if self.change and self.recorded:
            try:
                self.finish()
            except (OSError, Failed):
                pass  # change.json stays, and the next run completes the change
        elif self.change:
            self.restore()
        if self.dir:
            sweep(self.dir)
            self.dir = None
            if not self.keep:
                sweep(self.inbox)
        return {"before": before(), "recorded": self.recorded, "finished": not self.change}


def installed_places(info):
    """Return the folders by scheme of the wheel that was installed with this dist-info."""
    return {"": os.path.dirname(info), "scripts": scripts_folder(), "data": os.path.realpath(sys.prefix)}


def byte_code(brought):
    """The byte code of a wheel's modules by their names. Empty if this Python uses other byte
    code, or cannot unpack it: then pip compiles the modules."""
    import importlib.util

    from dsbuild_node.byte_code import unpack_byte_code

    magic = int.from_bytes(importlib.util.MAGIC_NUMBER[:2], "little")
    if magic != brought["magic"] or sys.implementation.name != "cpython":
        return {}
    return unpack_byte_code(brought["file"], brought["sha256"])


def add_byte_code(site, modules):
    """Write byte code next to its modules, as if this Python had compiled them."""
    import importlib.util

    for name, code in modules.items():
        path = os.path.join(site, name)
        st = os.stat(path)
        target = importlib.util.cache_from_source(path, optimization="")
        if not exists(os.path.dirname(target)):
            os.mkdir(os.path.dirname(target))
        head = importlib.util.MAGIC_NUMBER + bytes(4) + b"".join((int(n) & 0xFFFFFFFF).to_bytes(4, "little") for n in (st.st_mtime, st.st_size))
        with open(target, "wb", opener=lambda path, flags: os.open(path, flags, (st.st_mode | 0o200) & 0o666)) as f:
            f.write(head + code)


def compile_modules(info):
    """Compile the modules of a distribution and list the byte code in RECORD, as pip would. pip does not compile them,
    because the files are compared with the accepted wheel first."""
    import py_compile
    import warnings

    site, made = os.path.dirname(info), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for path in [row[0] for row in record_rows(info) or [] if row[0].endswith(".py") and not row[0].startswith("../")]:
            try:
                made.append(os.path.relpath(py_compile.compile(os.path.join(site, path), doraise=True, optimize=0), site))
            except Exception:  # a module for another Python, or a template
                pass
    with open(os.path.join(info, "RECORD"), "a", encoding="utf-8", errors="surrogateescape") as f:
        f.writelines("%s,,\n" % path for path in made if "," not in path and '"' not in path)


def remove_wrong_byte_code():
    """Remove the byte code of DeepSpeed that does not match its module, and return its paths. Python compiles these
    modules again."""
    info = dist_info(sites())
    wrong = wrong_byte_code(info, record_rows(info) or []) if info else []
    for path in wrong:
        remove(os.path.join(os.path.dirname(info), path))
    return wrong


def clone(source, target):
    """Copy a file or a folder by hard links, or by content if the file system has no links."""
    def link(a, b, **_):
        try:
            os.link(a, b, follow_symlinks=False)
        except OSError:
            shutil.copy2(a, b, follow_symlinks=False)

    if os.path.isdir(source) and not os.path.islink(source):
        shutil.copytree(source, target, symlinks=True, copy_function=link, dirs_exist_ok=True)
    else:
        link(source, target)


def verify_now(request):
    """Verify the installation in this process, which compares files and imports nothing. Loading ops takes a separate
    process."""
    import importlib

    importlib.invalidate_caches()
    return check(request)


def before():
    """Return the installed DeepSpeed, in the form of the report."""
    found = installed()
    if found and not found["record"]:
        raise Failed("cannot read %s" % dist_info(sites()), "disk")
    return {"version": found["version"], "sha256": found["sha256"]} if found else None


def run_pip(order, arguments, folder, orders, lock):
    """Run pip in the private folder. No configuration can send the wheel elsewhere."""
    env = installer_env(PIP_CONFIG_FILE=os.devnull, PYTHONNOUSERSITE="1", TMPDIR=folder)  # a full /tmp does not matter
    pip = [os.path.join(order["pip"], "pip")] if order["pip"] else ["-m", "pip"]
    argv = [sys.executable, "-s"] + pip + ["--isolated", "--no-input", "--no-cache-dir", "--disable-pip-version-check"] + arguments
    run_program("pip", argv, env, folder, orders, lock, order["limit_s"])


def verbs(env, orders):
    """The orders of this agent. node.go of package deploy lists their fields."""
    return {
        "install": lambda order: env.install(order, orders),
        "digest": env.digest,
        "users": lambda order: users(),
        "verify": lambda order: verify_now(order["request"]),
        "kept": env.tell_kept,
        "roll_back": env.roll_back,
        "verify_back": env.verify_back,
        "record": env.record,
        "undo": lambda order: env.undo(),
    }


def main():
    run_agent(Environment(), verbs)
