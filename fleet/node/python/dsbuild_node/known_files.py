"""Files that need not be read again: this program has read them, or an earlier one has, and they
are unchanged since then."""
import json
import os
import queue
import threading

from dsbuild_node.agent import Gone
from dsbuild_node.files import load_json
from dsbuild_node.places import PLACE, site_of
from dsbuild_node.record import file_digest, module_of

NOTED = os.path.join(PLACE, "known.json")  # the files of the current environment


class Known:
    """The known files: size, times and sha256 by device and inode. Byte code that was compared with
    its module has "" as its sha256."""

    def __init__(self):
        self.files = {}

    @staticmethod
    def state(path):
        st = os.stat(path)
        return (st.st_dev, st.st_ino), (st.st_size, st.st_mtime_ns)

    def find(self, path):
        """The sha256 of a file, None for one that is not known."""
        file, state = self.state(path)
        found = self.files.get(file)
        return found[1] if found and found[0] == state else None

    def learn(self, path, sum):
        file, state = self.state(path)
        self.files[file] = (state, sum)

    def sha256(self, path):
        """The sha256 of a file. Reads the file if it is not known."""
        sum = self.find(path)
        if not sum:
            before = self.state(path)
            sum = file_digest(path).hexdigest()
            if self.state(path) == before:
                self.learn(path, sum)
        return sum


def times(path):
    """Return the times of a file. At least one of them changes with every change of the file, even if its owner sets
    the other."""
    st = os.stat(path)
    return [st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns]


class NotedFiles:
    """The note of an earlier run on the files of the current environment. It is valid for files that
    are unchanged since then. A new link to a file counts as a change, so this must be read before an
    installer runs."""

    def __init__(self, name):
        self.known, self.site, self.byte_code = Known(), site_of(os.path.join(PLACE, name)), []
        noted = load_json(NOTED)
        if not name or noted is None or noted.get("environment") != name or not isinstance(noted.get("files"), dict):
            return
        for path, state in noted["files"].items():
            file = os.path.join(self.site, path)
            try:
                if times(file) != state[:-1]:
                    continue
            except OSError:
                continue
            self.known.learn(file, state[-1])
            if not state[-1]:
                self.byte_code.append(path)

    def link_byte_code(self, site):
        """Give a new environment the byte code of those modules that are the same files."""
        for path in self.byte_code:
            new = os.path.join(site, path)
            try:
                if os.path.samefile(os.path.join(self.site, module_of(path)), os.path.join(site, module_of(path))):
                    os.makedirs(os.path.dirname(new), exist_ok=True)
                    os.link(os.path.join(self.site, path), new)
            except OSError:  # then Python compiles the module again
                pass


def note_files(name, known):
    """Record the files of an environment that dsbuild has compared, and the byte code too: only
    dsbuild has run the environment so far."""
    site, files = site_of(os.path.join(PLACE, name)), {}
    for folder, _, names in os.walk(site):
        inner = folder[len(site) + 1:]
        for name_of_file in names:
            path = os.path.join(folder, name_of_file)
            is_byte_code = inner.endswith("__pycache__") and name_of_file.endswith(".pyc")
            sum = "" if is_byte_code else None if os.path.islink(path) else known.find(path)
            if sum is not None:
                files[os.path.join(inner, name_of_file)] = times(path) + [sum]
    with open(NOTED, "w", encoding="utf-8") as f:  # if it is cut off it is no JSON, and the next run reads every file
        json.dump({"environment": name, "files": files}, f)


class EarlyInstaller(threading.Thread):
    """Installs large wheels while the next ones arrive. At the same time another thread reads the
    files of the wheels before them, which are still in memory. It takes the place of the inbox for
    run_program: after stop, uv ends."""

    def __init__(self, install, read):
        threading.Thread.__init__(self, daemon=True)
        self.install, self.read, self.files, self.failed, self.stopped = install, read, queue.SimpleQueue(), None, False
        self.all_installed = threading.Event()
        self.start()

    def run(self):
        from concurrent.futures import ThreadPoolExecutor

        try:
            with ThreadPoolExecutor(1) as reader:
                readings = [reader.submit(self.read, entries, self) for entries in self.installed()]
                self.all_installed.set()
                for reading in readings:
                    reading.result()
        except Exception as e:
            self.failed = e
        finally:
            self.all_installed.set()

    def installed(self):
        """Install the wheels that have arrived, until there are no more."""
        files = []
        while None not in files:
            files = [self.files.get()]
            while not self.files.empty():
                files.append(self.files.get())
            if files != [None]:
                yield self.install([f for f in files if f], self)

    def check(self):
        if self.stopped:
            raise Gone()

    def silent(self):
        return True  # another thread speaks to the controller

    def finish_installing(self, orders):
        """Wait until the wheels that it has are installed."""
        self.files.put(None)
        while not self.all_installed.wait(0.1):
            orders.check()
        self.raise_failure()

    def finish_reading(self, orders):
        """Wait until their files are read, too."""
        while self.is_alive():
            orders.check()
            self.join(0.1)
        self.raise_failure()

    def raise_failure(self):
        if self.failed:
            raise self.failed

    def stop(self):
        self.stopped = True
        self.files.put(None)
        self.join()
