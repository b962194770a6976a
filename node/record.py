# What is read of the files of a distribution: for what changes or verifies an
# environment, and for a probe that is asked to.
import hashlib

HASHES = ("sha256", "sha384", "sha512")  # that files are compared by
CODE = (".py", ".pyc", ".so")  # endings that an import looks for
MOST_CODE = 256 << 20  # bytes of byte code; DeepSpeed has a thirtieth of it
BUFFER = memoryview(bytearray(1 << 17))  # of what is read; these programs have one thread


def record_of(name):
    """The sha256 of the RECORD of a distribution, "" where there is none."""
    for found, info in named_infos():
        if found == name:
            return record_sha256(info)
    return ""


def file_digest(path, new=hashlib.sha256):
    """The digest of a file, as an object of hashlib's."""
    # open() would make three objects for each of a thousand files; a pipe must not block.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if os.fstat(fd).st_mode & 0o170000 != 0o100000:
            raise OSError("no plain file")
        digest = new(BUFFER[:os.readv(fd, [BUFFER])])
        n = os.readv(fd, [BUFFER])
        while n:
            digest.update(BUFFER[:n])
            n = os.readv(fd, [BUFFER])
    finally:
        os.close(fd)
    return digest


def written(digest):
    """A digest as RECORD writes it, without the padding."""
    from binascii import b2a_base64  # base64 imports re, too

    return b2a_base64(digest).rstrip(b"=\n").replace(b"+", b"-").replace(b"/", b"_").decode("ascii")


def record_rows(info):
    """The rows of a dist-info's RECORD, each with path and hash at least. None where
    there is none."""
    try:
        with open(os.path.join(info, "RECORD"), "rb") as f:
            lines = f.read().decode("utf-8", "surrogateescape").replace("\r\n", "\n").split("\n")
    except OSError:
        return None
    if any('"' in line for line in lines):  # a path with a comma
        from csv import reader  # imports re

        rows = reader([line + "\n" for line in lines])
    else:
        rows = [line.split(",") for line in lines]
    return [row if len(row) > 1 else row + [""] for row in rows if row and row[0]]


def altered(info):
    """Files that are not what RECORD says, or missing: the first few of them."""
    wrong = []
    for row in record_rows(info) or []:
        algorithm, _, want = row[1].partition("=")
        if algorithm not in HASHES:
            continue
        try:
            digest = file_digest(os.path.join(os.path.dirname(info), row[0]), getattr(hashlib, algorithm)).digest()
        except OSError:
            digest = b""
        if written(digest) != want.rstrip("="):
            wrong.append(row[0])
            if len(wrong) > 4:
                break
    return wrong


def walk(package):
    """Every file and link below a folder: (path, whether it is a link). Links are not
    followed, and byte code in __pycache__ is left out. (os.walk takes three times as long.)"""
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
            elif is_link or not (name.endswith(".pyc") and folder.endswith("/__pycache__")):
                yield folder + "/" + name, is_link


def listed_paths(rows):
    """The paths that RECORD names, relative to site-packages."""
    return {os.path.normpath(row[0]) if "./" in row[0] or "//" in row[0] else row[0] for row in rows}


def is_vouched(path, said):
    """Whether RECORD knows what a file is that it names, by what it says of it: for byte code
    in __pycache__ it need not say anything, for no other code a missing digest will do."""
    return said.partition("=")[0] in HASHES or not path.endswith(CODE) or "__pycache__/" in path


def unknown_entries(info, rows):
    """The entry_points.txt of a distribution, by its path below site-packages, where RECORD does
    not name it: other packages run what it says."""
    path = os.path.basename(info) + "/entry_points.txt"
    return [path] if path not in listed_paths(rows) and os.path.lexists(os.path.join(info, "entry_points.txt")) else []


def unknown_code(site, rows):
    """Paths below site-packages of code in DeepSpeed's folder that RECORD does not know, and
    of links to folders: an import could find them."""
    listed, skip = listed_paths([row for row in rows if is_vouched(row[0], row[1])]), len(site) + 1
    return [path[skip:] for path, is_link in walk(site + "/deepspeed")
            if path[skip:] not in listed and (path.endswith(CODE) or is_link and os.path.isdir(path))]


def owners(paths, but):
    """The distribution that owns each of some files, by the RECORDs of all distributions
    but some. A distribution without a RECORD owns what its top_level.txt names."""
    found, wanted, tops, outside, places = {}, set(paths), {"."}, False, sites()
    for path in wanted:
        place = [place for place in places if path.startswith(place + os.sep)]
        if place:
            tops.add(path[len(place[0]) + 1:].partition(os.sep)[0])
        else:
            outside = True
    marks = [os.fsencode(top) for top in tops if top != "."] + [b"../"] * outside
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
                if first in tops or outside and first in ("..", ""):
                    path = os.path.normpath(os.path.join(place, row[0]))
                    if path in wanted:
                        found[path] = owner
    return found


def scripts_folder():
    """Where pip puts commands."""
    if sites()[0] == os.path.realpath(os.path.join(sys.prefix, "lib", "python%d.%d" % sys.version_info[:2], "site-packages")):
        return os.path.realpath(os.path.join(sys.prefix, "bin"))
    import sysconfig

    return os.path.realpath(sysconfig.get_path("scripts"))


def taken(commands):
    """Of the commands of wheels those that are there and not DeepSpeed's: the distribution
    that owns each, "" for none."""
    folder = scripts_folder()
    there = {os.path.join(folder, name): name for name in commands if os.path.lexists(os.path.join(folder, name))}
    for info in dist_infos(sites()) if there else ():
        for row in record_rows(info) or ():
            there.pop(os.path.normpath(os.path.join(os.path.dirname(info), row[0])), None)
    owner = owners(list(there), {"deepspeed"})
    return {name: owner.get(path, "") for path, name in there.items()}


def byte_code_files(site, rows):
    """The byte code that Python would run in place of the modules that RECORD names, as
    (module, its path, level of optimization, bytes). Byte code that is older than its
    module is not run."""
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
    """Byte code that Python would run and that is not what its module compiles to. If all of
    it is what came with the wheel, by the digest in the wheel's manifest, one digest tells."""
    site, manifest = os.path.dirname(info), load_json(os.path.join(info, "dsbuild.json"))
    brought = manifest.get("bytecode") if isinstance(manifest, dict) else None
    brought, found = brought if isinstance(brought, dict) else None, byte_code_files(site, rows)
    if found and brought and not any(level or data[4:8] != bytes(4) for _, _, level, data in found):
        whole = hashlib.sha256(("[" + ", ".join(['["%s", %d]' % (path, len(data) - 16) for path, _, _, data in found]) + "]\n").encode("utf-8", "replace"))
        for _, _, _, data in found:
            whole.update(memoryview(data)[16:])
        if whole.hexdigest() == brought.get("sha256"):
            return []
    if not found:
        return []
    exec(BYTECODE, globals())
    return differing(site, found, brought)


def faults(info):
    """What of a DeepSpeed is not as it was installed, the first few paths: files that are
    not what RECORD says, code that RECORD does not know and no other distribution owns,
    byte code that is not its module's."""
    wrong, rows, site = altered(info), record_rows(info), os.path.dirname(info)
    if wrong or rows is None:
        return wrong
    unknown = [os.path.join(site, path) for path in unknown_code(site, rows)]
    owned = owners(unknown, {"deepspeed"})
    return ([path[len(site) + 1:] for path in unknown if path not in owned] or unknown_entries(info, rows) or wrong_byte_code(info, rows))[:5]
