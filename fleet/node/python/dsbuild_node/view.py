"""What the node itself has at a path: the program that python: names may run Python in another root or in a
container, where a path leads to another folder. A file that dsbuild sends would not arrive there."""
import os

from dsbuild_node.files import content, text

WHOLE = [b"0", b"0", b"4294967295"]  # of uid_map: accounts have the same numbers inside and outside
ROOT = 3  # the folder / of the shell that started this Python (probe.sh), if the program between has kept it


def existing(path):
    """The folder at path, or the nearest above it."""
    while not os.path.isdir(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


def unescape(s):
    """The path of an entry in mountinfo, without its escapes."""
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\043", "#"), ("\\134", "\\")):
        s = s.replace(code, char)
    return s


def mounts():
    """The mount points and the types of their file systems. Of two mounts on one point the later hides the earlier."""
    for line in os.fsdecode(content("/proc/self/mountinfo", 1 << 24)).split("\n"):
        left, _, right = line.partition(" - ")
        if len(left.split(" ")) >= 5 and " " in right:
            yield unescape(left.split(" ")[4]), right.split(" ")[0]


def mounted_type(path):
    """The type of the file system that holds path, or its nearest parent that exists."""
    path, best = os.path.realpath(path), ("", "")
    for point, kind in mounts():
        if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]


def account():
    """The number of the account that runs this Python; None if the node may know it by another number, as in some containers."""
    return os.geteuid() if content("/proc/self/uid_map").split() == WHOLE else None


def seen_by_node(folder):
    """"" if the node's shell has this very folder at its path; "other" if it has not; if that is unknown here,
    what the shell must find there: the running kernel, device and inode."""
    st = os.stat(folder)
    try:
        if os.fstat(ROOT).st_mode & 0o170000 != 0o040000:
            raise OSError
    except OSError:
        return "%s %d:%d" % (text("/proc/sys/kernel/random/boot_id").strip(), st.st_dev, st.st_ino)
    try:
        there = os.stat(folder.lstrip("/") or ".", dir_fd=ROOT)
    except OSError:
        return "other"
    return "" if (there.st_dev, there.st_ino) == (st.st_dev, st.st_ino) else "other"
