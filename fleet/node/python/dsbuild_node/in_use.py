"""Finds the processes that use an environment. Reads /proc; every part of it may vanish while it is
read, or belong to another user. The module processes is imported only when a process may use it, because
Python takes long to compile it."""
import os
import sys

from dsbuild_node.distributions import sites
from dsbuild_node.files import content

OWN_PROGRAM = os.path.realpath("/proc/self/exe")
# Programs of the system that run no Python inside. There may be hundreds, and to read what each has mapped takes long.
PLAIN = frozenset(("agetty atd bash cat chronyd conmon containerd containerd-shim containerd-shim-runc-v2 cron crond dash dbus-broker "
                   "dbus-daemon dockerd env fish init ksh login mksh munged nohup polkitd rsyslogd screen sh sleep slurmd slurmstepd srun ssh "
                   "sshd sshd-session su sudo systemd tail tcsh tee timeout tini tmux zsh").split())


def is_python(path):
    return os.path.basename(path).startswith(("python", "pypy")) or path == OWN_PROGRAM


def is_plain(path):
    folder, _, name = path.rpartition("/")
    return folder in ("/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/lib/systemd", "/lib/systemd", "/usr/lib/openssh") and \
        (name in PLAIN or name.startswith("systemd-"))


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
            exe = ""  # another user's: only its command line can be read
        except OSError:
            continue  # of the kernel, or gone
        if exe and not is_python(exe):
            maps = b"" if is_plain(exe) else content("/proc/" + pid + "/maps", 1 << 26)
            if any(mark in maps for mark in marks):
                found.append((int(pid), exe, False, maps))
            continue
        words = content("/proc/" + pid + "/cmdline", 1 << 12).split(b"\0", 5)
        if (exe or is_python(os.fsdecode(words[0].partition(b" ")[0]))) and not any(word.startswith(b"#dsbuild\n") for word in words[1:]):
            found.append((int(pid), exe, True, b""))  # Python, and no program of dsbuild
    hidden = not content("/proc/1/stat")  # by hidepid=
    if not found:
        return {"in_use_hidden": hidden}
    from dsbuild_node.processes import judge

    return dict(judge(sorted(found), folder, places or sites()), in_use_hidden=hidden)
