"""Compiles the sources of all ops in one pool, and links each op when its objects are
there.

torch compiles one extension after the other, so that cores wait at the end of each.
Here its compile commands are collected and run together, as many at once as there are
cores and memory for: first those of nvcc, which take longest, of them the largest sources
first. The parts of one wheel share them (DSBUILD_TURNS, the same number for each). An object that was compiled before is taken from the cache (objects.py), and counts in silence. A line is
printed for each command:

    job 3 of 40: core 1, 12.3 to 34.5 s, CPU 21.0 s, 912 MiB: csrc/adam/cpu_adam.cpp
"""
import concurrent.futures
import contextlib
import errno
import fcntl
import functools
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time

from objects import Objects, Places, headers_of

MIB = 1 << 20

# The memory that is kept for each command. g++ takes 1 to 2 GiB with torch's headers, nvcc up to
# 3; with the largest sources of DeepSpeed 4.4.
MEMORY = 3 << 30

# Below so many bytes g++ spends no time on finding memory that it no longer needs.
NO_COLLECTION = ["--param", "ggc-min-expand=1000", "--param", f"ggc-min-heapsize={1500 << 10}"]


class Failed(Exception):
    """A command that failed, with its output."""

    def __init__(self, title, status, output):
        super().__init__(f"{title}: " + (f"killed by signal {-status}" if status < 0 else f"exit code {status}"))
        self.output = output


class Turns:
    """Locks on bytes of a file, one for each command that may run at once: the parts of a wheel take from
    the same. A lock ends with its process. Without locks in the file system each part takes all."""

    def __init__(self, folder, number, count):
        os.makedirs(folder, exist_ok=True)
        self.file = open(os.path.join(folder, "turns"), "ab")
        # Machines can share a folder.
        boot = "".join(lines("/proc/sys/kernel/random/boot_id"))[:8] or "0"
        self.begin = (int(boot, 16) ^ int(number, 16)) << 10
        self.free, self.choosing = list(range(count)), threading.Lock()

    @contextlib.contextmanager
    def one(self):
        """Waits for a turn, and ends it."""
        while (turn := self.taken()) is None:
            time.sleep(0.05)
        try:
            yield
        finally:
            with self.choosing:
                self.lock(fcntl.LOCK_UN, turn)
                self.free.append(turn)

    def taken(self):
        with self.choosing:
            for turn in sorted(self.free):
                if self.lock(fcntl.LOCK_EX | fcntl.LOCK_NB, turn):
                    self.free.remove(turn)
                    return turn
        return None

    def lock(self, how, turn):
        try:
            fcntl.lockf(self.file, how, 1, self.begin + turn)
        except OSError as e:
            return e.errno not in (errno.EAGAIN, errno.EACCES)
        return True


class Pool:
    """Runs commands on some cores at once, in the order in which they are added."""

    def __init__(self, cores):
        self.cores, number = cores, os.environ.get("DSBUILD_TURNS")
        self.turn = Turns(os.environ["DSBUILD_OBJECTS"], number, cores).one if number else contextlib.nullcontext
        self.executor = concurrent.futures.ThreadPoolExecutor(cores)
        self.printing, self.ended, self.total, self.begin = threading.Lock(), 0, 0, time.monotonic()
        self.numbers = {}  # of the threads

    def add(self, call, *args):
        try:
            return self.executor.submit(call, *args)
        except RuntimeError:  # a job has failed already
            never = concurrent.futures.Future()
            never.cancel()
            return never

    def run(self, title, command, cwd):
        """Runs a command. Its output is printed whole, after it has ended. If it fails, no other
        job is begun."""
        with self.turn(), tempfile.TemporaryFile("w+", errors="replace") as file:
            start = time.monotonic()
            child = subprocess.Popen(command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            file.seek(0)
            output = file.read()
        if child.returncode:
            self.executor.shutdown(wait=False, cancel_futures=True)
            raise Failed(title, child.returncode, output)
        self.report(title, start, output, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10)

    def report(self, title, start, output="", cpu=0.0, memory=0):
        """Prints the line of a job that has ended."""
        with self.printing:
            self.ended += 1
            core = self.numbers.setdefault(threading.get_ident(), len(self.numbers) + 1)
            span = f"core {core}, {start - self.begin:.2f} to {time.monotonic() - self.begin:.2f} s, CPU {cpu:.1f} s, {memory // MIB} MiB"
            part = " of " + os.environ["DSBUILD_PART"] if os.environ.get("DSBUILD_PART") else ""
            print(f"{output}job {self.ended} of {self.total}{part}: {span}: {title}", flush=True)

    def finish(self, jobs):
        """Waits for the jobs. The first that failed is raised."""
        try:
            for job in concurrent.futures.as_completed(jobs):
                job.result()
        finally:
            self.executor.shutdown(cancel_futures=True)


def cores():
    """How many commands run at once: as many as this process has cores, or MAX_JOBS, and no more
    than there is memory for."""
    wanted = int(os.environ.get("MAX_JOBS") or len(os.sched_getaffinity(0)))
    return max(1, min(wanted, available() // MEMORY))


def available():
    """The bytes of memory that may still be taken: those free, or fewer where a limit is
    set on the groups of this process."""
    free = 1 << 62
    for line in lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) << 10
    for line in lines("/proc/self/cgroup"):
        _, controllers, group = line.strip().split(":", 2)
        if controllers == "":
            tree, file = "/sys/fs/cgroup", "memory.max"
        elif controllers == "memory":
            tree, file = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        # What a group holds already is mostly cached files, and not counted.
        for above in [pathlib.PurePosixPath(group), *pathlib.PurePosixPath(group).parents]:
            for limit in lines(f"{tree}{above}/{file}"):
                if limit.strip().isdigit():
                    free = min(free, int(limit))
    return free


def lines(file):
    try:
        return pathlib.Path(file).read_text().splitlines()
    except OSError:
        return []


class Build:
    """The compilations and links of one wheel. check, if given, is called with the headers that a
    source has read."""

    def __init__(self, check=None):
        env, self.check = os.environ, check
        self.root = env["DSBUILD_SRC"]
        self.places = Places({
            "src": self.root, "env": env.get("DSBUILD_ENV"), "cuda": env.get("CUDA_HOME"), "tools": env["DSBUILD_TOOLS"], "work": env["DSBUILD_WORK"],
            **{f"beside{i}": at for i, at in enumerate(filter(None, env.get("DSBUILD_BESIDE", "").split(":")))},
        })
        self.objects = Objects(env["DSBUILD_OBJECTS"], self.places, recache=bool(env.get("CCACHE_RECACHE")))
        self.pool = Pool(cores())
        self.units, self.links = [], []
        # What decides about an object beside the command: the compilers and what stands before them.
        self.compilers = [self.compiler(env["DSBUILD_CC"]), self.compiler(env["DSBUILD_CXX"])]
        self.compilers += [self.objects.digest(os.path.join(env["DSBUILD_TOOLS"], name)) for name in ("cxx", "nvcc")]
        self.compilers += [self.places.named(env.get(name, "")) for name in ("DSBUILD_CPU", "DSBUILD_KEEP_DEBUG", "DSBUILD_NVCC_NAMES", "CPATH", "SOURCE_DATE_EPOCH")]

    def compiler(self, program):
        """What identifies a compiler: its version and the bytes of its programs."""
        ask = lambda *words: subprocess.run([program, *words], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        return [ask("-dumpfullversion"), ask("-dumpmachine"), *(self.objects.digest(ask("-print-prog-name=" + name)) for name in ("cc1plus", "cc1", "as"))]

    @functools.cached_property
    def nvcc(self):
        """The same of nvcc, whose version names its very build."""
        home = os.environ["CUDA_HOME"]
        version = subprocess.run([home + "/bin/nvcc", "-V"], stdout=subprocess.PIPE, text=True, check=True).stdout
        tools = ["bin/nvcc", "bin/cudafe++", "bin/ptxas", "bin/fatbinary", "nvvm/bin/cicc"]
        return [version, *(self.objects.digest(os.path.join(home, tool)) for tool in tools)]

    def add(self, folder):
        """Takes the compilations of the build.ninja in a folder."""
        rules = subprocess.run(["ninja", "-t", "compdb", "compile", "cuda_compile"], cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout
        for entry in json.loads(rules):
            self.units.append(Unit(self, shlex.split(entry["command"]), entry["directory"], entry["file"], entry["output"]))

    def run(self):
        """Compiles and links all."""
        print(f"{len(self.units)} sources, {self.pool.cores} parallel jobs", flush=True)
        self.pool.total = len(self.units) + len(self.links)
        compiled = {unit.object: self.pool.add(unit.compile) for unit in sorted(self.units, key=lambda unit: (not unit.cuda, -os.path.getsize(unit.source)))}
        linked = [self.pool.add(self.link, title, call, [compiled[o] for o in objects if o in compiled]) for title, objects, call in self.links]
        try:
            self.pool.finish([*compiled.values(), *linked])
        except Failed as e:
            sys.exit(f"{e.output}\nerror: {e}")
        self.objects.prune()
        taken = sum(unit.taken for unit in self.units)
        print(f"objects: {taken} from the cache, {len(self.units) - taken} compiled", flush=True)

    def link(self, title, call, objects):
        """Links an op. The pool begins links after all compilations, so none waits for long."""
        for compiled in objects:
            compiled.result()
        with self.pool.turn():
            start = time.monotonic()
            call()
        self.pool.report(f"link {title}", start)


class Unit:
    """The compilation of one source."""

    def __init__(self, build, argv, cwd, source, output):
        self.build, self.cwd = build, cwd
        self.source, self.object = os.path.join(cwd, source), os.path.join(cwd, output)
        self.cuda = os.path.basename(argv[0]) == "nvcc"
        self.taken = False
        self.name = os.path.relpath(self.source, build.root)
        argv = with_standard(argv, os.environ.get("DSBUILD_CXX_STANDARD", ""))
        self.argv = without(argv, {"-MMD": 0, "-MF": 1, "--generate-dependencies-with-compile": 0, "--dependency-output": 1, "-o": 1, "-c": 0, source: 0})
        self.include = [os.path.normpath(a[2:]) for a in argv if a.startswith("-I")]

    def compile(self):
        """Takes the object from the cache or compiles it."""
        os.makedirs(os.path.dirname(self.object), exist_ok=True)
        objects, key = self.build.objects, self.key()
        if objects.take(key, [self.object], self.include):
            self.taken = True
            with self.build.pool.printing:
                self.build.pool.ended += 1
            return
        depfile = self.object + ".d"
        command = [*self.argv, *([] if self.cuda else NO_COLLECTION), "-MD", "-MF", depfile, "-c", self.source, "-o", self.object]
        self.build.pool.run(self.name, command, self.cwd)
        headers = headers_of(depfile, self.cwd)
        if self.build.check:
            self.build.check(headers)
        objects.keep(key, [self.object], headers)

    def key(self):
        """The key of the object: of all that decides about it but the headers."""
        command = [self.build.places.named(a) for a in self.argv]
        tools = [*self.build.compilers, *(self.build.nvcc if self.cuda else [])]
        return self.build.objects.key("object", tools, command, self.name, self.build.objects.digest(self.source))


def without(argv, options):
    """A command without some options, each with so many values."""
    left, skip = [], 0
    for word in argv:
        if skip:
            skip -= 1
        elif word in options:
            skip = options[word]
        else:
            left.append(word)
    return left


# The two digits of a C++ standard that g++ and nvcc also know by a letter, and of those before 2011.
STANDARDS = {"0x": "11", "1y": "14", "1z": "17", "2a": "20", "2b": "23", "2c": "26", "98": "00", "03": "00"}


def with_standard(argv, least):
    """A compile command that names at least a C++ standard, given by its two digits.

    DeepSpeed up to 0.19.4 (for nvcc up to 0.19.6) names C++17, and torch's headers need
    C++20 since 2.12. torch itself adds a standard only where none is named."""
    raised = []
    for before, word in zip(["", *argv], argv):
        named = re.fullmatch(r"(--?std=|)((?:c|gnu)\+\+)(\w\w)", word)
        if named and (named[1] or before in ("-std", "--std")) and STANDARDS.get(named[3], named[3]) < least:
            word = named[1] + named[2] + least
        raised.append(word)
    return raised


def pool(extensions, check=None):
    """Makes torch's build_ext (a class) compile in one pool. extensions is the module
    torch.utils.cpp_extension. check, if given, is called with the headers that a source has
    read."""
    command = extensions.BuildExtension
    original = command.build_extensions

    def build_extensions(self):
        build = Build(check)
        ninja, link, one, temp = extensions._run_ninja_build, self.compiler.link_shared_object, self.build_extension, self.build_temp

        def build_extension(ext):
            # Ops have sources in common, with other flags.
            self.build_temp = os.path.join(temp, ext.name)
            one(ext)

        def later(objects, file, *args, **kwargs):
            build.links.append((os.path.basename(file), objects, lambda: link(objects, file, *args, **kwargs)))

        extensions._run_ninja_build = lambda folder, *args, **kwargs: build.add(folder)
        self.compiler.link_shared_object, self.build_extension = later, build_extension
        try:
            original(self)
        finally:
            extensions._run_ninja_build = ninja
            self.compiler.link_shared_object, self.build_extension, self.build_temp = link, one, temp
        build.run()

    command.build_extensions = build_extensions
