"""Finds the processes that use an environment. Reads /proc; every part of it may vanish while it is
read, or belong to another user. The module processes is imported only when a process may use it, because
Python takes long to compile it."""
import os
import sys

from dsbuild_node.distributions import sites
from dsbuild_node.files import content

OWN_PROGRAM = os.path.realpath("/proc/self/exe")


def is_python(path):
    return os.path.basename(path).startswith(("python", "pypy")) or path == OWN_PROGRAM


def users(folder=sys.prefix, places=()):
    """The processes that use an environment, as fields of Facts. places are the folders with its files;
    the site-packages of this Python if empty."""
    if not os.path.isdir("/proc/self"):
        return {"in_use_unknown": True}
    # Any program may have mapped files of the environment, or may run Python under another name.
    marks = [b"-packages/", b"/libpython", b"/lib-dynload/"]
    if folder != "/usr":
        marks.append(os.fsencode("/%s/" % os.path.basename(os.path.realpath(folder))))
    found, readlink, me = [], os.readlink, str(os.getpid())
    for pid in os.listdir("/proc"):
        if not "0" < pid < ":" or pid == me:
            continue
        try:  # here and not in a function: there may be thousands
            exe = readlink("/proc/" + pid + "/exe")
        except PermissionError:
            exe = ""  # somebody else's: only its command line can be read
        except OSError:
            continue  # of the kernel, or gone
        named = exe or content("/proc/" + pid + "/cmdline", 1 << 12).decode("utf-8", "replace").partition("\0")[0].split(" ")[0]
        python = is_python(named)
        maps = content("/proc/" + pid + "/maps", 1 << 26) if exe and not python else b""
        if python or any(mark in maps for mark in marks):
            found.append((int(pid), exe, python, maps))
    hidden = not content("/proc/1/stat")  # by hidepid=
    if not found:
        return {"in_use_hidden": hidden}
    from dsbuild_node.processes import judge

    return dict(judge(sorted(found), folder, places or sites()), in_use_hidden=hidden)
