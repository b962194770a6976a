"""Inspects processes that may use an environment.

What a process has mapped or opened decides. Its command line can only add to that: it may be a title, and
a link in it may have led to another environment when the process began."""
import os

from dsbuild_node.files import content, text

MOST = 32
MAY = "may"  # the command line has a link that led, or may have led, to the environment


def words_of(pid, what):
    """The NUL-separated words of /proc/PID/cmdline or environ, the first 64 KB of them. Only the first may be ""."""
    words = content("/proc/%s/%s" % (pid, what), 1 << 16).decode("utf-8", "surrogateescape").split("\0")
    return words[:1] + [word for word in words[1:] if word]


def variable(pid, name):
    """Return a variable that a process was started with, or "" if it cannot be read."""
    for word in words_of(pid, "environ"):
        if word.startswith(name + "="):
            return word[len(name) + 1:]
    return ""


def parent(pid):
    stat = content("/proc/%s/stat" % pid).rpartition(b")")[2].split()
    return int(stat[1]) if len(stat) > 1 else 0


def ancestors(pid):
    """The processes above one, the nearest first."""
    found = []
    while pid > 1 and len(found) < 64:
        pid = parent(pid)
        found.append(pid)
    return found


def is_dsbuild(words):
    """Whether a command line runs a program of dsbuild, started by any control node."""
    return any(word.startswith("#dsbuild\n") for word in words[1:5])


def identity(path):
    """The device and the inode of a folder; None if it cannot be reached."""
    try:
        st = os.stat(path)
    except OSError:
        return None
    return st.st_dev, st.st_ino


def of_system(path):
    return path.startswith("/usr/") and not path.startswith("/usr/local/")


def is_environment(folder):
    return os.path.exists(folder + "/pyvenv.cfg") or os.path.exists(folder + "/conda-meta")


class Process:
    """A process, as far as it shows itself. One of another user shows only its command line: exe is empty then."""

    def __init__(self, pid, exe, python, maps):
        self.pid, self.exe, self.maps, self.words = pid, exe, maps, words_of(pid, "cmdline")
        self.python = python or b"/libpython" in maps or b"/lib-dynload/" in maps
        self.root = "/proc/%d/root" % pid if exe else ""

    def interpreter_folder(self):
        """Return the folder of the interpreter in its command line, as this user can reach it, or ""."""
        word = self.words[0] if self.python else ""
        if word.startswith("/"):
            return self.root + os.path.dirname(word)
        if "/" in word:
            return "/proc/%d/cwd/%s" % (self.pid, os.path.dirname(word))
        for folder in variable(self.pid, "PATH").split(":") if word else ():
            if folder.startswith("/") and os.access(self.root + folder + "/" + word, os.X_OK):
                return self.root + folder
        return ""

    def mapped(self):
        """The files that it has mapped."""
        maps = os.fsdecode(self.maps or content("/proc/%d/maps" % self.pid, 1 << 26))
        return {line[line.index("/"):] for line in maps.split("\n") if "/" in line}

    def opened(self):
        """The folder that it works in, and the files that it has opened."""
        here = "/proc/%d/" % self.pid
        try:
            names = ["cwd"] + ["fd/" + name for name in os.listdir(here + "fd")]
        except OSError:
            return
        for name in names:
            try:
                path = os.readlink(here + name)
            except OSError:
                continue
            if path.startswith("/"):
                yield path

    def prefixes(self, mapped):
        """The prefixes of the Python that it runs, by its program and libraries, and of the packages that it has mapped."""
        folders = {os.path.dirname(path) for path in mapped}
        pythons = [os.path.dirname(path) + "/.." for path in [self.exe] + [path for path in mapped if "/libpython" in path]]
        pythons += [folder + "/../../.." for folder in folders if folder.endswith("/lib-dynload")]
        packages = {folder.partition("-packages")[0] + "-packages/../../.." for folder in folders if "-packages" in folder}
        return [self.root + folder for folder in pythons], [self.root + folder for folder in packages]

    def runs_python(self):
        """Whether it is a Python, perhaps under another name."""
        return self.python or b"Py_BytesMain" in content("/proc/%d/exe" % self.pid, 1 << 26)


class Environment:
    """An environment. Folders are compared by device and inode: containers, bind mounts and links have other
    names for them, and an environment may have been moved."""

    def __init__(self, folder, places):
        self.prefix, self.beside = identity(folder) or (), identity(os.path.realpath(folder) + "/..") or ()
        self.places = {identity(place) for place in places} - {None}
        self.is_system = folder == "/usr"

    def used_by(self, process):
        """Whether a process uses the environment; None if that cannot be determined."""
        # A service of the system itself is no job.
        if self.is_system and (any(map(of_system, process.words[1:3])) if process.python else of_system(process.exe)):
            return False
        folder = process.interpreter_folder()
        started = self.started_from(folder)
        if started is True or not process.exe:
            return started and True
        mapped = process.mapped()
        if self.holds(process.root, map(os.path.dirname, mapped)) or process.python and self.holds(process.root, process.opened()):
            return True
        pythons, packages = process.prefixes(mapped)
        if os.path.exists(folder + "/../pyvenv.cfg"):
            pythons = []  # a venv runs the Python of another environment
        own = self.prefix in map(identity, pythons)
        if started == MAY:  # unless it uses another environment next to this one
            return own or not any(is_environment(other) and identity(other + "/..") == self.beside for other in pythons + packages)
        return own and not any(os.path.exists(other + "/pyvenv.cfg") for other in packages) and process.runs_python()

    def started_from(self, folder):
        """What the folder of its interpreter shows of a process: True, MAY, False for another environment, None
        if there is no such folder."""
        prefix, now = os.path.dirname(folder), identity(folder + "/..") if folder else None
        link = os.path.islink(prefix) and os.path.dirname(os.path.dirname(prefix)) != "/proc"  # not root or cwd of a process
        if now == self.prefix and not link:
            return True
        # A link may have been switched since, and a folder moved away.
        if folder and (link or now is None) and self.beside in (identity(os.path.dirname(prefix)), identity(prefix + "/..")):
            return MAY
        return None if now is None else False

    def holds(self, root, paths):
        """Whether one of the paths of a process is in the environment's places."""
        above = set()
        for path in paths:
            while path not in above:
                above.add(path)
                path = os.path.dirname(path)
        return any((identity(root + path) or identity(path)) in self.places for path in above)


def plain_python(word):
    """Return the name of an interpreter without its folder, or "" if it is not a Python."""
    name = os.path.basename(word)
    return name if name.startswith("python") and not name[len("python"):].strip("0123456789.t") else ""


def command_of(words):
    """The program and the script of a command line. Further words may be secret, and so
    may the text of -c and all words of a title except the first."""
    program, rest = plain_python(words[0]), words[1:]
    if not program:
        return os.path.basename((words[0].split() or [""])[0])[:100]
    while rest:
        word = rest.pop(0)
        if word == "-" or not word.startswith("-"):
            return (program + " " + word)[:200]
        if word == "--check-hash-based-pycs":
            rest = rest[1:]
        if word.startswith("--"):
            continue
        for i in range(1, len(word)):
            if word[i] == "c":
                return program + " -c"
            if word[i] in "mWX":  # these take a value: the rest of the word, or the next
                value = word[i + 1:] or (rest.pop(0) if rest else "")
                if word[i] == "m":
                    return (program + " -m " + value)[:200]
                break
    return program


def user_of(pid):
    """The user of a process. The owner of /proc/PID is not always that user."""
    uid = (text("/proc/%s/status" % pid).partition("\nUid:")[2].split() or [""])[0]
    try:
        import pwd

        return pwd.getpwuid(int(uid)).pw_name
    except (ImportError, KeyError, ValueError):
        return uid


def job_of(pid):
    """Return the scheduler's job that a process belongs to, or ""."""
    for part in text("/proc/%s/cgroup" % pid).replace("\n", "/").split("/"):
        if part.startswith("job_") and part[4:].isdigit():
            return "Slurm job " + part[4:]
    for kind, name in (("Slurm", "SLURM_JOB_ID"), ("PBS", "PBS_JOBID"), ("LSF", "LSB_JOBID")):
        job = variable(pid, name)
        if job:
            return "%s job %s" % (kind, job[:100])
    return ""


def judge(found, folder, places):
    """Those of the processes that use the environment, without dsbuild's own."""
    environment, mine, users, unseen, above = Environment(folder, places), set(ancestors(os.getpid())), [], 0, {}
    for process in (Process(*parts) for parts in found if parts[0] not in mine):
        used = environment.used_by(process)
        if used is False or is_dsbuild(process.words):
            continue
        over = parent(process.pid)
        if over not in above:
            above[over] = any(is_dsbuild(words_of(p, "cmdline")) for p in [over] + ancestors(over))
        if above[over] or not os.path.isdir("/proc/%d" % process.pid):  # or it has ended meanwhile
            continue
        users += [process] if used else []
        unseen += used is None
    return {"in_use": [{"pid": p.pid, "user": user_of(p.pid), "job": job_of(p.pid),
                        "command": command_of(p.words if p.words[0] else [p.exe])} for p in users[:MOST]],
            "in_use_more": max(0, len(users) - MOST), "in_use_unseen": unseen}
