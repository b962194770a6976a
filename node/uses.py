# Which processes use an environment. Reads /proc; every part of it may vanish
# while it is read, or belong to somebody else.
MOST = 32


def link(path):
    """Where a link of /proc leads; None where this user may not know, "" where there is none."""
    try:
        return os.readlink(path)
    except PermissionError:
        return None
    except OSError:
        return ""


def words_of(pid, what):
    """The NUL-separated words of /proc/PID/cmdline or environ, the first 64 KB of them."""
    try:
        fd = os.open("/proc/%s/%s" % (pid, what), os.O_RDONLY)
    except OSError:
        return []
    try:
        data = b""
        while len(data) < 1 << 16:
            block = os.read(fd, 1 << 16)
            if not block:
                break
            data += block
    except OSError:
        return []
    finally:
        os.close(fd)
    return [w for w in os.fsdecode(data).split("\0") if w]


def variable(pid, name):
    """A variable that a process was started with, "" if that cannot be read."""
    for word in words_of(pid, "environ"):
        if word.startswith(name + "="):
            return word[len(name) + 1:]
    return ""


def parent(pid):
    try:
        with open("/proc/%s/stat" % pid, "rb") as f:
            return int(f.read(4096).rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def ancestors(pid):
    """The processes above one, the nearest first."""
    found = []
    while pid > 1 and len(found) < 64:
        pid = parent(pid)
        found.append(pid)
    return found


def is_python(path):
    return os.path.basename(path).startswith(("python", "pypy")) or path == OWN_PROGRAM


def is_dsbuild(pid):
    """Whether a process is a program of dsbuild's, from here or from another machine."""
    return any('compile(b,"dsbuild","exec")' in word for word in words_of(pid, "cmdline")[1:5])


def same_folder(pid, path):
    """Whether path, as the process sees it, is this environment: containers
    have other folders under the same names, and these under other names."""
    for seen in ("/proc/%s/root%s" % (pid, path), path):
        try:
            st = os.stat(seen)
            return (st.st_dev, st.st_ino) == OWN_PREFIX
        except PermissionError:
            continue  # somebody else's process: what this user sees has to do
        except OSError:
            return None
    return None


def program_of(pid, word):
    """The path of the interpreter that a process was called by, "" if unknown. It
    and not /proc/PID/exe says which environment: the python of a venv is a link."""
    if word.startswith("/"):
        return word
    if "/" in word:
        return os.path.normpath(os.path.join(link("/proc/%s/cwd" % pid) or "/nowhere", word))
    for folder in variable(pid, "PATH").split(":"):
        if folder.startswith("/") and os.access("/proc/%s/root%s/%s" % (pid, folder, word), os.X_OK):
            return folder + "/" + word
    return ""


def maps_packages(pid):
    """Whether a process has mapped a file of this environment's packages; None if unknown."""
    wanted, tail = [os.fsencode(" " + place + "/") for place in OWN_SITES], b""
    try:
        with open("/proc/%s/maps" % pid, "rb", buffering=0) as f:
            for _ in range(256):
                block = f.read(1 << 16)
                if not block:
                    return False
                if any(w in tail + block for w in wanted):
                    return True
                tail = block[-4096:]
    except OSError:
        return None
    return False


def uses(pid, words):
    """Whether a Python process runs from this environment; None if that is unknown."""
    program = program_of(pid, words[0])
    same = same_folder(pid, os.path.dirname(os.path.dirname(program))) if program and is_python(program) else None
    if same and sys.prefix == "/usr" and any(w.startswith("/usr/") and not w.startswith("/usr/local/") for w in words[1:3]):
        return False  # a service of the system itself, not a job
    # A program that gave itself a title has hidden what it was called by, but the
    # module it did that with is mapped.
    return maps_packages(pid) if same is None else same


def plain_python(word):
    """The name of an interpreter without its folder; "" if that is not what it is."""
    name = os.path.basename(word)
    return name if name.startswith("python") and not name[len("python"):].strip("0123456789.t") else ""


def command_of(words):
    """Program and script of a command line. What follows may be secret, and so
    may the text of -c, and all of a title but its first word."""
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
    """Who runs a process. The owner of /proc/PID is not always that."""
    uid = ""
    try:
        with open("/proc/%s/status" % pid, "rb") as f:
            for line in f:
                if line.startswith(b"Uid:"):
                    uid = line.split()[1].decode("ascii")
                    break
        import pwd

        return pwd.getpwuid(int(uid)).pw_name
    except (OSError, ImportError, KeyError, ValueError):
        return uid


def job_of(pid):
    """The scheduler's job that a process belongs to, "" if it belongs to none."""
    try:
        with open("/proc/%s/cgroup" % pid, encoding="utf-8", errors="replace") as f:
            for part in f.read(1 << 16).replace("\n", "/").split("/"):
                if part.startswith("job_") and part[4:].isdigit():
                    return "Slurm job " + part[4:]
    except OSError:
        pass
    for kind, name in (("Slurm", "SLURM_JOB_ID"), ("PBS", "PBS_JOBID"), ("LSF", "LSB_JOBID")):
        job = variable(pid, name)
        if job:
            return "%s job %s" % (kind, job[:100])
    return ""


def users():
    """The processes that use this environment: {in_use, in_use_more, in_use_unseen}."""
    found, unseen = [], 0
    mine = set(ancestors(os.getpid()) + [os.getpid()])
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else []:
        if not name.isdigit() or int(name) in mine:
            continue
        exe = link("/proc/%s/exe" % name)
        if exe == "" or exe and not is_python(exe):
            continue  # of the kernel, gone, or no Python
        words = words_of(name, "cmdline")
        if not words or exe is None and not is_python(words[0].split(" ")[0]):
            continue
        used = uses(name, words)
        if used is not False and not is_dsbuild(name) and not any(is_dsbuild(a) for a in ancestors(int(name))):
            found += [(int(name), words)] if used else []
            unseen += used is None
    found.sort()
    return {"in_use": [{"pid": pid, "user": user_of(pid), "command": command_of(words), "job": job_of(pid)} for pid, words in found[:MOST]],
            "in_use_more": max(0, len(found) - MOST), "in_use_unseen": unseen}


OWN_PROGRAM = link("/proc/self/exe") or sys.executable
OWN_PREFIX = (os.stat(sys.prefix).st_dev, os.stat(sys.prefix).st_ino)
OWN_SITES = sites()
