"""The agent that makes environments and switches to them. It never changes an environment: it makes
a new one next to the old one, and renames a link. If the controller goes away, the agent removes the
environment that it is making."""
import hashlib
import io
import os
import shutil
import subprocess
import sys
import time
import zipfile

from dsbuild_node.accepted import forget_signed, kept_answer, store_signed
from dsbuild_node.changes import (
    GONE, PART, Workplace, digest_of, end_sync, exists, installer_env, put_aside, remove, run_agent, run_program, save_json,
    start_sync, sweep, sweep_trials, sync_folder)
from dsbuild_node.distributions import dist_infos, normal
from dsbuild_node.controller import REQUEST
from dsbuild_node.files import content, read_json
from dsbuild_node.import_check import Failed
from dsbuild_node.in_use import users
from dsbuild_node.known_files import EarlyInstaller, NotedFiles, note_files
from dsbuild_node.places import (
    CHANGE, CURRENT, FILES, FOLDER, HOME, JOURNAL, NOTE, PLACE, PREVIOUS, PYTHONS, ROOT, Whole, describe, last_change,
    listed_folders, mark_of, python_of, site_of, stored, target, unfinished_switch, unsafe, whole_of)
from dsbuild_node.record import record_rows, walk

CACHE = os.path.join(HOME, "cache")
SYNC_LIMIT = 180  # seconds: an environment has gigabytes
MOST_AGAIN = 50  # earlier runs that the journal lists for a recreated environment
# The first lines that uv gives to commands in a relocatable environment.
RELOCATABLE = b"#!/bin/sh\n'''exec' \"$(dirname -- \"$(realpath -- \"$0\")\")\"/'python' \"$0\" \"$@\"\n' '''\n"


class Environments(Workplace):
    """The environments of a name."""

    def __init__(self):
        Workplace.__init__(self, HOME, JOURNAL)
        self.dir, self.made, self.uv = None, "", ""  # temporary files; the new environment; the installer
        self.recorded, self.keep, self.syncing, self.own = False, True, None, {}
        self.noted = self.known = self.early = None  # files of the current and the new environment; the EarlyInstaller

    def describe(self, error):
        """The message about an error: hints are about the folder of the environments, not about this Python's."""
        told = Workplace.describe(self, error)
        if told:
            told["advice"] = {"no-permission": "env-permission", "no-room": "env-room"}.get(told["advice"], told["advice"])
        return told

    def begin(self, orders):
        """Take the lock, and finish or undo the change of an interrupted run."""
        os.umask(os.umask(0o022) | 0o022)
        self.refuse_unsafe()
        for folder in (HOME, PLACE):
            os.makedirs(folder, mode=0o755, exist_ok=True)
        self.refuse_unsafe()  # another user may have made them first
        self.take_lock(orders)
        if REQUEST["python"] and not exists(os.path.join(PYTHONS, REQUEST["python"]["program"])):
            raise Failed("another run removed the bundled Python", "deploy-again")
        sweep_trials([PLACE, ROOT, os.path.dirname(ROOT), FOLDER, os.path.dirname(FOLDER)])
        repaired = self.repair()
        found = {"current": describe(target(CURRENT)), "before": describe(target(PREVIOUS)), "old": unlinked(), "repaired": repaired, "run": self.last_run()}
        if REQUEST["look"]:
            return dict(found, inbox="", arrived=[], have=[])
        self.sweep_stored()
        for name in os.listdir(HOME):  # no other program works here while the lock is held
            if name.startswith("run-") or GONE in name:
                sweep(os.path.join(HOME, name))
        self.dir = os.path.join(HOME, "run-" + REQUEST["run"])
        os.mkdir(self.dir, 0o700)
        return dict(found, inbox=self.inbox, arrived=self.arrived(), have=stored(REQUEST["files"]))

    @staticmethod
    def refuse_unsafe():
        danger = unsafe()
        if danger:
            raise Failed(danger, "unsafe-place")

    def repair(self):
        """End an interrupted switch, and remove incomplete environments."""
        change = unfinished_switch()
        repaired = change is not None
        if change:
            self.finish(change)
        sweep(CHANGE)
        for name in os.listdir(PLACE):
            path = os.path.join(PLACE, name)
            if os.path.isdir(path) and not os.path.islink(path) and not mark_of(name) and not in_use(path):
                self.take_away(path)
                repaired = True
            elif name.startswith(".link-"):
                sweep(path)
        return repaired

    def store_early(self, order, orders):
        """Store an upload, and install a large wheel while the next files arrive."""
        f, early = order["file"], order["early"]
        self.store(f, stays=early)
        if early:
            if not self.early:
                self.begin_environment(order, orders)
                self.early = EarlyInstaller(lambda files, watch: self.install_early(order, files, watch), self.read_early)
            self.early.raise_failure()
            self.early.files.put(f)
        return {}

    def install_early(self, order, files, watch):
        """Install wheels, and return the names of the new entries in site-packages."""
        folder = os.path.join(PLACE, self.made)
        before = set(os.listdir(site_of(folder)))
        self.install_wheels(order, folder, files, watch)
        return set(os.listdir(site_of(folder))) - before

    def read_early(self, entries, watch):
        """Read the files of packages that are installed."""
        site = site_of(os.path.join(PLACE, self.made))
        for entry in entries:
            for row in record_rows(os.path.join(site, entry)) or []:
                watch.check()
                if row[1].startswith("sha256="):
                    self.known.sha256(os.path.join(site, row[0]))

    def install(self, order, orders):
        """Make a new environment from the files that have arrived, or use an existing one."""
        for sha256, signed in order["accepted"].items():
            store_signed(HOME, signed, sha256)
        if order["ready"]:
            return self.ready(order["digest"])
        for f in order["files"]:
            self.store(f)
        folder = self.begin_environment(order, orders)
        if self.early:
            self.early.finish_installing(orders)
        self.install_wheels(order, folder, order["files"], orders)
        if self.early:
            self.early.finish_reading(orders)
        whole = self.inspect_new(folder)
        if whole["wrong"]:  # a file in the cache was changed; all environments share it
            put_aside(CACHE, CACHE + GONE)
            sweep(CACHE + GONE)
            self.take_away(folder)
            self.noted = NotedFiles("")
            self.known = self.noted.known
            self.make_venv(order, folder, orders)
            self.install_wheels(order, folder, order["files"], orders)
            whole = self.inspect_new(folder)
        if whole["wrong"]:
            raise Failed("new environment is incomplete: %s" % ", ".join(whole["wrong"][:4]))
        self.syncing = start_sync([folder])  # while it is verified
        return dict(whole, name=self.made, python=python_of(folder))

    def begin_environment(self, order, orders):
        """Create the folder of the new environment, unless it exists."""
        folder = os.path.join(PLACE, self.made or self.free_name(order["digest"]))
        if not self.made:
            self.made = os.path.basename(folder)
            before = target(CURRENT)
            made_anew = before and mark_of(before).get("digest") == order["digest"]  # then every file is read
            self.noted = NotedFiles("" if made_anew else before)
            self.known = self.noted.known
            self.unpack_uv(order["installer"])
            self.make_venv(order, folder, orders)
        return folder

    def inspect_new(self, folder):
        """The state of the new environment after the installation."""
        forget_notes_of_uv(folder)
        self.noted.link_byte_code(site_of(folder))
        whole = Whole(folder, REQUEST["python"], self.known)
        self.own = whole.own
        return whole.describe()

    def tell_kept(self, _):
        """Describe the previous environment's DeepSpeed, for the controller's policy check."""
        name = target(PREVIOUS)
        folder, noted = os.path.join(PLACE, name), (mark_of(name) or {}).get("deepspeed") or {}
        site = site_of(folder)
        places = {"": site, "scripts": os.path.join(folder, "bin"), "data": folder}
        paths = {path for top in [os.path.join(site, "deepspeed")] + dist_infos([site]) for path, _ in walk(top)}
        for info in dist_infos([site]):  # and its commands
            rows = [os.path.normpath(os.path.join(site, row[0])) for row in record_rows(info) or [] if row[0].startswith("../")]
            paths |= {path for path in rows if path.startswith(folder + os.sep)}
        return kept_answer(HOME, str(noted.get("sha256", "")), places, [RELOCATABLE], {path: path for path in paths if exists(path)})

    @staticmethod
    def ready(digest):
        """The environment that an earlier run has made, if it is unchanged."""
        name = whole_of(digest)
        if not name:
            raise Failed("environment %.16s no longer exists" % digest, "deploy-again")
        folder = os.path.join(PLACE, name)
        whole = Whole(folder).describe()
        if whole["wrong"]:
            raise Failed("environment was modified after installation: %s" % ", ".join(whole["wrong"][:4]), "env-force")
        return dict(whole, name=name, python=python_of(folder))

    def store(self, f, stays=False):
        """Move an upload to FILES. With stays, only link the upload there: other nodes may still
        ask this node's relay for it."""
        folder = os.path.join(FILES, f["sha256"])
        path, sent = os.path.join(folder, f["name"]), os.path.join(self.inbox, f["name"])
        if exists(path):
            self.stored_file(f)
        else:
            if digest_of(sent, self.digests) != f["sha256"]:
                raise Failed("%s has sha256 %s, not %s" % (f["name"], digest_of(sent, self.digests), f["sha256"]))
            os.makedirs(folder, exist_ok=True)
            os.chmod(sent, 0o644)
            try:
                (os.link if stays else os.rename)(sent, path)
            except OSError:  # a file system without links
                os.rename(sent, path)

    def stored_file(self, f):
        """The path of a file in FILES, which must be as it was sent."""
        folder = os.path.join(FILES, f["sha256"])
        path = os.path.join(folder, f["name"])
        if os.path.islink(path) or digest_of(path, self.digests) != f["sha256"]:
            sweep(folder)  # the next run sends it
            raise Failed("%s changed after it was sent" % path, "deploy-again")
        return path

    def sweep_stored(self):
        """Remove uploads that are in FILES already."""
        for f in REQUEST["files"]:
            if exists(os.path.join(FILES, f["sha256"], f["name"])):
                sweep(os.path.join(self.inbox, f["name"]))

    @staticmethod
    def free_name(digest):
        """Return an unused name for a new environment: a second environment with the same digest may be in use."""
        name, n = digest[:16], 1
        while exists(os.path.join(PLACE, name)):
            n += 1
            name = "%s-%d" % (digest[:16], n)
        return name

    def unpack_uv(self, f):
        """Unpack the program from uv's wheel. It is read and hashed here: recorded times are no proof for a program."""
        self.uv = os.path.join(self.dir, "uv")
        with open(self.stored_file(f), "rb") as stored:
            data = stored.read()
        if hashlib.sha256(data).hexdigest() != f["sha256"]:
            raise Failed("%s changed after it was sent" % f["name"], "deploy-again")
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as z:
                inside = [n for n in z.namelist() if n.endswith(".data/scripts/uv")]
                with z.open(inside[0]) as source, open(self.uv, "wb") as out:
                    shutil.copyfileobj(source, out)
        except (zipfile.BadZipFile, IndexError):
            raise Failed("%s is not a wheel of uv" % f["name"])
        os.chmod(self.uv, 0o700)

    def make_venv(self, order, folder, orders):
        self.run_uv(order, orders, ["venv", "--relocatable", "--no-project", "--python", sys.executable, folder])

    def install_wheels(self, order, folder, files, orders):
        """Let uv install wheels from their files, without any index."""
        asked, wheels = os.path.join(self.dir, "requirements.txt"), [f for f in files if f["package"]]
        with open(asked, "w", encoding="utf-8") as f:
            f.writelines("%s==%s --hash=sha256:%s\n" % (w["package"], w["version"], w["sha256"]) for w in wheels)
        places = [word for w in wheels for word in ("--find-links", os.path.join(FILES, w["sha256"]))]
        self.run_uv(order, orders, ["pip", "install", "--no-index", "--no-deps", "--require-hashes", "--no-build", "--python", python_of(folder), "-r", asked] + places)
        for w in wheels:
            free_page_cache(os.path.join(FILES, w["sha256"], w["name"]))

    def run_uv(self, order, orders, arguments):
        os.makedirs(CACHE, mode=0o700, exist_ok=True)  # uv lets all users write its locks there
        env = installer_env(UV_CACHE_DIR=CACHE, UV_NO_CONFIG="1", UV_OFFLINE="1", UV_PYTHON_DOWNLOADS="never", UV_NO_PROGRESS="1", NO_COLOR="1", TMPDIR=self.dir)
        try:
            run_program("uv", [self.uv] + arguments, env, self.dir, orders, self.lock, order["limit_s"])
        except PermissionError:
            raise Failed("cannot execute uv from %s" % self.dir, "noexec")

    def record(self, order):
        """Record that the environment is whole, and switch to it. After the rename, only a rollback
        restores the previous one."""
        name = self.made or whole_of(order["digest"])
        if not name:
            raise Failed("environment %.16s no longer exists" % order["digest"], "deploy-again")
        folder = os.path.join(PLACE, name)
        if self.made:
            end_sync(self.syncing, SYNC_LIMIT)
            save_json(os.path.join(folder, NOTE), dict(order["mark"], own=self.own))
        before = target(CURRENT)
        same = before and mark_of(before).get("digest") == order["digest"]  # rebuilt: nothing to roll back to
        last, keep = last_change(), order["keep"]
        if same and last and not last["undone"] and not last["wrong"]:
            order["journal"]["again"] = last["runs"][-MOST_AGAIN:]
        self.switch({"to": name, "previous": target(PREVIOUS) if same else before, "journal": order["journal"], "tidy": keep == []})
        if keep:
            self.try_to_tidy(keep)
        if self.made:
            try:
                note_files(name, self.known)  # last: to remove an environment touches the files that others share
            except OSError:
                pass  # the next run reads every file
        return {"python": python_of(CURRENT)}

    def roll_back(self, order):
        """Switch back to the previous environment. The current one stays, without a link,
        until the next deploy."""
        name, last = target(PREVIOUS), last_change()
        if not name or not last or last["undone"]:
            raise Failed("no previous environment to roll back to", "one-environment-back")
        if last["wrong"]:
            raise Failed(last["wrong"], last["advice"])
        if order["accepted"] and self.tell_kept(order)["digest"] != order["accepted"]:
            raise Failed("previous environment changed during the policy check", "one-environment-back")
        wrong = Whole(os.path.join(PLACE, name)).describe()["wrong"]
        if wrong:
            raise Failed("previous environment was modified: %s" % ", ".join(wrong[:4]), "one-environment-back")
        order["journal"]["undone"] = last["runs"][-1]
        self.switch({"to": name, "previous": "", "journal": order["journal"], "tidy": False})
        return {"python": python_of(CURRENT)}

    def switch(self, change):
        save_json(CHANGE, change)
        self.link(CURRENT, change["to"])
        self.recorded = True
        self.finish(change)

    @staticmethod
    def link(path, name):
        """Point a link to an environment, by one rename."""
        fresh = os.path.join(PLACE, ".link-" + REQUEST["run"])
        sweep(fresh)
        os.symlink(name, fresh)
        os.rename(fresh, path)
        sync_folder(PLACE)

    def finish(self, change):
        """Complete a switch. May be repeated."""
        if change.get("previous"):
            self.link(PREVIOUS, change["previous"])
        else:
            remove(PREVIOUS)
        self.note(change["journal"])
        remove(CHANGE)
        if change.get("tidy"):
            self.try_to_tidy()

    def try_to_tidy(self, keep=()):
        try:
            self.tidy(keep)
        except (OSError, subprocess.TimeoutExpired):
            pass  # the next run removes it

    def tidy(self, keep):
        """Remove environments and files that no link needs, if the file system allows it. Environments to keep
        may be in use on other nodes."""
        for name in unlinked():
            path = os.path.join(PLACE, name)
            if name not in keep and not in_use(path):
                self.take_away(path)
        try:
            needed, pythons = needs()
        except (TypeError, LookupError, AttributeError, OSError, ValueError):
            return  # a damaged note: its environment may need everything
        for name in listed_folders(PYTHONS):
            path = os.path.join(PYTHONS, name)
            if name not in pythons and (not name.startswith("run-") or is_old(path)) and not in_use(path):
                sweep(path)
        forget_signed(HOME, needed)
        unused = set()
        for sum in listed_folders(FILES):
            if sum not in needed:
                unused.update(normal(name.split("-")[0]) for name in os.listdir(os.path.join(FILES, sum)))
                sweep(os.path.join(FILES, sum))
        if unused and self.uv:
            env = installer_env(UV_CACHE_DIR=CACHE, UV_NO_CONFIG="1")
            subprocess.run([self.uv, "--quiet", "cache", "clean"] + sorted(unused), env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)

    @staticmethod
    def take_away(path):
        """Remove an environment: its name first, immediately."""
        aside = os.path.join(HOME, os.path.basename(path) + GONE)
        put_aside(path, aside)
        sweep(aside)

    def undo(self):
        """Remove the unfinished environment. A recorded switch stays."""
        if self.early:
            self.early.stop()
            self.early = None
        # Only the link says whether the switch took place: this program may have been interrupted
        # just after the rename.
        self.recorded = self.recorded or bool(self.made) and target(CURRENT) == self.made
        if self.made and not self.recorded:
            self.take_away(os.path.join(PLACE, self.made))
            self.made = ""
        if self.dir:
            sweep(self.dir)
            self.dir = None
            self.sweep_stored()
            if self.recorded or not os.listdir(self.inbox):
                sweep(self.inbox)  # else the next run continues with the uploads
        return {"current": describe(target(CURRENT)), "recorded": self.recorded, "finished": not exists(CHANGE)}


def forget_notes_of_uv(folder):
    """Remove uv's lock, which any user could take, and its notes of when the wheels came to this node:
    without them equal wheels make equal environments, to the byte."""
    sweep(os.path.join(folder, ".lock"))
    site = site_of(folder)
    for entry in os.listdir(site):
        note_file, record = entry + "/uv_cache.json", os.path.join(site, entry, "RECORD")
        if not entry.endswith(".dist-info") or not exists(os.path.join(site, note_file)):
            continue
        lines = content(record, 1 << 26).splitlines(True)
        with open(record + PART, "wb") as f:  # a new file, because RECORD may be a link to the cache's
            f.writelines(line for line in lines if not line.startswith(os.fsencode(note_file) + b","))
        os.rename(record + PART, record)
        os.unlink(os.path.join(site, note_file))


def free_page_cache(path):
    """Let the kernel drop an installed wheel from its page cache: the memory is better used for the files
    of the environment, which are read again."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def needs():
    """The sha256 of the files and of the Pythons that all environments need."""
    needed, pythons = set(), set()
    for name in listed_folders(ROOT):
        for inner in listed_folders(os.path.join(ROOT, name)):
            path = os.path.join(ROOT, name, inner, NOTE)
            if not exists(path):
                continue
            mark = read_json(content(path, 1 << 26))
            needed.update(mark["files"])
            pythons.add((mark.get("python") or {}).get("sha256"))
    return needed, pythons


def unlinked():
    """The names of the environments that no link needs."""
    kept = (target(CURRENT), target(PREVIOUS))
    return [name for name in listed_folders(PLACE) if name not in kept and not name.startswith(".")]


def is_old(folder):
    """Whether the unpacking of a Python began so long ago that its run must have ended."""
    return time.time() - os.stat(folder).st_mtime > 3600


def in_use(folder):
    """Whether processes use a folder of an environment or of a Python, or might."""
    found = users(folder, [folder, site_of(folder)])
    return bool(found.get("in_use") or found.get("in_use_unknown"))


def verbs(env, orders):
    """What this agent can do."""
    return {
        "digest": env.digest,
        "store": lambda order: env.store_early(order, orders),
        "install": lambda order: env.install(order, orders),
        "record": env.record,
        "kept": env.tell_kept,
        "roll_back": env.roll_back,
        "undo": lambda order: env.undo(),
    }


def main():
    run_agent(Environments(), verbs)
