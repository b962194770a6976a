"""Keeps compiled objects from build to build, known by what they were made of.

A result is looked up by a key: of the compiler's own bytes, the command with every
place in it replaced by a name, and the source. Under the key lie the results that
this command has had, each with the digests of all headers that were read for it; one
whose headers are what they were is taken. So the same source is compiled once, in
whatever folder, on whatever machine and for whatever wheel.
"""
import gzip
import hashlib
import json
import os
import pathlib
import tempfile
import threading

FORMAT = 1
VARIANTS = 8  # results kept under one key: of so many states of its headers


def digest(data):
    return hashlib.blake2b(data, digest_size=20).hexdigest()


class Places:
    """Folders that differ from build to build, and their names in keys."""

    def __init__(self, folders):
        # Longer ones first: one may lie in another.
        self.folders = sorted(((os.path.normpath(at), name) for name, at in folders.items() if at), key=lambda p: -len(p[0]))

    def named(self, text):
        """A text with the names for the folders."""
        for at, name in self.folders:
            text = text.replace(at, "@" + name)
        return text

    def path_named(self, path):
        for at, name in self.folders:
            if path.startswith(at + "/"):
                return "@" + name + path[len(at) :]
        return path

    def path(self, named):
        for at, name in self.folders:
            if named.startswith("@" + name + "/"):
                return at + named[len(name) + 1 :]
        return named


class Objects:
    """The results in a folder. Other builds may use it at the same time.

    recache: nothing is taken from there, but everything put there."""

    def __init__(self, folder, places, recache=False, limit=5 << 30):
        self.folder, self.places, self.recache, self.limit = pathlib.Path(folder), places, recache, limit
        self.digests, self.shadowed, self.names = {}, {}, {}
        self.taking = threading.Lock()

    def digest(self, path):
        """The digest of a file's content, "" where there is none. Each file is read once."""
        if path not in self.digests:
            try:
                self.digests[path] = digest(pathlib.Path(path).read_bytes())
            except OSError:
                self.digests[path] = ""
        return self.digests[path]

    def key(self, *parts):
        return digest(json.dumps([FORMAT, *parts], sort_keys=True).encode())

    def take(self, key, outputs, include=()):
        """Puts a kept result where outputs say, and returns whether there was one. Of
        include, the folders that were searched for headers, none may have got a file that
        would now be found first."""
        if self.recache:
            return False
        # One at a time: thousands of short calls of the system from several threads would
        # each wait for Python's own lock.
        with self.taking:
            return any(self._current(variant, include) and self._place(variant, outputs) for variant in self._variants(key))

    def keep(self, key, outputs, headers=()):
        """Keeps the files of outputs as a result that these headers were read for."""
        read = {self.places.path_named(h): self.digest(h) for h in headers}
        results = []
        for path in outputs:
            data = pathlib.Path(path).read_bytes()
            name = digest(data)
            if not self._path(name, ".gz").exists():
                write(self._path(name, ".gz"), gzip.compress(data, 1, mtime=0))
            results.append(name)
        variants = [v for v in self._variants(key) if v["headers"] != read]
        text = json.dumps([{"headers": read, "results": results}, *variants[: VARIANTS - 1]])
        write(self._path(key, ".json.gz"), gzip.compress(text.encode(), 1, mtime=0))

    def prune(self):
        """Removes what was not used for longest where it is more than the limit."""
        found = []
        for path in self.folder.glob("??/*"):
            try:
                info = path.stat()
            except OSError:
                continue  # another build removes, too
            found.append((info.st_mtime, info.st_size, path))
        size = sum(s for _, s, _ in found)
        for _, s, path in sorted(found):
            if size <= self.limit:
                break
            size -= s
            path.unlink(missing_ok=True)

    def _path(self, name, suffix):
        return self.folder / name[:2] / (name + suffix)

    def _variants(self, key):
        try:
            path = self._path(key, ".json.gz")
            variants = json.loads(gzip.decompress(path.read_bytes()))
            os.utime(path)
        except (OSError, EOFError, ValueError):  # what cannot be read is not there
            return []
        return variants

    def _current(self, variant, include):
        headers = [(self.places.path(h), was) for h, was in variant["headers"].items()]
        return all(self.digest(h) == was for h, was in headers) and not any(self._shadowed(h, tuple(include)) for h, _ in headers)

    def _shadowed(self, header, include):
        """Whether one of the folders that are searched before the one in which a header
        lies has a file of the same name. Most sources of a build share both."""
        if (header, include) not in self.shadowed:
            inside = (i for i, folder in enumerate(include) if header.startswith(folder + "/"))
            first = next(inside, 0)
            name = header[len(include[first]) + 1 :] if first else ""
            self.shadowed[header, include] = any(
                name.partition("/")[0] in self._names(earlier) and os.path.exists(earlier + "/" + name) for earlier in include[:first]
            )
        return self.shadowed[header, include]

    def _names(self, folder):
        """What lies in a folder: thousands of headers need not be looked for in it."""
        if folder not in self.names:
            try:
                self.names[folder] = set(os.listdir(folder))
            except OSError:
                self.names[folder] = set()
        return self.names[folder]

    def _place(self, variant, outputs):
        try:
            kept = [self._path(name, ".gz") for name in variant["results"]]
            results = [gzip.decompress(path.read_bytes()) for path in kept]
            for path in kept:
                os.utime(path)
        except (OSError, EOFError, ValueError):  # another build may prune meanwhile
            return False
        if [digest(data) for data in results] != variant["results"] or len(results) != len(outputs):
            return False  # damaged
        for data, path in zip(results, outputs):
            pathlib.Path(path).write_bytes(data)
        return True


def write(path, data):
    """Writes a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, new = tempfile.mkstemp(dir=path.parent, prefix=".")
    with os.fdopen(handle, "wb") as f:
        f.write(data)
    os.replace(new, path)


def headers_of(depfile, cwd):
    """What a compiler has read, by the rule for make that it left."""
    text = pathlib.Path(depfile).read_text().replace("\\\n", " ")
    _, _, rest = text.partition(": ")
    words = rest.replace("\\ ", "\0").split()
    return sorted({os.path.normpath(os.path.join(cwd, w.replace("\0", " "))) for w in words})
