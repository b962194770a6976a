"""The program of a check on a node: one agent. It reports the progress of a collective in
separate messages. It writes nothing but small files, which it removes. It listens on ports
that answer only callers who know a random token. When it ends, it ends all processes that it
started."""
import array
import errno
import fcntl
import json
import os
import queue
import resource
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

from dsbuild_node.agent import SIGNALS, Orders, answer, send, serve
from dsbuild_node.controller import REQUEST, source_of
from dsbuild_node.files import text
from dsbuild_node.view import mounted_type

CALLERS = 4096  # connections at the same time, if this program may have as many files
PAYLOAD = 32 << 10  # more than a packet, to find a path that loses large packets

children = []  # processes that were started, each the first of its session
temp_files = []  # files to be removed
ending = threading.Lock()


def end(status):
    """End everything, and leave nothing."""
    ending.acquire(timeout=5)  # for good
    for child in list(children):
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except OSError:
            pass
    for path in list(temp_files):
        try:
            os.unlink(path)
        except OSError:
            pass
    os._exit(status)


def hear(orders):
    """Take orders. End everything when the controller is gone or gives the order to end."""
    arriving = Orders()
    try:
        while True:
            order = arriving.take()
            if order["do"] == "end":
                break
            orders.put(order)
    finally:
        end(0)


def why(error):
    """The text of an error."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "%s: %s" % (type(error).__name__, error)


def failure(error):
    return {"failed": why(error)}


def begin(argv, **more):
    """Start a program that ends with this one."""
    with ending:
        child = subprocess.Popen(argv, start_new_session=True, **more)
        children.append(child)
    return child


def finish(child):
    """End a program with all processes that it started."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except OSError:
        pass
    try:
        child.wait(5)
    except subprocess.TimeoutExpired:  # it waits for a disk or a driver that does not answer
        return
    if child in children:
        children.remove(child)


def ran(argv, limit, about=""):
    """The status and the output of a program: {status, lines}, with the lines that contain about.
    None if the program is missing. Status -1 means that it did not end in time."""
    env = dict(os.environ, LC_ALL="C")
    try:
        child = begin(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env)
    except OSError as e:
        return None if e.errno == errno.ENOENT else {"status": -1, "lines": [why(e)]}
    try:
        out, status = child.communicate(timeout=limit)[0], child.returncode
    except subprocess.TimeoutExpired:
        out, status = b"timed out after %d s" % limit, -1
    finally:
        finish(child)
    return {"status": status, "lines": [l for l in out.decode("utf-8", "replace").splitlines() if about in l][-200:]}


def side_by_side(parts, limit):
    """The results of several functions, as {ok}, {error} or {hung}: a file server or a name
    server that does not answer holds up nothing else."""
    found = {}

    def do(name, part):
        try:
            answer = {"ok": part()}
        except Exception as e:
            answer = {"error": why(e)}
        found.setdefault(name, answer)

    threads = [threading.Thread(target=do, args=item, daemon=True) for item in parts.items()]
    for t in threads:
        t.start()
    last = time.monotonic() + limit
    for t in threads:
        t.join(max(0, last - time.monotonic()))
    for name in parts:
        found.setdefault(name, {"hung": True})
    return found


# --- facts about the node


def addresses_of(name):
    """The addresses to which a name resolves, as for a job, without duplicates."""
    found = []
    for info in socket.getaddrinfo(name, None, 0, socket.SOCK_STREAM):
        address = info[4][0].split("%")[0]
        if address not in found:
            found.append(address)
    return found


def named(name):
    try:
        return {"name": name, "addresses": addresses_of(name), "error": ""}
    except OSError as e:
        return {"name": name, "addresses": [], "error": why(e)}


def interfaces():
    """The addresses of this node with their interfaces."""
    found = []
    size = 40 if struct.calcsize("P") == 8 else 32  # of struct ifreq
    room = array.array("B", b"\0" * size * 512)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        asked = struct.pack("iP", len(room), room.buffer_info()[0])
        used = struct.unpack("iP", fcntl.ioctl(s.fileno(), 0x8912, asked))[0]  # SIOCGIFCONF
    data = room.tobytes()[:used]
    for at in range(0, used, size):
        name = data[at:at + 16].split(b"\0")[0].decode("utf-8", "replace").split(":")[0]
        found.append({"name": name, "address": socket.inet_ntoa(data[at + 20:at + 24])})
    for line in text("/proc/net/if_inet6").splitlines():
        words = line.split()
        address = socket.inet_ntop(socket.AF_INET6, bytes(bytearray.fromhex(words[0])))
        if not address.startswith("fe80:"):
            found.append({"name": words[5], "address": address})
    return found


def route(to):
    """The interface and the own address with which this node reaches an address."""
    family = socket.AF_INET6 if ":" in to else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        s.connect((to, 9))  # sends nothing
        own = s.getsockname()[0].split("%")[0]
    for i in interfaces():
        if i["address"] == own:
            return {"interface": i["name"], "address": own}
    return {"interface": "", "address": own}


def variables():
    """The variables that decide how processes find and reach each other. None of them is a place
    for secrets."""
    begins = ("NCCL_", "GLOO_", "TORCH_NCCL_", "TORCHELASTIC_", "CUDA_", "NVIDIA_", "OMP_", "UCX_", "FI_")
    names = ("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
             "PYTHONPATH", "PYTHONHOME", "PYTHONNOUSERSITE", "LD_LIBRARY_PATH", "LD_PRELOAD", "DS_ACCELERATOR", "TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR",
             "TORCH_DISTRIBUTED_DEBUG", "TORCH_CPP_LOG_LEVEL")
    return {k: v for k, v in sorted(os.environ.items()) if k.startswith(begins) or k in names}


def try_write(folder, keep=""):
    """Write a file into a folder. Return the reason if that is impossible. The file is
    removed, or kept under a name until this program ends."""
    path = os.path.join(folder, keep or ".dsbuild-check-%s-%d" % (REQUEST["run"], os.getpid()))
    try:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except OSError as e:
        return why(e)
    temp_files.append(path)
    reason = ""
    try:
        if os.write(fd, b"\0" * 65536) < 65536:
            reason = os.strerror(errno.ENOSPC)
    except OSError as e:
        reason = why(e)
    try:
        os.close(fd)  # a file server may say only now that there is no room
    except OSError as e:
        reason = reason or why(e)
    if not keep:
        os.unlink(path)
        temp_files.remove(path)
    return reason


def space(what, path, write):
    """The free space at a path."""
    s = os.statvfs(path)
    return {"what": what, "path": path, "free": s.f_bavail * s.f_frsize, "inodes": s.f_favail if s.f_files else -1,
            "unwritable": try_write(path) if write else ""}


def disks():
    """A function for each place in which a job needs space."""
    places = {"environment": (sys.prefix, False), "TMPDIR": (os.environ.get("TMPDIR") or "/tmp", True), "/dev/shm": ("/dev/shm", True)}
    return {what: (lambda what=what, at=at: space(what, *at)) for what, at in places.items()}


def data(path):
    """A folder or file that all nodes must see. Equal results mean the same contents."""
    import hashlib

    full = os.path.expanduser(path)
    digest, total, entries = hashlib.sha256(), 0, 0
    if os.path.isdir(full):
        some = ""
        for entry in sorted(os.scandir(full), key=lambda e: e.name)[:10000]:
            if entry.name.startswith(".dsbuild-check-"):
                continue
            size = entry.stat().st_size if entry.is_file() else -1
            digest.update(("%s\0%d\n" % (entry.name, size)).encode("utf-8", "surrogateescape"))
            entries, total = entries + 1, total + max(size, 0)
            some = some or (size > 0 and entry.path) or ""
    else:
        entries, total, some = 1, os.stat(full).st_size, full
        digest.update(b"%d" % total)
    if some:
        with open(some, "rb") as f:  # it may be listed, and not readable
            digest.update(f.read(1 << 16))
    return {"path": path, "entries": entries, "bytes": total, "digest": digest.hexdigest()}


def marker():
    return ".dsbuild-check-%s" % REQUEST["run"]


def output(path):
    """A folder to which nodes must be able to write: the first node leaves a file for the others
    to see."""
    full = there = os.path.expanduser(path)
    while not os.path.isdir(there) and os.path.dirname(there) != there:
        if os.path.lexists(there):
            raise OSError(errno.ENOTDIR, "not a directory")
        there = os.path.dirname(there)
    found = space("output", there, not REQUEST["first"])
    if REQUEST["first"]:
        found["unwritable"] = try_write(there, marker())
    return dict(found, path=path, missing=there != full)


def seen(order):
    """The output folders that have the first node's file."""
    def look(path):
        there = os.path.expanduser(path)
        while not os.path.isdir(there):
            there = os.path.dirname(there)
        for _ in range(10):  # a file server's clients may be a moment late
            if os.path.lexists(os.path.join(there, marker())):
                return True
            time.sleep(0.3)
        return False

    return side_by_side({p: (lambda p=p: look(p)) for p in order["paths"]}, REQUEST["limit_s"])


def limits():
    """The memory that a process may lock, -1 without a limit, the RDMA devices, which need it, and the bytes of the
    kernel's contiguous memory area, -1 if it does not say."""
    try:
        devices = sorted(os.listdir("/sys/class/infiniband"))
    except OSError:
        devices = []
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    cma = -1
    for line in text("/proc/meminfo").splitlines():
        if line.startswith("CmaTotal:"):
            cma = int(line.split()[1]) << 10
    return {"memlock": -1 if soft == resource.RLIM_INFINITY else soft, "rdma": devices, "cma": cma}


def nccl_files():
    """The settings in NCCL's configuration files, which hold for all jobs: [file, setting]."""
    files = ["/etc/nccl.conf", os.environ.get("NCCL_CONF_FILE") or os.path.expanduser("~/.nccl.conf")]
    found = []
    for path in files:
        for line in text(path).splitlines():
            line = line.strip()
            if line and not line.startswith("#") and len(found) < 50:
                found.append([path, line])
    return found


def triton():
    """The folder in which Triton keeps compiled kernels, and its file system, which is empty without Triton."""
    from importlib.util import find_spec
    home = os.environ.get("TRITON_HOME") or os.path.expanduser("~")
    folder = os.environ.get("TRITON_CACHE_DIR") or os.path.join(home, ".triton", "cache")
    return {"folder": folder, "type": mounted_type(folder) if find_spec("triton") else ""}


OLD = 3600  # seconds after which no build holds its lock


def operators():
    """The folder of operators that torch compiles, its file system, and the locks of builds that ended
    without removing them. Each is [path, age in seconds]."""
    chosen = os.environ.get("TORCH_EXTENSIONS_DIR")
    folder = chosen or os.path.expanduser("~/.cache/torch_extensions")
    found = {"folder": folder, "type": "", "locks": []}
    # Without operators in it the usual folder says nothing: a wheel may hold them all.
    if not chosen and not os.path.isdir(folder):
        return found
    found["type"] = mounted_type(folder)
    depth = folder.rstrip("/").count("/") + 2
    for at, inner, files in os.walk(folder):
        if at.count("/") >= depth:
            inner[:] = []
        if "lock" in files:
            path = os.path.join(at, "lock")
            age = time.time() - os.lstat(path).st_mtime
            if age > OLD and len(found["locks"]) < 20:
                found["locks"].append([path, age])
    return found


# --- devices


def query(*words):
    return lambda: ran(("nvidia-smi",) + words + ("--format=csv,noheader,nounits",), REQUEST["limit_s"] - 2)


def kernel_says():
    """The driver's error messages in the kernel's log (XID)."""
    for argv in (["dmesg"], ["journalctl", "-k", "-b", "--no-pager", "-q", "-g", "NVRM: Xid"]):
        got = ran(argv, 8, "NVRM: Xid")
        if got and got["status"] == 0:
            return got
    return {"status": 1, "lines": []}


# Prints the CUDA version of the libcuda that programs load, which is the driver's or one of cuda-compat.
LIBCUDA = """import ctypes
version = ctypes.c_int()
ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
print(version.value)
"""


def devices():
    """A function for each fact that nvidia-smi and the kernel know about GPUs. Each is a
    question of its own: an older nvidia-smi refuses a question with a field that it does not
    know."""
    if not shutil.which("nvidia-smi"):
        return {}
    return {
        "gpus": query("--query-gpu=index,uuid"),
        "ecc": query("--query-gpu=index,ecc.errors.uncorrected.volatile.total"),
        "retired": query("--query-gpu=index,retired_pages.pending"),
        "remapped": query("--query-remapped-rows=gpu_bus_id,remapped_rows.pending,remapped_rows.failure"),
        "slowdown": query("--query-gpu=index,clocks_throttle_reasons.hw_slowdown"),
        "busy": query("--query-compute-apps=gpu_uuid,pid,process_name"),
        "fabric": query("--query-gpu=index,fabric.state"),
        "mig": query("--query-gpu=index,mig.mode.current"),
        "memory": query("--query-gpu=index,memory.total"),
        "libcuda": lambda: ran([sys.executable, "-c", LIBCUDA], REQUEST["limit_s"] - 2),
        "xid": kernel_says,
    }


# --- the network


class Listener:
    """Answers callers who know the token, on any number of ports."""

    def __init__(self):
        self.waits = selectors.DefaultSelector()
        self.sockets = {}  # by port
        self.strangers = {}  # callers that have not said the token, the oldest first
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        self.most = CALLERS if hard == resource.RLIM_INFINITY else min(CALLERS, max(hard - 128, 64))
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (self.most + 128, hard))
        except (OSError, ValueError):
            self.most = 512
        self.new = queue.Queue()
        self.wakeup, self.waker = socket.socketpair()
        self.wakeup.setblocking(False)
        self.waits.register(self.wakeup, selectors.EVENT_READ, None)
        threading.Thread(target=self.serve, daemon=True).start()

    def open(self, port):
        """Listen on a port, or on any port if it is 0. Return the port, or an OSError."""
        both = socket.has_ipv6 and os.path.exists("/proc/net/if_inet6")
        try:
            listening = socket.socket(socket.AF_INET6 if both else socket.AF_INET, socket.SOCK_STREAM)
            if both:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        except OSError:
            listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            both = False
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(("::" if both else "0.0.0.0", port))
            listening.listen(1024)
            listening.setblocking(False)
        except OSError:
            listening.close()
            raise
        port = listening.getsockname()[1]
        self.sockets[port] = listening
        self.new.put(listening)
        self.waker.send(b"!")
        return port

    def close(self, port):
        listening = self.sockets.pop(port, None)
        if listening:
            done = threading.Event()
            self.new.put((listening, done))
            self.waker.send(b"!")
            done.wait(5)

    def serve(self):
        while True:
            for key, _ in self.waits.select():
                try:
                    self.handle_event(key)
                except (OSError, ValueError, KeyError):
                    if isinstance(key.data, list):  # a caller; a listening socket stays open
                        self.close_socket(key.fileobj)

    def handle_event(self, key):
        if key.fileobj is self.wakeup:
            self.wakeup.recv(64)
            while not self.new.empty():
                listening = self.new.get()
                if isinstance(listening, tuple):
                    self.close_socket(listening[0])
                    listening[1].set()
                else:
                    self.waits.register(listening, selectors.EVENT_READ, "listening")
        elif key.data == "listening":
            caller, _ = key.fileobj.accept()
            caller.setblocking(False)
            self.waits.register(caller, selectors.EVENT_READ, [b"", 0])
            self.strangers[caller] = True
            if len(self.waits.get_map()) > self.most:  # a caller that says nothing must not keep others out
                self.close_socket(next(iter(self.strangers)))
        else:
            self.read_caller(key.fileobj, key.data)

    def read_caller(self, caller, state):
        block = caller.recv(1 << 16)
        if not block:  # the caller hangs up first: the port has no connections that linger
            return self.close_socket(caller)
        if len(state[0]) < 33:
            state[0] += block[:33 - len(state[0])]
        state[1] += len(block)
        if state[1] > 33 + PAYLOAD:
            return self.close_socket(caller)
        if len(state[0]) == 33 and state[0] != REQUEST["token"].encode("ascii") + b"\n":
            caller.send(b"who?")
        elif len(state[0]) == 33:
            self.strangers.pop(caller, None)
        if state[1] == 33 + PAYLOAD and caller not in self.strangers:
            caller.send(b"well")

    def close_socket(self, s):
        self.strangers.pop(s, None)
        try:
            self.waits.unregister(s)
        except (KeyError, ValueError):
            pass
        s.close()


def dial(order):
    """Call all peers, some at a time. Return those that it could not reach, and why. Call
    these a second time, because a single packet may get lost."""
    limits = {False: order["limit_s"], True: order["answer_s"]}
    failed = call(order["peers"], order["window"], limits)
    if failed:
        again = [p for p in order["peers"] if p[0] in failed]
        failed = call(again, order["window"], limits)
    return {"reached": len(order["peers"]) - len(failed), "failed": [[at, failed[at]] for at in sorted(failed)]}


def call(peers, window, limits):
    """Call peers. Return {index: why} of those that it could not reach. limits has the limit
    for a connection, and (True) the limit for the answer over it."""
    waits, failed, waiting, active = selectors.DefaultSelector(), {}, list(reversed(peers)), {}

    def drop(s, reason):
        at = active.pop(s)[0]
        if reason:
            failed[at] = reason
        try:
            waits.unregister(s)
        except (KeyError, ValueError):
            pass
        s.close()

    while waiting or active:
        while waiting and len(active) < window:
            at, address, port, token = waiting.pop()
            try:
                s = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
                s.setblocking(False)
                status = s.connect_ex((address, port))
                if status not in (0, errno.EINPROGRESS):
                    s.close()
                    failed[at] = "invalid route" if status == errno.EINVAL else os.strerror(status)
                    continue
            except OSError as e:
                failed[at] = why(e)
                continue
            # index, start time, data still to be sent, whether it is connected
            active[s] = [at, time.monotonic(), token.encode("ascii") + b"\n" + b"\0" * PAYLOAD, False]
            waits.register(s, selectors.EVENT_WRITE)
        for key, _ in waits.select(0.1):
            s = key.fileobj
            state = active[s]
            try:
                if not state[3]:
                    status = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    if status:
                        drop(s, os.strerror(status))
                        continue
                    state[1], state[3] = time.monotonic(), True
                if state[2]:
                    state[2] = state[2][s.send(state[2]):]
                    if not state[2]:
                        waits.modify(s, selectors.EVENT_READ)
                    continue
                answer = s.recv(4)
                drop(s, {b"well": "", b"who?": "a different program or node answers there"}.get(answer, "connection closed"))
            except BlockingIOError:
                pass
            except OSError as e:
                drop(s, why(e))
        now = time.monotonic()
        for s in [s for s, state in active.items() if now - state[1] > limits[state[3]]]:
            drop(s, "connected, but large packets are dropped" if active[s][3] else "no answer")
    return failed


def port(listener, order):
    """Whether a port is free; if so, this program then listens on it."""
    try:
        return {"port": listener.open(order["port"]), "error": "", "holder": "", "free": 0}
    except OSError as e:
        other = listener.open(0)
        listener.close(other)
        return {"port": 0, "error": why(e), "holder": holder(order["port"]), "free": other}


def holder(number):
    """The process that listens on a port, if this user may know it."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in text(table).splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and int(words[1].split(":")[1], 16) == number:
                inodes.add("socket:[%s]" % words[9])
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            for fd in os.listdir("/proc/%s/fd" % pid):
                if os.readlink("/proc/%s/fd/%s" % (pid, fd)) in inodes:
                    return "pid %s (%s)" % (pid, text("/proc/%s/comm" % pid).strip())
        except OSError:
            continue
    return ""


# --- a collective


class Ranks:
    """The processes of one collective on this node."""

    def __init__(self, order):
        self.processes, self.heard = {}, {}  # by rank
        for local in range(order["local"]):
            rank = order["rank"] + local
            r, w = os.pipe()
            told = dict(order, rank=rank, local=local, fd=w)
            env = dict(os.environ, PYTHONDONTWRITEBYTECODE="1", PYTHONUNBUFFERED="1")
            for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
                env.pop(name, None)
            try:
                child = begin([sys.executable, "-c", source_of("dsbuild_node.collective"), json.dumps(told)], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=(w,), env=env)
            finally:
                os.close(w)
            self.processes[rank], self.heard[rank] = child, time.monotonic()
            threading.Thread(target=self.follow, args=(rank, child, r), daemon=True).start()

    def follow(self, rank, child, r):
        said, ended = [b""], threading.Event()

        def keep():
            while True:
                block = child.stdout.read1(1 << 16)
                if not block:
                    return ended.set()
                said[0] = (said[0] + block)[-4096:]

        threading.Thread(target=keep, daemon=True).start()
        with os.fdopen(r, "r") as stages:
            for line in stages:
                self.heard[rank] = time.monotonic()
                told = json.loads(line)
                if told["stage"] != "alive":
                    send({"event": dict({"rank": rank, "stage": "", "error": "", "seconds": 0, "latency": 0, "bytes": 0}, **told)})
        status = child.wait()
        ended.wait(1)
        lines = [l for l in said[0].decode("utf-8", "replace").splitlines() if l.strip()]
        if status:
            how = "killed by signal %d" % -status if status < 0 else "exit status %d" % status
            send({"event": {"rank": rank, "stage": "failed", "error": "%s (%s)" % (lines[-1], how) if lines else how, "seconds": 0, "latency": 0, "bytes": 0}})

    def tell(self, word):
        for child in self.processes.values():
            try:
                child.stdin.write(word + b"\n")
                child.stdin.flush()
            except OSError:
                pass  # it has ended; follow reports that

    def silent(self):
        """How long each process has been silent; each sends a heartbeat every second."""
        now = time.monotonic()
        return [[rank, now - heard] for rank, heard in sorted(self.heard.items())]

    def stop(self):
        for child in self.processes.values():
            finish(child)


# --- orders


def survey(listener):
    limit = REQUEST["limit_s"]
    parts = {
        "host": lambda: named(socket.gethostname()),
        "master": lambda: named(REQUEST["master"]),
        "interfaces": interfaces,
        "variables": variables,
        "limits": limits,
        "operators": operators, "triton": triton, "nccl_files": nccl_files,
    }
    single = list(parts)
    groups = {"disks": disks(), "devices": devices() if REQUEST["devices"] else {},
              "data": {p: (lambda p=p: data(p)) for p in REQUEST["data"]},
              "output": {p: (lambda p=p: output(p)) for p in REQUEST["output"]}}
    for group, inner in groups.items():
        for name, part in inner.items():
            parts[group + "\0" + name] = part
    answers = side_by_side(parts, limit)
    found = {name: answers[name] for name in single}
    for group, inner in groups.items():
        found[group] = {name: answers[group + "\0" + name] for name in inner}
    found["port"] = listener.open(0)
    return found


ranks = []


def collect(order):
    ranks.append(Ranks(order))


def stop(order):
    while ranks:
        ranks.pop().stop()


def verbs(listener):
    """The orders of this agent."""
    return {
        "route": lambda order: route(order["to"]),
        "seen": seen,
        "port": lambda order: port(listener, order),
        "close": lambda order: listener.close(order["port"]),
        "dial": dial,
        "collect": collect,
        "go": lambda order: ranks[-1].tell(b"go"),
        "silent": lambda order: ranks[-1].silent(),
        "stop": stop,
    }


def main():
    for number in SIGNALS:
        signal.signal(number, lambda *_: end(1))
    waiting_orders = queue.Queue()
    threading.Thread(target=hear, args=(waiting_orders,), daemon=True).start()
    listener = Listener()
    answer(0, lambda: survey(listener), failure)
    serve(waiting_orders.get, verbs(listener), failure)
