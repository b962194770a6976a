"""Compares the files of a Python that dsbuild has sent with its archive. Changes nothing."""
import hashlib
import os

from dsbuild_node.files import content
from dsbuild_node.record import byte_code_files, file_digest

LIST = "files.txt"  # a line for each file of the archive: path, kind, sha256 or target


def list_tree(top):
    """The lines of all files and links below a folder, by their paths, in bytes."""
    top, lines = os.fsencode(top), {}
    for folder, folders, names in os.walk(top):
        for name in names + [n for n in folders if os.path.islink(os.path.join(folder, n))]:
            path = os.path.join(folder, name)
            inner = path[len(top) + 1:]
            try:
                if os.path.islink(path):
                    told = b"link\t" + os.readlink(path)
                else:
                    kind = b"program\t" if os.stat(path).st_mode & 0o100 else b"file\t"
                    told = kind + file_digest(path).hexdigest().encode("ascii")
            except OSError:
                told = b"cannot be read"
            lines[inner] = inner + b"\t" + told + b"\n"
    return lines


def tree_of(lines):
    """The digest of such lines, as the lock has it."""
    return hashlib.sha256(b"".join(sorted(lines))).hexdigest()


def altered_python(folder, tree):
    """The files of a Python that differ from its archive. tree is the digest of the archive's list."""
    listed = content(os.path.join(folder, LIST), 1 << 26).splitlines(True)
    if tree_of(listed) != tree:
        return ["file list does not match the archive"]
    want, have = {line.split(b"\t")[0]: line for line in listed}, list_tree(os.path.join(folder, "tree"))
    wrong, made = [], set()
    for path in sorted(set(want) | set(have)):
        if want.get(path) == have.get(path):
            continue
        if path in want:
            wrong.append(os.fsdecode(path) + (" is altered" if path in have else " is missing"))
        elif path.endswith(b".pyc") and b"/__pycache__/" in path and not have[path].split(b"\t")[1].startswith(b"link"):
            made.add(os.fsdecode(path))
        else:
            wrong.append(os.fsdecode(path) + " is not in the archive")
    return wrong + wrong_modules(os.path.join(folder, "tree"), [os.fsdecode(p) for p in want], only=made)


def wrong_modules(site, paths, known=None, only=None):
    """Return the byte code that Python would run and that does not match its module."""
    found = [f for f in byte_code_files(site, [[p, ""] for p in paths])
             if (only is None or f[1] in only) and not (known and known.find(os.path.join(site, f[1])) == "")]
    if not found:
        return []
    from dsbuild_node.byte_code import differing

    return [path + " is byte code that does not match its module" for path in differing(site, found, None)]
