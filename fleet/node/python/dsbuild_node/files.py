"""Reads files of a node."""
import json
import os

# Types of file systems that several machines may share.
NETWORK = ("nfs", "nfs4", "lustre", "beegfs", "ceph", "cifs", "smb3", "gpfs", "glusterfs", "fuse.glusterfs",
           "fuse.sshfs", "afs", "orangefs", "wekafs", "fuse.juicefs", "fuse.ceph", "panfs")


def content(path, most=1 << 20):
    """The beginning of a file, b"" if it cannot be read."""
    data = b""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe must not block
    except OSError:
        return data
    try:
        while len(data) < most:
            block = os.read(fd, min(most, 1 << 16))
            if not block:
                break
            data += block
    except OSError:  # a directory, or a file that vanished meanwhile
        pass
    finally:
        os.close(fd)
    return data


def text(path):
    """The beginning of a text file, "" if it cannot be read."""
    return content(path).decode("utf-8", "replace")


def load_json(path):
    """The object in a JSON file of dsbuild, or None."""
    source = content(path, 1 << 26)
    try:
        value = json.loads(source.decode("utf-8")) if source else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
