"""Inspects processes that use, or may use, an environment."""
import os

from dsbuild_node.files import content, text
from dsbuild_node.in_use import variable, words_of

MOST = 32


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
    """Whether a command line is that of a program of dsbuild, started by this machine or another one."""
    return any(word.startswith("#dsbuild\n") for word in words[1:5])


def maps_packages(pid, places):
    """Whether a process has mapped a file of the packages in these places; None if unknown."""
    wanted, tail = [os.fsencode(" " + place + "/") for place in places], b""
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


def plain_python(word):
    """The name of an interpreter without its folder; "" if it is not a Python."""
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
    """The scheduler's job that a process belongs to, "" if it belongs to none."""
    for part in text("/proc/%s/cgroup" % pid).replace("\n", "/").split("/"):
        if part.startswith("job_") and part[4:].isdigit():
            return "Slurm job " + part[4:]
    for kind, name in (("Slurm", "SLURM_JOB_ID"), ("PBS", "PBS_JOBID"), ("LSF", "LSB_JOBID")):
        job = variable(pid, name)
        if job:
            return "%s job %s" % (kind, job[:100])
    return ""


def judge(found, places):
    """Those of the processes that really use the environment with these site-packages, without dsbuild's own."""
    mine, users, unseen = set(ancestors(os.getpid())), [], 0
    for pid, words, used in found:
        if pid in mine or is_dsbuild(words) or any(is_dsbuild(words_of(p, "cmdline")) for p in ancestors(pid)):
            continue
        # A program that gave itself a title hides its interpreter's path, but it has
        # mapped the module that sets titles.
        used = maps_packages(pid, places) if used is None else used
        if not os.path.isdir("/proc/%d" % pid):
            continue  # it has ended meanwhile
        users += [(pid, words)] if used else []
        unseen += used is None
    return {"in_use": [{"pid": pid, "user": user_of(pid), "command": command_of(words), "job": job_of(pid)} for pid, words in users[:MOST]],
            "in_use_more": max(0, len(users) - MOST), "in_use_unseen": unseen}
