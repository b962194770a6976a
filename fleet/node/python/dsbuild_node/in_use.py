"""Finds the processes that use an environment. Reads /proc; every part of it may vanish while it is
read, or belong to another user. The module processes is imported only when a process was found, because
Python takes long to compile it."""
import os
import sys

from dsbuild_node.distributions import sites
from dsbuild_node.files import content

OWN_PROGRAM = os.path.realpath("/proc/self/exe")


def words_of(pid, what):
    """The NUL-separated words of /proc/PID/cmdline or environ, the first 64 KB of them."""
    return [w for w in content("/proc/%s/%s" % (pid, what), 1 << 16).decode("utf-8", "surrogateescape").split("\0") if w]


def variable(pid, name):
    """A variable that a process was started with, "" if that cannot be read."""
    for word in words_of(pid, "environ"):
        if word.startswith(name + "="):
            return word[len(name) + 1:]
    return ""


def is_python(path):
    return os.path.basename(path).startswith(("python", "pypy")) or path == OWN_PROGRAM


def folder_of(pid, word):
    """The folder of the interpreter with which a process was started, as this user can
    reach it; "" if unknown. It shows the environment; /proc/PID/exe does not, because the
    python of a venv is a link."""
    root = "/proc/%s/root" % pid  # in a container other folders have the same names
    if not os.access(root, os.R_OK):
        root = ""  # somebody else's process
    if word.startswith("/"):
        return root + os.path.dirname(word)
    if "/" in word:
        return "/proc/%s/cwd/%s" % (pid, os.path.dirname(word))
    for folder in variable(pid, "PATH").split(":"):
        if folder.startswith("/") and os.access(root + folder + "/" + word, os.X_OK):
            return root + folder
    return ""


def uses(pid, words, prefix):
    """Whether a Python process runs from the environment with this prefix (device, inode); None if its
    command line does not show that."""
    folder = folder_of(pid, words[0]) if is_python(words[0]) else ""
    try:
        st = os.stat(folder + "/..")
    except OSError:
        return None
    if not folder or (st.st_dev, st.st_ino) != prefix:
        return False if folder else None
    # A service of the system itself is no job.
    return sys.prefix != "/usr" or not any(w.startswith("/usr/") and not w.startswith("/usr/local/") for w in words[1:3])


def users(folder=sys.prefix, places=()):
    """The processes that use an environment, as fields of Facts. places are its site-packages; those of
    this Python if empty."""
    st = os.stat(folder)
    prefix = (st.st_dev, st.st_ino)
    found, readlink = [], os.readlink
    for pid in os.listdir("/proc") if os.path.isdir("/proc/self") else []:
        if not "0" < pid < ":":
            continue
        try:  # here and not in a function: there may be thousands
            exe = readlink("/proc/" + pid + "/exe")
        except PermissionError:
            exe = ""  # somebody else's
        except OSError:
            continue  # of the kernel, or gone
        if exe and not is_python(exe):
            continue
        words = words_of(pid, "cmdline")
        if words and (exe or is_python(words[0].split(" ")[0])):
            used = uses(pid, words, prefix)
            if used is not False and pid != str(os.getpid()):
                found.append((int(pid), words, used))
    hidden = os.path.isdir("/proc/self") and not content("/proc/1/stat")  # by hidepid=
    if not found:
        return {"in_use_hidden": hidden}
    from dsbuild_node.processes import judge

    return dict(judge(sorted(found), places or sites()), in_use_hidden=hidden)
