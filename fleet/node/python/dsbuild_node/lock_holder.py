"""Describes the process that holds the lock of an environment, for a run that waits for it in vain."""
import os

from dsbuild_node.files import content

STOPPED, TRACED, HUNG = "T", "t", "D"  # states in /proc/PID/stat


def noted(words):
    """The pid and the machine in the text of a lock file (take_lock); 0 and "" if it names none."""
    pid, _, rest = words.rpartition(", pid ")[2].partition(" on ")
    return (int(pid), rest.partition(" since ")[0]) if pid.isdigit() and rest else (0, "")


def holds(pid, lock):
    """Whether a process holds the lock of this open file; None if it belongs to another user."""
    st = os.fstat(lock)
    try:
        for fd in os.listdir("/proc/%d/fd" % pid):
            at = os.stat("/proc/%d/fd/%s" % (pid, fd))
            if (at.st_dev, at.st_ino) == (st.st_dev, st.st_ino):
                if b"FLOCK" in content("/proc/%d/fdinfo/%s" % (pid, fd)):
                    return True
    except PermissionError:
        return None
    except OSError:  # it has ended
        pass
    return False


def holder(lock, pid):
    """The process of this machine that holds the lock, pid if it may be that one. Returns 0 if it cannot be seen."""
    if pid and os.path.isdir("/proc/%d" % pid) and holds(pid, lock) is not False:
        return pid
    others = [int(p) for p in (os.listdir("/proc") if os.path.isdir("/proc/self") else []) if p.isdigit()]
    return next((p for p in others if p != os.getpid() and holds(p, lock)), 0)


def state_of(pid):
    return (content("/proc/%d/stat" % pid).rpartition(b")")[2].split() + [b""])[0].decode("ascii")


def describe(lock, words):
    """The words of the lock file, with what else is known of its holder; and the code of the advice."""
    pid, machine = noted(words)
    found = holder(lock, pid if machine == os.uname().nodename else 0)
    if not found:
        return words, "lock-elsewhere:%d" % pid if pid else "wait"
    if found != pid:
        words += "%sheld by pid %d" % (", now " if words else "", found)
    state = state_of(found)
    if state == STOPPED:
        return words + ", which is stopped", "lock-stopped:%d" % found
    if state == TRACED:
        return words + ", which a debugger has stopped", "lock-elsewhere:%d" % found
    if state == HUNG:
        return words + ", which waits for a disk or a network file system", "lock-hung:%d" % found
    return words, "wait"
