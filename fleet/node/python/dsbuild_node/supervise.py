"""One node's part of a job: an agent that starts it, passes on its output, and ends all of its
processes. All processes that it starts are its descendants, also those that left their session
or lost their parent, and end with it.

There are two processes. One runs the job. The other only waits, and ends the remaining processes
if the first is killed. Both need only Python 3.6."""
import codecs
import ctypes
import errno
import glob
import os
import queue
import random
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time

from dsbuild_node.agent import SIGNALS, Orders, answer, send
from dsbuild_node.controller import REQUEST

TICK = 0.1  # between two looks at processes and files
BLOCK = 1 << 16
FORGET = 4 << 20  # bytes of a file that are on the node's disk
UNKNOWN = 2  # how long a rank's file waits for what tells whose it is
LAST_RESORT = 10  # how long processes are killed before they count as left over

SET_PDEATHSIG, SET_CHILD_SUBREAPER = 1, 36

# The files that launchers write: torchrun by local rank, the others by rank.
LOCAL = re.compile(r"attempt_(\d+)/(\d+)/std(out|err)\.log$")
GLOBAL = re.compile(r"rank(\d+)\.log$")


def prctl(option, value):
    """If the system does not support this, the job runs all the same."""
    try:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    except (OSError, AttributeError):
        pass


def process(pid):
    """The state of a process, its parent and, if it has ended, its status; None if it is
    gone."""
    try:
        with open("/proc/%s/stat" % pid, "rb") as f:
            fields = f.read().rpartition(b")")[2].split()
        return fields[0], int(fields[1]), int(fields[49])
    except (OSError, IndexError, ValueError):
        return None


def processes():
    """All processes."""
    found = ((int(name), process(name)) for name in os.listdir("/proc") if name.isdigit())
    return {pid: p for pid, p in found if p}


def descendants(found):
    """The descendants of this process, whatever their parent is now."""
    children = {}
    for pid, (_, parent, _) in found.items():
        children.setdefault(parent, []).append(pid)
    mine, look = [], [os.getpid()]
    while look:
        for pid in children.get(look.pop(), ()):
            mine.append(pid)
            look.append(pid)
    return mine


def send_signal(pid, number):
    try:
        os.kill(pid, number)
    except OSError:
        pass  # it has ended


def environment_of(pid):
    """The variables with which a process was started."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as f:
            words = f.read(1 << 20).split(b"\0")
    except OSError:
        return {}
    return dict(word.split(b"=", 1) for word in words if b"=" in word)


def free_port():
    """A free port, below the range from which the kernel chooses ports."""
    for port in random.sample(range(10000, 30000), 100):
        with socket.socket() as s:
            try:
                s.bind(("", port))
                return port
            except OSError:
                continue
    return 0


def count_gpus():
    """The number of NVIDIA GPUs of this machine, None if it may have others."""
    count = max(len(glob.glob(pattern)) for pattern in ("/proc/driver/nvidia/gpus/*", "/dev/nvidia[0-9]*"))
    others = "/dev/dxg", "/dev/kfd", "/dev/nvmap", "/dev/nvhost*", "/dev/accel*", "/dev/dri/renderD*"
    return None if not count and any(map(glob.glob, others)) else count


def forget(fd, size):
    """Free the disk space of the output that has been passed on, if the file system can do
    that."""
    keep_size, punch_hole = 1, 2
    try:
        ctypes.CDLL(None).fallocate(fd, keep_size | punch_hole, ctypes.c_int64(0), ctypes.c_int64(size))
    except (OSError, AttributeError):
        pass


class Ending:
    """Asks processes to end, and kills those that do not within the grace."""

    def __init__(self, grace):
        begin = time.monotonic()
        self.kill_at = begin + grace
        self.give_up_at = self.kill_at + LAST_RESORT
        self.asked = set()

    def push(self, alive):
        """Report whether nothing is left to do."""
        now = time.monotonic()
        for pid in alive:
            if now >= self.kill_at:
                send_signal(pid, signal.SIGKILL)
            elif pid not in self.asked:
                self.asked.add(pid)
                send_signal(pid, signal.SIGTERM)
                send_signal(pid, signal.SIGCONT)
        return not alive or now >= self.give_up_at


class Stream:
    """A growing file, or the launcher's pipe."""

    def __init__(self, fd, key, kind):
        self.fd, self.key, self.kind = fd, key, kind
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.done = self.forgotten = 0

    def read(self):
        """The next bytes; b"" at the end, None if there are none yet."""
        try:
            raw = os.read(self.fd, BLOCK)
        except OSError as e:
            return None if e.errno in (errno.EAGAIN, errno.EINTR) else b""
        self.done += len(raw)
        if self.key != "launcher" and self.done - self.forgotten > FORGET:
            forget(self.fd, self.done)
            self.forgotten = self.done
        return raw

    def text(self, raw, final=False):
        return {"out": {"key": str(self.key), "kind": self.kind, "text": self.decoder.decode(raw, final)}}


class StartError(Exception):
    """A reason why the job cannot run here."""


class Job:
    """The processes of the job on this node."""

    def __init__(self, folder):
        self.spec, self.folder = REQUEST, folder
        self.logs = os.path.join(folder, "ranks")
        self.said = queue.Queue()  # pump puts nothing into a long one
        self.orders = Orders()
        self.launcher = None
        self.streams = {}
        self.ranks = {}  # local rank: rank
        self.known = {}  # pid of a rank's process: rank, local rank
        self.seen = {}  # file of a rank whose process is not known: when it was first seen
        self.ignored = set()
        self.status = None
        self.ending = None
        self.reason = ""
        self.killed = False
        self.scan_at = self.look_at = 0

    # Messages to the controller go through a queue: if the controller does not read them, processes are
    # ended all the same.

    def tell(self, message):
        self.said.put(message)

    def speak(self):
        while True:
            message = self.said.get()
            if message is None:
                return
            try:
                send(message)
            except OSError:
                pass  # the controller has gone; standard input shows it, too

    def find_obstacle(self):
        """Why the job cannot run here, or None."""
        spec = self.spec
        if spec["workdir"] and not os.path.isdir(spec["workdir"]):
            return "directory not found: %s" % spec["workdir"]
        script = os.path.join(spec["workdir"] or os.getcwd(), spec["script"])
        if spec["look"] and spec["script"] and not os.path.isfile(script):
            return "file not found: %s" % script
        python = spec["python"]
        if spec["look"] and python and not (shutil.which(python) if "/" not in python else os.access(python, os.X_OK)):
            return "Python not found: %s" % python
        if not shutil.which("bash"):
            return "bash not found"
        count = count_gpus() if spec["look"] and spec["gpus"] else None
        if count is not None and count < spec["gpus"]:
            return "the job uses %d GPUs, but %d were found; --gpus sets the number, and 0 runs on CPUs" % (spec["gpus"], count)
        if spec["port"]:
            s = socket.socket()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("", spec["port"]))
                s.listen(1)
            except OSError as e:
                if e.errno != errno.EADDRINUSE:
                    return "port %d: %s" % (spec["port"], e.strerror)
                return "port %d is in use; %d is free" % (spec["port"], free_port())
            finally:
                s.close()
        return None

    def launch(self):
        """Fork the launcher, which waits for the order to begin. No thread runs yet."""
        begin, self.begin = os.pipe()
        out, into = os.pipe()
        pid = os.fork()
        if pid:
            os.close(begin)
            os.close(into)
            os.set_blocking(out, False)
            self.launcher = pid
            self.streams[out] = Stream(out, "launcher", "out")
            return
        try:
            prctl(SET_PDEATHSIG, signal.SIGTERM)
            os.setsid()
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            os.close(self.begin)
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.dup2(into, 1)
            os.dup2(into, 2)
            if os.read(begin, 1) != b"g":
                os._exit(0)
            environment = dict(os.environ)
            environment.update(self.spec["env"])
            environment["RANK_LOGS"] = self.logs
            os.execvpe("bash", ["bash", os.path.join(self.folder, self.spec["run"])], environment)
        except BaseException as e:  # for any reason, this process must end here
            os.write(2, ("%s\n" % e).encode())
        os._exit(127)

    def prepare(self):
        """Do everything that can fail before the order to begin."""
        why = self.find_obstacle()
        if why is not None:
            raise StartError(why)
        os.mkdir(self.logs, 0o700)
        for f in self.spec["files"]:
            with open(os.path.join(self.folder, f["name"]), "w", encoding="utf-8", newline="") as out:
                out.write(f["text"])
        self.launch()

    def run(self):
        for number in SIGNALS:
            signal.signal(number, self.kill)
        answer(0, self.prepare, describe)
        if self.launcher is None:
            return
        speaker = threading.Thread(target=self.speak, daemon=True)
        speaker.start()
        while not self.turn():
            pass
        code = 1 << 8 if self.status is None else self.status
        self.tell({"end": {
            "code": os.WEXITSTATUS(code) if os.WIFEXITED(code) else -1,
            "signal": os.WTERMSIG(code) if os.WIFSIGNALED(code) else 0,
            "left": descendants(processes()), "reason": self.reason,
        }})
        self.said.put(None)
        speaker.join(LAST_RESORT)

    def turn(self):
        """One turn of the loop; true when everything is over."""
        self.take_orders()
        self.reap()
        self.record_ends()
        while self.pump() and self.said.qsize() < 100:
            pass
        if self.status is not None and self.ending is None:
            self.ending = Ending(self.spec["grace"])
        if self.ending is None:
            # There may be thousands of other processes here.
            now = time.monotonic()
            if now >= self.look_at:
                found = processes()
                self.record_ranks(found, descendants(found))
                self.look_at = now + max(0.4, 20 * (time.monotonic() - now))
            time.sleep(TICK)
            return False
        found = processes()
        mine = descendants(found)
        self.record_ranks(found, mine)
        # A process whose first thread has ended looks ended, but its other threads may still
        # work. So only a process that was waited for is over. Processes that lose their parent
        # become children of this process.
        if not self.ending.push(mine):
            time.sleep(TICK / 2)
            return False
        self.reap()
        self.record_ends()
        while self.pump():  # the last output
            time.sleep(TICK / 10)
        self.flush()
        return True

    def take_orders(self):
        self.orders.listen(0)
        for order in self.orders.pending:
            if order["do"] != "go":
                self.stop("")
            elif self.ending is None:
                os.write(self.begin, b"g")
            if "number" in order:
                self.tell({"to": order["number"], "ok": None})
        self.orders.pending = []
        if self.killed:
            self.stop("agent was killed")
        elif self.orders.ended:
            self.stop("connection closed")
        elif self.orders.silent():
            self.stop("no heartbeat from dsbuild for %d s" % REQUEST["silence_s"])

    def kill(self, *_):
        self.killed = True

    def stop(self, reason):
        if self.ending is None:
            self.reason = reason
            os.close(self.begin)
            self.ending = Ending(self.spec["grace"])

    def reap(self):
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except OSError:
                return
            if pid == 0:
                return
            if pid == self.launcher:
                self.status = status

    def record_ranks(self, found, mine):
        """Record which process is which rank."""
        for pid in mine:
            if pid in self.known or pid in self.ignored or found[pid][0] == b"Z":
                continue
            words = environment_of(pid)
            rank, local = words.get(b"RANK", b""), words.get(b"LOCAL_RANK", b"")
            if not rank.isdigit() or not local.isdigit():
                continue  # of the launcher, or not yet what it is going to be
            parent = found[pid][1]
            if parent in self.known or parent in self.ignored or parent == os.getpid():
                self.ignored.add(pid)  # a child of a rank's, or an orphan of one
                continue
            self.known[pid] = int(rank), int(local)
            self.ranks[int(local)] = int(rank)
            self.tell({"rank": {"number": int(rank), "local": int(local), "begun": True}})

    def record_ends(self):
        """Record which ranks have ended."""
        for pid in list(self.known):
            state, _, status = process(pid) or (b"X", 0, -1)
            if state in (b"Z", b"X"):
                rank, local = self.known.pop(pid)
                self.tell({"rank": {"number": rank, "status": status}})
                if self.ranks.get(local) == rank:
                    del self.ranks[local]  # after a restart it may be another

    def scan(self):
        """Open the files of new ranks."""
        for folder, _, names in os.walk(self.logs):
            for name in names:
                path = os.path.join(folder, name)
                by_local, by_rank = LOCAL.search(path), GLOBAL.search(path)
                if not (by_local or by_rank):
                    continue
                try:
                    st = os.stat(path)
                except OSError:
                    continue
                file = path, st.st_ino  # torchrun may recreate an attempt's folder
                if file in self.ignored:
                    continue
                kind = by_local.group(1) + by_local.group(3) if by_local else "out"
                key = int(by_rank.group(1)) if by_rank else "local:" + by_local.group(2)
                if by_local and self.spec["first"] >= 0:
                    key = self.spec["first"] + int(by_local.group(2))
                elif by_local and int(by_local.group(2)) in self.ranks:
                    key = self.ranks[int(by_local.group(2))]
                elif by_local and self.ending is None:
                    # Its process is not known yet; a process that ended at once never is.
                    if not st.st_size or time.monotonic() - self.seen.setdefault(file, time.monotonic()) < UNKNOWN:
                        continue
                try:
                    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                except OSError:
                    continue
                self.ignored.add(file)
                self.streams[fd] = Stream(fd, key, kind)

    def pump(self):
        """Pass on the new output. Return whether there may be more."""
        now = time.monotonic()
        if now >= self.scan_at or self.ending is not None:
            self.scan_at = now + 0.3
            self.scan()
        more = False
        for fd, stream in list(self.streams.items()):
            if self.said.qsize() > 100:  # the other side is slower
                self.orders.listen(0)
                return not self.orders.silent()
            raw = stream.read()
            if raw:
                more = True
                self.tell(stream.text(raw))
            elif raw == b"" and stream.key == "launcher":
                del self.streams[fd]
                os.close(fd)
        return more

    def flush(self):
        for stream in self.streams.values():
            rest = stream.text(b"", True)
            if rest["out"]["text"]:
                self.tell(rest)


def describe(error):
    if isinstance(error, StartError):
        return {"failed": str(error)}
    return {"failed": "agent: %s: %s" % (type(error).__name__, error)}


def guard(inner, grace):
    """Wait for the other process, and end the processes that it may have left."""
    for number in SIGNALS:
        signal.signal(number, lambda *_: send_signal(inner, signal.SIGTERM))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    status = None
    while status is None:
        try:
            pid, ended = os.waitpid(-1, 0)
        except InterruptedError:
            continue
        except OSError:
            break
        if pid == inner:
            status = ended
    if status == 0:
        return 0
    ending = Ending(min(grace, 2))
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except OSError:
            pass
        left = descendants(processes())
        if ending.push(left):
            break
        time.sleep(TICK / 2)
    reason = "job supervisor exited unexpectedly"
    if status is not None and os.WIFSIGNALED(status):
        reason = "job supervisor was killed by signal %d" % os.WTERMSIG(status)
    try:
        send({"end": {"code": 1, "signal": 0, "left": left, "reason": reason}})
    except OSError:
        pass
    return 1


def main():
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    prctl(SET_CHILD_SUBREAPER, 1)
    folder = tempfile.mkdtemp(prefix=".dsbuild-job-")
    outer = os.getpid()
    inner = os.fork()
    if inner == 0:
        status = 1
        try:
            os.setsid()  # signals to the terminal, or to the connection's group, reach only the other process
            prctl(SET_CHILD_SUBREAPER, 1)
            prctl(SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() == outer:
                Job(folder).run()
                status = 0
        except BaseException as e:
            sys.stderr.write("%s: %s\n" % (type(e).__name__, e))
            sys.stderr.flush()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(status)
    status = guard(inner, REQUEST["grace"])
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(status)
