# Appended to the agent by crash_test.go: kills the agent before each thing that it
# does to the file system, or before each EACH-th one, and has the next run begin
# there. What is there then must be the old DeepSpeed or the new one, every file and
# command of it, and all that belongs to others in the folders they share. Then the next run is killed too: at PAIRS pairs of points, all if it is negative.
# CROSSING: names cannot be moved into and out of dsbuild's folder, as on an overlay.
#
# It is killed in two ways. "killed": all that was done is there. "power cut": all
# that was done to names is there too, but of what was written to files only what
# was brought to the disk; this is what ext4 and xfs leave, which write names in
# order and data when they like.
import binascii  # what the agent imports when it needs it is here before it is forked
import builtins
import hashlib
import random
import sysconfig
import traceback

SITE = sites()[0]
BIN = os.path.join(sys.prefix, "bin")
WORK = os.path.join(sys.prefix, "work")
INBOX = os.path.join(HOME, "inbox")
real = {name: getattr(os, name) for name in ("rename", "unlink", "rmdir", "mkdir", "link", "symlink", "fsync", "ftruncate", "open")}
real_open = builtins.open
shutil._USE_CP_SENDFILE = False  # so that copies go through open, too


class Points:
    """The points at which this process can be killed, counted as they are passed."""

    count, at, power = 0, 0, False
    unsynced = {}  # inode: how many bytes of it are on the disk


def point():
    Points.count += 1
    if Points.count == Points.at:
        die()


def die():
    if Points.power:
        for folder, _, names in os.walk(sys.prefix):
            for path in (os.path.join(folder, name) for name in names):
                there = Points.unsynced.get(os.lstat(path).st_ino)
                if there is not None and not os.path.islink(path):
                    os.truncate(path, there)
    os._exit(9)


def passing(name):
    def do(*args, **more):
        point()
        if name == "rename" and CROSSING and (HOME + os.sep in str(args[0])) != (HOME + os.sep in str(args[1])):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        if name == "fsync":  # a real one would take most of the time
            return Points.unsynced.pop(os.fstat(args[0]).st_ino, None)
        return real[name](*args, **more)
    return do


class Writing:
    """A file being written: its text goes out in two halves, with points around them."""

    def __init__(self, path, mode, more):
        point()
        self.file = real_open(path, mode, **more)
        Points.unsynced.setdefault(os.fstat(self.file.fileno()).st_ino, self.file.tell())
        self.parts = []

    def write(self, part):
        self.parts.append(part)

    def flush(self):
        text = (b"" if "b" in self.file.mode else "").join(self.parts)
        for half in (text[:len(text) // 2], text[len(text) // 2:]) if text else ():
            point()
            self.file.write(half)
            self.file.flush()
        self.parts = []

    def close(self):
        self.flush()
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def opening(path, mode="r", *args, **more):
    if "r" in mode and "+" not in mode or not str(path).startswith(sys.prefix):
        return real_open(path, mode, *args, **more)
    return Writing(path, mode, more)


class Sync:
    """What stands in for the program sync."""

    def __init__(self, *args, **more):
        pass

    def wait(self, limit=None):
        point()
        Points.unsynced.clear()
        return 0


def unpack(order, arguments, *rest, **more):
    """What stands in for pip: unpacks wheels, file by file, and makes commands."""
    for wheel in (a for a in arguments if a.endswith(".whl")):
        with zipfile.ZipFile(wheel) as z:
            record = [name for name in z.namelist() if name.endswith("/RECORD")]
            for name in sorted(z.namelist(), key=lambda name: name in record):  # RECORD comes last
                path = os.path.join(BIN if ".data/scripts/" in name else os.path.dirname(os.path.join(SITE, name)), os.path.basename(name))
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "wb") as f:
                    f.write(z.read(name))
                if name.endswith("/entry_points.txt"):
                    for command in commands_of(z.read(name).decode()):
                        with open(os.path.join(BIN, command), "w") as f:
                            f.write("#!python\n# %s\n" % os.path.basename(wheel))


def make_wheel(version, more):
    """A wheel with the outer shape of DeepSpeed's, with commands, and with files in a folder
    of another package."""
    info, commands = "deepspeed-%s.dist-info/" % version, ("ds_all", "ds_" + version)
    files = {"deepspeed/__init__.py": "version = '%s'\n" % version, "deepspeed/ops/adam.py": "adam = '%s'\n" % version, "deepspeed/same.py": "same\n",
             "deepspeed-%s.data/scripts/ds_report" % version: "#!python\n# %s\n" % version,
             "shared/ours.py": "ours = '%s'\n" % version, "shared/deep/ours%s.py" % version: "ours\n", "shared/only%s/ours.py" % version: "ours\n",
             info + "entry_points.txt": "[console_scripts]\n" + "".join("%s = deepspeed:main\n" % c for c in commands),
             info + "METADATA": "Metadata-Version: 2.1\nName: deepspeed\nVersion: %s\n" % version, info + "WHEEL": "Root-Is-Purelib: false\n"}
    files.update(more)
    installed_as = lambda name: "../../../bin/ds_report" if ".data/" in name else name
    listed = ["%s,sha256=%s,%d\n" % (installed_as(name), written(hashlib.sha256(text.encode()).digest()), len(text)) for name, text in files.items()]
    files[info + "RECORD"] = "".join(listed + ["%s,,\n" % name for name in [*("../../../bin/" + c for c in commands), info + "INSTALLER", info + "RECORD"]])
    path = os.path.join(WORK, "deepspeed-%s.whl" % version)
    with zipfile.ZipFile(path, "w") as z:
        for name in sorted(files):
            z.writestr(zipfile.ZipInfo(name), files[name])
    return path


def install(version, then="record"):
    """The orders that install a version, ending with record or with undo."""
    wheel = os.path.join(WORK, "deepspeed-%s.whl" % version)
    sha256 = file_digest(wheel).hexdigest()
    record = record_in(wheel)
    sent = os.path.join(INBOX, os.path.basename(wheel))
    orders = [{"do": "install", "wheels": [{"name": "deepspeed", "file": sent, "sha256": sha256}], "pip": "", "limit_s": 5, "accepted": {"signatures": [], "record": accepted_record(wheel)}}]
    if then == "undo":
        return orders + [{"do": "undo"}]
    return orders + [{"do": "record", "forget": False, "journal": {"do": "deploy", "run": version},
                      "installed": {"wheel": os.path.basename(wheel), "sha256": sha256, "version": version, "record": record}}]


def add_others():
    """Another package, which has files in a folder that DeepSpeed's has some in, and files of
    the user's."""
    for name, text in (("shared/theirs.py", "x = 1\n"), ("shared/deep/theirs.py", ""), ("deepspeed/notes.txt", "the user's"), ("../../../bin/theirs", "#!python\n"),
                       ("other-1.0.dist-info/METADATA", "Name: other\nVersion: 1.0\n"), ("other-1.0.dist-info/RECORD", "shared/theirs.py,,\nshared/deep/theirs.py,,\n../../../bin/theirs,,\n")):
        path = os.path.join(SITE, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with real_open(path, "w") as f:
            f.write(text)


def record_in(wheel):
    with zipfile.ZipFile(wheel) as z:
        return hashlib.sha256(z.read([n for n in z.namelist() if n.endswith("/RECORD")][0])).hexdigest()


def accepted_record(wheel):
    """The digests of a wheel's files, but for the command, which pip's stand-in writes anew."""
    with zipfile.ZipFile(wheel) as z:
        return "".join("%s,sha256=%s,\n" % (name, written(hashlib.sha256(z.read(name)).digest())) for name in z.namelist() if ".data/" not in name and not name.endswith("/RECORD"))


def back(noted):
    return [{"do": "roll_back", "accepted": ""}, {"do": "record", "forget": True, "journal": {"do": "rollback", "run": "back"}, "installed": noted}]


def agent(orders, at=0, power=False):
    """Runs the agent in a process of its own, killed at a point. Returns its exit
    status, its answers, and how many points there were."""
    out, count = os.path.join(WORK, "answers"), os.path.join(WORK, "count")
    names = [os.path.basename(wheel["file"]) for order in orders if order["do"] == "install" for wheel in order["wheels"]]
    REQUEST["files"] = [{"name": name, "sha256": file_digest(os.path.join(WORK, name)).hexdigest()} for name in names]
    for name in names:
        os.makedirs(INBOX, exist_ok=True)
        shutil.copy(os.path.join(WORK, name), INBOX)
    child = os.fork()
    if child == 0:
        r, w = os.pipe()
        for i, order in enumerate(orders):
            os.write(w, json.dumps(dict(order, number=i + 1)).encode() + b"\n")
        os.write(w, b'{"do": "end", "number": 99}\n')
        os.close(w)
        os.dup2(r, 0)
        os.dup2(real["open"](out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        Points.count, Points.at, Points.power, Points.unsynced = 0, at, power, {}
        for name in real:
            if name != "open":
                setattr(os, name, passing(name))
        builtins.open, subprocess.Popen = opening, Sync
        deploy.run_pip = unpack
        deploy.compile_modules = lambda info: None  # byte code holds the time of its module, which each run sets anew
        try:
            main()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        with real_open(count, "w") as f:
            f.write(str(Points.count))
        Points.unsynced.pop(os.stat(count).st_ino, None)  # of a file that is gone
        if power:
            die()
        os._exit(0)
    status = os.waitpid(child, 0)[1] >> 8
    with real_open(out) as f:
        answers = [json.loads(line) for line in f if line.strip()]
    points = 0
    if status == 0 or power and os.path.exists(count):
        with real_open(count) as f:
            points = int(f.read())
        os.unlink(count)
    return status, answers, points


def state():
    """Every file of the environment that is not dsbuild's."""
    found = {}
    for top in (SITE, BIN):
        for folder, folders, names in os.walk(top):
            folders[:] = [name for name in folders if name != ".dsbuild"]
            for path in (os.path.join(folder, name) for name in names):
                found[path] = content(path) if not os.path.islink(path) else os.readlink(path)
    return found


def save(name):
    """Keeps the environment as it is."""
    target = os.path.join(WORK, name)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(os.path.join(SITE), os.path.join(target, "site"), symlinks=True)
    shutil.copytree(BIN, os.path.join(target, "bin"), symlinks=True)


def load(name):
    """Makes the environment what it was."""
    source = os.path.join(WORK, name)
    for path, kept in ((SITE, "site"), (BIN, "bin")):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(os.path.join(source, kept), path, symlinks=True)


def journal(repairs=False):
    """What the journal says, without its lines on repairs; what is no JSON stays a text."""
    entries = content(os.path.join(HOME, "journal.jsonl")).decode().splitlines()
    for i, line in enumerate(entries):
        try:
            entries[i] = json.loads(line)
        except ValueError:
            pass
    return [e for e in entries if repairs or not isinstance(e, dict) or e["do"] != "repair"]


class Story:
    """A change and what may come of it."""

    def __init__(self, name, start, orders, reverts=None):
        self.name, self.start, self.orders, self.reverts = name, start, orders, reverts
        load(start)
        self.old, self.noted, self.entries = state(), load_json(INSTALLED), journal()
        status, answers, self.points = agent(orders)
        if status or any("failed" in a for a in answers):
            raise SystemExit("%s: %s %s" % (name, status, answers))
        self.new, self.noted_new, self.entries_new = state(), load_json(INSTALLED), journal()

    def check(self, how):
        """What the next run finds, once it has begun."""
        status, answers, _ = agent([])
        wrong = []
        if status or "ok" not in answers[0]:
            wrong.append("the next run does not begin: %s %s" % (status, answers))
        now = state()
        became = "new" if now == self.new else "old" if now == self.old else ""
        if not became:
            wrong.append("a mixture: " + ", ".join(sorted(p[len(sys.prefix):] for p in set(now) ^ set(self.new)) or
                                                  [p[len(sys.prefix):] for p in now if now[p] not in (self.old.get(p), self.new.get(p))] or ["files of both"]))
        if became == "old" and self.new == self.old and load_json(INSTALLED) == self.noted_new:
            became = "new"
        for what, got, old, new in (("installed.json", load_json(INSTALLED), self.noted, self.noted_new), ("the journal", journal(), self.entries, self.entries_new)):
            if became and got != {"old": old, "new": new}[became]:
                wrong.append("%s does not tell of the %s version: %s" % (what, became, got))
        if len([e for e in journal(repairs=True) if isinstance(e, dict) and e["do"] == "repair"]) > 1:
            wrong.append("the journal tells of one repair twice")
        left = set(os.listdir(HOME)) - {"lock", "installed.json", "previous", "journal.jsonl"}
        if left:
            wrong.append("left behind: %s" % sorted(left))
        if became == "new" and self.reverts and not wrong:
            status, answers, _ = agent(back(self.noted))
            if status or any("failed" in a for a in answers) or state() != self.old:
                wrong.append("it cannot be rolled back: %s %s" % (status, answers))
        if wrong:
            print("WRONG %s, %s: %s" % (self.name, how, "; ".join(wrong)))
        return became

    def all(self, power):
        """Killed once, at every point."""
        came = {"old": 0, "new": 0, "": 0}
        was = ""
        points = sorted({*range(random.randint(1, EACH), self.points + 1, EACH), self.points + 1})
        for at in points:
            load(self.start)
            agent(self.orders, at, power)
            became = self.check("%s before point %d of %d" % ("power cut" if power else "killed", at, self.points))
            came[became] += 1
            if was == "new" and became == "old" or at > self.points and became != "new":
                print("WRONG %s: what was final before point %d is not before %d" % (self.name, at - 1, at))
            was = became
        print("%s, %s: %d points, then %d old, %d new" % (self.name, "power cut" if power else "killed", len(points), came["old"], came["new"]))

    def pairs(self, power, most):
        """Killed once, and the next run while it repairs."""
        both = [(a, b) for a in range(1, self.points + 1) for b in range(1, 200)]
        if most:
            both = random.sample(both, most)
        done, ended = 0, {}
        for a, b in both:
            if b > ended.get(a, 200):
                continue  # the repair has fewer points
            load(self.start)
            agent(self.orders, a, power)
            status, _, points = agent([], b, power)
            if points:
                ended[a] = points
            done += 1
            self.check("%s before point %d, the repair before %d" % ("power cut" if power else "killed", a, b))
        print("%s, %s twice: %d pairs of points" % (self.name, "power cut" if power else "killed", done))


def stories():
    os.makedirs(WORK, exist_ok=True)
    for version, more in (("0.1", {}), ("0.2", {"deepspeed/only_two.py": "two\n"}), ("0.3", {"deepspeed/only_three.py": "three\n"})):
        make_wheel(version, more)
    add_others()
    save("empty")
    for name, version in (("first", "0.1"), ("second", "0.2")):
        status, answers, _ = agent(install(version))
        if status or any("failed" in a for a in answers):
            raise SystemExit("%s %s" % (status, answers))
        save(name)
    load("second")
    noted = json.load(real_open(os.path.join(WORK, "first", "site", ".dsbuild", "installed.json")))
    return [
        Story("a first install", "empty", install("0.1"), reverts=True),
        Story("an install over another", "second", install("0.3"), reverts=True),
        Story("an install that is undone", "second", install("0.3", then="undo")),
        Story("a rollback", "second", back(noted)),
    ]


for story in stories():
    for power in (False, True):
        story.all(power)
        if PAIRS:
            story.pairs(power, 0 if PAIRS < 0 else PAIRS)
