# Which processes use an environment. Reads /proc; every part of it may vanish
# while it is read, or belong to somebody else. What is not needed before a process
# is found is in judge.py, and compiled then: Python takes long to read a program.


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
    return [w for w in os.fsdecode(content("/proc/%s/%s" % (pid, what), 1 << 16)).split("\0") if w]


def variable(pid, name):
    """A variable that a process was started with, "" if that cannot be read."""
    for word in words_of(pid, "environ"):
        if word.startswith(name + "="):
            return word[len(name) + 1:]
    return ""


def is_python(path):
    return os.path.basename(path).startswith(("python", "pypy")) or path == OWN_PROGRAM


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


def uses(pid, words):
    """Whether a Python process runs from this environment; None if what it was
    called by does not say."""
    program = program_of(pid, words[0])
    same = same_folder(pid, os.path.dirname(os.path.dirname(program))) if program and is_python(program) else None
    if same and sys.prefix == "/usr" and any(w.startswith("/usr/") and not w.startswith("/usr/local/") for w in words[1:3]):
        return False  # a service of the system itself, not a job
    return same


def users():
    """The processes that use this environment, as fields of Facts."""
    found = []
    for pid in os.listdir("/proc") if os.path.isdir("/proc/self") else []:
        if not pid.isdigit():
            continue
        exe = link("/proc/%s/exe" % pid)
        if exe == "" or exe and not is_python(exe):
            continue  # of the kernel, gone, or no Python
        words = words_of(pid, "cmdline")
        if words and (exe or is_python(words[0].split(" ")[0])):
            used = uses(pid, words)
            if used is not False and pid != str(os.getpid()):
                found.append((int(pid), words, used))
    if not found:
        return {}
    exec(compile(JUDGE, "dsbuild", "exec"), globals())
    return judge(sorted(found))


OWN_PROGRAM = link("/proc/self/exe") or sys.executable
OWN_PREFIX = (os.stat(sys.prefix).st_dev, os.stat(sys.prefix).st_ino)
