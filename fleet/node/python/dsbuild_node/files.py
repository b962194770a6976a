"""Reads files of a node."""
import errno
import json
import os

MOST_LEVELS = 100  # of a JSON value


def content(path, most=1 << 20):
    """The beginning of a file, b"" if it cannot be read."""
    blocks, size = [], 0  # one text that grows would be copied for each page of /proc
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe must not block
    except OSError:
        return b""
    try:
        while size < most:
            block = os.read(fd, min(most, 1 << 16))
            if not block:
                break
            blocks.append(block)
            size += len(block)
    except OSError:  # a directory, or a file that vanished meanwhile
        pass
    finally:
        os.close(fd)
    return b"".join(blocks)


def text(path):
    """Return the beginning of a text file, or "" if it cannot be read."""
    return content(path).decode("utf-8", "replace")


def resolved(path):
    """A path without links above its last part."""
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def open_regular(path):
    """A descriptor of a regular file, for reading. Fails with an OSError for anything else: a pipe would block."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if os.fstat(fd).st_mode & 0o170000 != 0o100000:
        os.close(fd)
        raise OSError(errno.EINVAL, "Not a regular file", path)
    return fd


def last_line(f, most=1 << 16):
    """The last whole line of a file, and the offset of its end."""
    size = f.seek(0, os.SEEK_END)
    f.seek(max(0, size - most))
    tail = f.read()
    whole = tail[:tail.rfind(b"\n") + 1]
    return (whole.splitlines(True) or [b""])[-1], size - len(tail) + len(whole)


def read_json(source):
    """The value of a JSON text. Fails with a ValueError only, also if it has more than MOST_LEVELS levels, which nothing
    could write again."""
    try:
        value = json.loads(source.decode("utf-8"))
    except RecursionError:
        raise ValueError("too many levels")
    level = [value]
    for _ in range(MOST_LEVELS):
        level = [v for holder in level if isinstance(holder, (dict, list))
                 for v in (holder.values() if isinstance(holder, dict) else holder)]
        if not level:
            return value
    raise ValueError("too many levels")


def load_json(path):
    """The object in a JSON file of dsbuild, or None."""
    source = content(path, 1 << 26)
    try:
        value = read_json(source) if source else None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def is_locked(path):
    """Whether an agent holds the lock in this file."""
    import fcntl

    try:
        lock = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def owner_name(uid):
    """The name of an account, or its number."""
    try:
        import pwd

        return pwd.getpwuid(uid).pw_name
    except (ImportError, KeyError):
        return str(uid)


def foreign_owner(paths):
    """Another account that could put a link in the place of one of these paths, or "": it owns a directory on
    the way. Only root has to ask, because a link would send root to files that the account itself cannot reach."""
    for path in {way for path in paths for way in (path, os.path.realpath(path))} if os.geteuid() == 0 else ():
        while path != os.path.dirname(path):
            try:
                uid = os.lstat(path).st_uid
            except OSError:  # it does not exist yet
                uid = 0
            if uid:
                return owner_name(uid)
            path = os.path.dirname(path)
    return ""
