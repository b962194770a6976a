"""Reads the files of a distribution, and its RECORD: for all programs that compare files."""
import hashlib
import os
import sys

from dsbuild_node.distributions import named_infos, site_names, sites
from dsbuild_node.files import content, load_json, open_regular, resolved, text

HASHES = ("sha256", "sha384", "sha512")  # algorithms that count in RECORD
# Endings of code and its sources.
CODE = (".py", ".pyc", ".pyi", ".so", ".pth", ".start", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".sh")
BUFFER = memoryview(bytearray(1 << 17))  # for reading; these programs have one thread


def file_digest(path, new=hashlib.sha256):
    """The digest of a file, as an object of hashlib."""
    fd = open_regular(path)  # open() would make three objects for each of a thousand files
    try:
        digest = new(BUFFER[:os.readv(fd, [BUFFER])])
        n = os.readv(fd, [BUFFER])
        while n:
            digest.update(BUFFER[:n])
            n = os.readv(fd, [BUFFER])
    finally:
        os.close(fd)
    return digest


def written(digest):
    """A digest in RECORD's encoding, without padding."""
    from binascii import b2a_base64  # base64 would import re

    return b2a_base64(digest).rstrip(b"=\n").replace(b"+", b"-").replace(b"/", b"_").decode("ascii")


def record_rows(info):
    """The rows of a dist-info's RECORD, each with at least path and hash. None if there is no
    RECORD."""
    try:
        with open(os.path.join(info, "RECORD"), "rb") as f:
            return rows_in(f.read(), os.path.dirname(info))
    except OSError:
        return None


def rows_in(record, place=""):
    """The rows of the text of a RECORD. If place is set, it is the directory of the packages, and names lead from there to
    the files without links. An installer writes names that lead from place as Python knows it, or absolute ones."""
    lines = record.decode("utf-8", "surrogateescape").replace("\r\n", "\n").split("\n")
    if any('"' in line for line in lines):  # a path with a comma
        from csv import Error, reader  # imports re

        try:
            rows = list(reader([line + "\n" for line in lines]))
        except Error:  # a damaged file
            rows = [line.split(",") for line in lines]
    else:
        rows = [line.split(",") for line in lines]
    rows = [row if len(row) > 1 else row + [""] for row in rows if row and row[0] and "\0" not in row[0]]
    known = site_names().get(place, place)
    for row in rows if place else ():
        if row[0].startswith("/") or "./" in row[0] or "//" in row[0]:
            path = os.path.normpath(os.path.join(known, row[0]))
            base = next((base for base in (known, place) if path.startswith(base + os.sep)), "")
            row[0] = path[len(base) + 1:] if base else os.path.relpath(resolved(path), os.path.realpath(place))
    return rows


def is_as_recorded(path, said):
    """Whether a file has the digest of its row in RECORD."""
    algorithm, _, want = said.partition("=")
    try:
        return algorithm in HASHES and written(file_digest(path, getattr(hashlib, algorithm)).digest()) == want.rstrip("=")
    except OSError:
        return False


def altered(info):
    """The first few files that are missing or differ from RECORD."""
    wrong = []
    for row in record_rows(info) or []:
        if row[1].partition("=")[0] in HASHES and not is_as_recorded(os.path.join(os.path.dirname(info), row[0]), row[1]):
            wrong.append(row[0])
            if len(wrong) > 4:
                break
    return wrong


def is_byte_code(path):
    """Whether a path names byte code in __pycache__, which Python runs only instead of its module."""
    return path.endswith(".pyc") and "/__pycache__/" in "/" + path


def module_of(path):
    """The module of byte code in __pycache__."""
    folder, name = os.path.split(path)
    return os.path.join(os.path.dirname(folder), name.split(".")[0] + ".py")


def is_code(path):
    """Whether an import, the loader of libraries, a compiler or a shell could use a file, by its name, mode or first bytes."""
    name = os.path.basename(path)
    if name.endswith(CODE) or ".so." in name or os.path.isdir(path):
        return True
    try:
        st = os.stat(path)
    except OSError:
        return False  # a link to nothing
    return st.st_mode & 0o170000 != 0o100000 or st.st_mode & 0o111 != 0 or content(path, 4).startswith((b"\x7fELF", b"#!", b"PK", b"!<ar"))


def interpreter_of(path):
    """The program that a script's first line starts, by the name there. Returns "" for a file without one."""
    first, _, rest = content(path, 1 << 12).decode("utf-8", "surrogateescape").partition("\n")
    words = first[2:].split() if first.startswith("#!") else []
    if rest.startswith("'''exec' "):  # a shell starts it, because its path is long or has a space
        from shlex import split  # imports re

        try:
            return split(rest.partition("\n")[0])[1]
        except (ValueError, IndexError):
            return ""
    return words[-1 if words[0].endswith("/env") else 0] if words else ""


def walk(package, byte_code=False):
    """Every file and link below a folder: (path, whether it is a link). Follows no link, and
    skips byte code in __pycache__ unless it is asked for. (os.walk takes three times as long.)"""
    folders = [package]
    if os.path.islink(package):
        yield folders.pop(), True
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                inside = [(entry.name, entry.is_dir(follow_symlinks=False), entry.is_symlink()) for entry in entries]
        except OSError:
            continue
        for name, is_dir, is_link in inside:
            if is_dir:
                folders.append(folder + "/" + name)
            elif is_link or byte_code or not (name.endswith(".pyc") and folder.endswith("/__pycache__")):
                yield folder + "/" + name, is_link


def listed_paths(rows):
    """The paths that RECORD names, relative to site-packages."""
    return {row[0] for row in rows}


def is_vouched(path, said):
    """Whether a row of RECORD (path, digest) vouches for its file. It needs a digest, except for byte code."""
    return said.partition("=")[0] in HASHES or is_byte_code(path)


def unknown_entries(info, rows):
    """The entry_points.txt of a distribution, by its path below site-packages, if RECORD does not
    name it. It counts as code: other packages run the functions that it names."""
    path = os.path.basename(info) + "/entry_points.txt"
    return [path] if path not in listed_paths(rows) and os.path.lexists(os.path.join(info, "entry_points.txt")) else []


def unknown_code(site, rows):
    """Code and links to folders in DeepSpeed's folder that RECORD does not list, by their paths
    below site-packages: an import could find them."""
    listed, skip = listed_paths([row for row in rows if is_vouched(row[0], row[1])]), len(site) + 1
    return [path[skip:] for path, _ in walk(site + "/deepspeed")
            if path[skip:] not in listed and is_code(path)]


def owners(paths, but):
    """The distribution that owns each of these files, by the RECORDs of all distributions
    except but. A distribution without a RECORD owns the packages that its top_level.txt names."""
    found, wanted, tops, outside, places = {}, set(paths), {"."}, False, sites()
    for path in wanted:
        place = [place for place in places if path.startswith(place + os.sep)]
        if place:
            tops.add(path[len(place[0]) + 1:].partition(os.sep)[0])
        else:
            outside = True
    marks = [os.fsencode(top) for top in tops if top != "."] + [b"../", b"\n/"] * outside
    for owner, info in named_infos() if wanted else ():
        if owner in but:
            continue
        place, data = os.path.dirname(info), content(os.path.join(info, "RECORD"), 1 << 26)
        if not data:
            for line in text(os.path.join(info, "top_level.txt")).split():
                top = os.path.join(place, line)
                found.update((path, owner) for path in wanted if path == top + ".py" or path.startswith(top + os.sep))
        elif any(mark in data for mark in marks):
            for row in record_rows(info):
                first = row[0].partition("/")[0]
                if first in tops or outside and first == "..":
                    path = os.path.normpath(os.path.join(place, row[0]))
                    if path in wanted:
                        found[path] = owner
    return found


def byte_code_files(site, rows):
    """The byte code that Python would run instead of the modules in RECORD, as (module, path of
    the byte code, level of optimization, bytes). Python does not run byte code that is older
    than its module."""
    found, folders, tag = [], {}, "." + (sys.implementation.cache_tag or "none")
    for path in sorted((path for path in listed_paths(rows) if path.endswith(".py") and not path.startswith("../")), key=lambda path: (path.split("/")[:-1], path)):
        folder, _, name = path.rpartition("/")
        if folder not in folders:
            try:
                folders[folder] = set(os.listdir("%s/%s/__pycache__" % (site, folder)))
            except OSError:
                folders[folder] = ()
        for level in ("", ".opt-1", ".opt-2"):
            cached = name[:-3] + tag + level + ".pyc"
            if cached not in folders[folder]:
                continue
            cached = folder + "/__pycache__/" + cached if folder else "__pycache__/" + cached
            data = content(site + "/" + cached, 1 << 26)
            try:
                st = os.stat(site + "/" + path)
            except OSError:
                continue
            if data[4:8] != bytes(4) or data[8:16] == b"".join([(int(n) & 0xFFFFFFFF).to_bytes(4, "little") for n in (st.st_mtime, st.st_size)]):
                found.append((path, cached, level, data))
    return found


def wrong_byte_code(info, rows):
    """Return the byte code that Python would run and that does not match its module. One digest over all byte code is
    compared with the wheel's manifest first: if they are equal, nothing is wrong."""
    site, manifest = os.path.dirname(info), load_json(os.path.join(info, "dsbuild.json"))
    brought = (manifest or {}).get("bytecode")
    brought, found = brought if isinstance(brought, dict) else None, byte_code_files(site, rows)
    if found and brought and not any(level or data[4:8] != bytes(4) for _, _, level, data in found):
        whole = hashlib.sha256(("[" + ", ".join(['["%s", %d]' % (path, len(data) - 16) for path, _, _, data in found]) + "]\n").encode("utf-8", "replace"))
        for _, _, _, data in found:
            whole.update(memoryview(data)[16:])
        if whole.hexdigest() == brought.get("sha256"):
            return []
    if not found:
        return []
    from dsbuild_node.byte_code import differing  # takes long to compile

    return differing(site, found, brought)
