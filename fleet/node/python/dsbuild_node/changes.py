"""The common part of the agents that change something on a node: whole files, the lock of a folder,
uploads, and programs that end with the agent. Each has a Workplace."""
import errno
import fcntl
import hashlib
import json
import os
import select
import shutil
import signal
import stat
import subprocess
import time

from dsbuild_node.agent import SIGNALS, Gone, Orders, answer, serve
from dsbuild_node.controller import REQUEST, emit
from dsbuild_node.files import last_line
from dsbuild_node.import_check import Failed
from dsbuild_node.journal import last_entry
from dsbuild_node.view import mounts

PART = ".part"  # ends the name of an upload that is not whole
SYNC_LIMIT = 30  # seconds that a change waits for the disk before it is made final
TRIAL = ".dsbuild-try-"  # begins the name of a folder by which nodes find out that they share its parent
OF_MACHINE = {  # errors of a machine or of an account's limits, and the codes of their hints
    errno.ENOSPC: "no-room", errno.EDQUOT: "no-room", errno.EFBIG: "process-limit", errno.EMFILE: "process-limit", errno.ENOMEM: "process-limit",
    errno.EROFS: "remount", errno.EIO: "disk", errno.ESTALE: "disk"}
GONE = ".dsbuild-gone"  # ends the name of a file or folder that is put aside, until sweep removes it


class Busy(Failed):
    """Another deploy holds the lock."""


def save_json(path, value):
    """Write a JSON file atomically, and wait until it is on the disk."""
    part = path + ".part"
    remove(part)  # the new file is never written through a link
    try:
        with open(part, "x", encoding="utf-8") as f:
            json.dump(value, f)
            f.flush()
            os.fsync(f.fileno())
        os.rename(part, path)
    except OSError:
        sweep(part)
        raise
    sync_folder(os.path.dirname(path))


def start_sync(places):
    """Start to write the file systems of places to the disk. Without it, a power cut could leave
    empty files after dsbuild has reported success. One program syncs whole file systems: to sync
    one file after the other takes seconds, because each writes the file system's journal."""
    try:
        return subprocess.Popen(["sync", "-f"] + places, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError:  # not every container has sync: then the kernel writes the files later
        return None


def end_sync(child, limit=SYNC_LIMIT):
    """Wait for the program of start_sync, but only a limited time: other programs may have
    much data to write to the same disk first."""
    try:
        if child:
            child.wait(limit)
    except subprocess.TimeoutExpired:
        pass


def sync_folder(path):
    """Write a rename in the folder to the disk, if the file system can sync folders."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    except OSError as e:
        if e.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise
    finally:
        os.close(folder)


def exists(path):
    return os.path.lexists(path)


def mounted(folders):
    """The first mount point in one of these folders, or ""."""
    for at, _ in mounts():
        if any((at + os.sep).startswith(folder + os.sep) for folder in folders):
            return at
    return ""


def remove(path):
    """Remove a file, link or tree, if it exists, but nothing that is mounted there."""
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            at = mounted([os.path.realpath(path)])
            if at:
                raise OSError(errno.EBUSY, "is a mount point", at)
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        pass


def sweep(path):
    """Remove a path that is no longer needed. Ignore an error: NFS keeps a folder while a
    process has a file in it open. The next run removes it."""
    try:
        remove(path)
    except OSError:
        pass


def sweep_trials(folders):
    """Remove what an interrupted run left in folders while it tested which nodes share them."""
    for folder in folders:
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            if name.startswith(TRIAL):
                sweep(os.path.join(folder, name))


def put_aside(path, aside):
    """Rename path immediately, so that its name is free; sweep removes it later."""
    while exists(aside):
        aside += "+"
    try:
        os.rename(path, aside)
    except FileNotFoundError:
        pass
    except OSError:  # another file system
        remove(path)


class Digests:
    """The digests of files that this program has read. It does not read an unchanged file again."""

    def __init__(self):
        self.known = {}

    def of(self, path, size=None):
        """The sha256 of a file, or of its first bytes."""
        st = os.stat(path)
        size = st.st_size if size is None else size
        key = (st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns, size)
        if key not in self.known:
            sum, left = hashlib.sha256(), size
            with open(path, "rb") as f:
                while left > 0:
                    block = f.read(min(left, 1 << 20))
                    if not block:
                        break
                    sum.update(block)
                    left -= len(block)
            self.known[key] = sum.hexdigest()
        return self.known[key]


def digest_of(path, digests, size=None):
    try:
        return digests.of(path, size)
    except OSError as e:
        raise Failed("%s: %s" % (path, e.strerror), "same-path")


class Workplace:
    """An agent's own folder home: its lock, the uploads in inbox, and the journal."""

    def __init__(self, home, journal):
        self.home, self.inbox, self.journal = home, os.path.join(home, "inbox"), journal
        self.lock = None
        self.digests = Digests()

    def take_lock(self, orders):
        """Wait lock_s for the lock: after a controller was killed, its agent still cleans up. If
        another agent of the same run holds the lock (their nodes share the folder), wait as long
        as the controller does. Only who may change home can open the file: who can, can lock it."""
        mode = 0o660 if os.stat(self.home).st_mode & 0o020 else 0o600
        self.lock = os.open(os.path.join(self.home, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        deadline = time.monotonic() + REQUEST["lock_s"]
        while True:
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as e:
                if e.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise Failed("cannot lock %s: %s" % (self.home, e.strerror), "file-locks")
                who = os.pread(self.lock, 500, 0).decode("utf-8", "replace").strip()
                if time.monotonic() > deadline and not who.startswith("run %s by " % REQUEST["run"]):
                    from dsbuild_node.lock_holder import describe

                    who, advice = describe(self.lock, who)
                    raise Busy("another deploy is changing this environment", advice, who)
                time.sleep(0.1)
                orders.check()
        try:
            os.ftruncate(self.lock, 0)
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            os.write(self.lock, ("run %s by %s on %s, pid %d on %s since %s" % (
                REQUEST["run"], REQUEST["by"], REQUEST["label"], os.getpid(), os.uname().nodename, now)).encode("utf-8"))
        except OSError:  # the disk is full; to restore the environment needs no space
            pass

    def arrived(self):
        """Prepare the inbox, and return the names of the files that need not be sent again."""
        if os.path.islink(self.inbox) or not os.path.isdir(self.inbox):
            remove(self.inbox)
        elif os.stat(self.inbox).st_uid != os.geteuid():  # another administrator's, whose files this user cannot read
            put_aside(self.inbox, os.path.join(self.home, "run-inbox"))
            sweep(os.path.join(self.home, "run-inbox"))
        if not exists(self.inbox):
            os.mkdir(self.inbox, 0o700)
        inbox = os.open(self.inbox, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            os.fchmod(inbox, 0o700)
        finally:
            os.close(inbox)
        wanted, whole = {f["name"]: f["sha256"] for f in REQUEST["files"]}, []
        for name in os.listdir(self.inbox):
            path = os.path.join(self.inbox, name)
            if os.path.isfile(path) and not os.path.islink(path):
                if name.endswith(PART) and name[:-len(PART)] in wanted:
                    continue
                if name in wanted and self.digests.of(path) == wanted[name]:
                    whole.append(name)
                    continue
            remove(path)
        return whole

    def digest(self, order):
        """The sha256 of the beginning of an upload."""
        return {"sha256": digest_of(self.upload(order), self.digests, order["size"])}

    def upload(self, order):
        return os.path.join(self.inbox, os.path.basename(order["file"]))

    def note(self, entry):
        """Add a line to the journal, unless the last line is equal: an interrupted finish is
        repeated. Remove a last line that was cut off."""
        line = json.dumps(entry).encode("ascii") + b"\n"
        with open(self.journal, "a+b", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o666)) as f:
            last, end = last_line(f)
            f.truncate(end)
            if last != line:
                f.write(line)
            f.flush()
            os.fsync(f.fileno())

    def last_run(self):
        """Return the run that made the last change, or "". Fail if a change could not be recorded."""
        for path in [os.path.join(self.home, name) for name in sorted(os.listdir(self.home)) if name.endswith((".json", ".jsonl", ".xz"))]:
            if not stat.S_ISREG(os.lstat(path).st_mode) or path == self.journal and not os.access(path, os.W_OK):
                raise Failed("%s is not a writable regular file" % path, "own-file")
        try:
            last = last_entry(self.journal)
        except (OSError, ValueError):
            return ""
        return "" if last.get("do") == "repair" else str(last.get("run", ""))

    def describe(self, error):
        """The message about an error; None for an unexpected exception."""
        if isinstance(error, Failed):
            return {"failed": str(error), "advice": error.advice, "detail": error.detail, "busy": isinstance(error, Busy)}
        if isinstance(error, OSError):
            path = str(error.filename or self.home)
            advice = "no-permission" if error.errno in (errno.EACCES, errno.EPERM) else OF_MACHINE.get(error.errno, "")
            if error.errno in (errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ELOOP) and (path + os.sep).startswith(self.home + os.sep):
                advice = "own-file"
            return {"failed": "%s: %s" % (path, error.strerror), "advice": advice}
        return {"failed": "out of memory", "advice": "process-limit"} if isinstance(error, MemoryError) else None


def die_with_parent(parent):
    """Ask the kernel to end this process together with its parent, if the kernel can."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:  # the parent has ended already
            os._exit(1)
    except Exception:  # then the lock, which this process holds too, keeps other agents away
        pass


def installer_env(**more):
    """The variables for pip or uv: none that changes how Python runs, what it finds, or where they look for packages.
    Without PYTHONHOME some Pythons do not start."""
    env = {k: v for k, v in os.environ.items() if k == "PYTHONHOME" or not k.startswith(("PYTHON", "PIP_", "UV_", "VIRTUAL_ENV", "CONDA_"))}
    return dict(env, **more)


def run_program(name, argv, env, folder, orders, lock, limit):
    """Run a program in a private folder, and end it if the controller goes away. The program dies
    if this agent is killed, and holds the lock as long as it lives."""
    me = os.getpid()
    child = subprocess.Popen(argv, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             start_new_session=True, pass_fds=(lock,), preexec_fn=lambda: die_with_parent(me))
    said, deadline, out = b"", time.monotonic() + limit, child.stdout.fileno()
    try:
        while True:
            ready = select.select([out, 0], [], [], 1)[0]
            if out in ready:
                block = os.read(out, 65536)
                if not block:
                    break
                said = (said + block)[-(1 << 17):]
            orders.check()
            if time.monotonic() > deadline:
                raise Failed("%s timed out after %d s" % (name, limit))
        child.wait(10)
    except subprocess.TimeoutExpired:
        raise Failed("%s closed its output but did not exit" % name)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        if said and not orders.silent():  # for the log of the controller, if it still listens
            emit({"pip": said.decode("utf-8", "replace").splitlines()})
    if child.returncode != 0:
        text = said.decode("utf-8", "replace").strip()
        lines = [l for l in text.splitlines() if l.upper().startswith("ERROR")] or text.splitlines()[-3:]
        words, advice = " ".join(lines)[:1000], fault_of_machine("".join(lines))
        if advice == "no-room":  # the program names a temporary file, on each node another
            raise Failed("%s exited with status %d: no space left on device" % (name, child.returncode), advice, words)
        raise Failed("%s exited with status %d: %s" % (name, child.returncode, words), advice)


def fault_of_machine(text):
    """The code of the advice for an error of OF_MACHINE in what an installer has said, or an empty text."""
    return next((code for number, code in OF_MACHINE.items() if "[Errno %d]" % number in text or "(os error %d)" % number in text), "")


def run_agent(env, verbs):
    """Run an agent until its controller ends it or goes away. env has begin, undo, recorded, keep and
    dir. dir is set while env may change something."""
    def leave(*_):
        raise Gone()

    for s in SIGNALS:
        signal.signal(s, leave)
    orders = Orders(urgent=["undo"])
    try:
        answer(0, lambda: env.begin(orders), env.describe)
        if env.dir:
            while True:
                try:
                    serve(orders.take, verbs(env, orders), env.describe)
                    return
                except Gone:
                    undo = [o for o in orders.pending if o["do"] == "undo"]
                    if not undo or orders.ended:
                        env.keep = not env.recorded and not any(o["do"] in ("undo", "end") for o in orders.pending)
                        return  # the controller no longer waits
                    orders.pending = undo
    except Gone:
        pass
    finally:
        for s in SIGNALS + (signal.SIGPIPE,):
            signal.signal(s, signal.SIG_IGN)
        if env.lock is not None and env.dir:
            env.undo()
