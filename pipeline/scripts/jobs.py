"""Compiles the sources of all ops in one pool, and links each op when its objects are
there.

torch compiles one extension after the other, so that cores wait at the end of each.
Here its compilations are collected, commands and all, and run together: those that
take longest first, as many at once as there are cores and memory for. What has been
compiled before is taken from the objects (objects.py). A line is printed for each:

    job 3: core 1, 12.3 to 34.5 s, CPU 21.0 s, 912 MiB: csrc/adam/cpu_adam.cpp

Two things make a compilation cheaper, and neither changes its result:

- Four fifths of the time of most sources goes into torch/extension.h. A lean one
  (lean/) takes its place, without the C++ front end, where the source asks for nothing
  that could turn out otherwise with it; what does not compile with it is compiled as it is.
- nvcc's own steps run one by one, as it would run them: what belongs to one
  architecture is kept by itself, and is there when another one is added.
"""
import concurrent.futures
import heapq
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

from objects import Objects, Places, digest, headers_of, write

MIB = 1 << 20

# Bytes that a program takes at most, where it has not been run before.
MEMORY = {"compile": 2 << 30, "nvcc": 5 << 30, "link": 512 * MIB}
# Seconds that it takes, likewise: only the order hangs on them.
SECONDS = {"compile": 20, "nvcc": 60, "link": 1}


# Names of torch's that come with the class of tensors itself.
CORE = {"Tensor", "ScalarType", "Half", "BFloat16", "kFloat", "kHalf", "kBFloat16", "kDouble", "kInt", "kLong", "kByte", "kChar"}

# Below so many bytes g++ spends no time on finding memory that it no longer needs.
NO_COLLECTION = ["--param", "ggc-min-expand=1000", "--param", f"ggc-min-heapsize={1500 << 10}"]


class Failed(Exception):
    """A program that did not end well, with what it said."""

    def __init__(self, title, status, said):
        super().__init__(f"{title}: " + (f"killed by signal {-status}" if status < 0 else f"exit code {status}"))
        self.title, self.said = title, said


class Slots:
    """So many programs at once, within the memory there is. Those wait that take less time."""

    def __init__(self, count, memory):
        self.count, self.memory = count, memory
        self.free, self.waiting, self.used = list(range(1, count + 1)), [], 0
        self.turn, self.number, self.stopped = threading.Condition(), 0, False
        self.ended = 0
        self.begin = time.monotonic()

    def take(self, seconds, memory):
        with self.turn:
            self.number += 1
            me = (-seconds, self.number)
            heapq.heappush(self.waiting, me)
            fits = lambda: self.waiting[0] == me and self.free and (self.used == 0 or self.used + memory <= self.memory)
            while not self.stopped and not fits():
                self.turn.wait()
            self.waiting.remove(me)
            heapq.heapify(self.waiting)
            self.turn.notify_all()
            if self.stopped:
                raise InterruptedError
            self.used += memory
            return self.free.pop(0)

    def give(self, slot, memory):
        with self.turn:
            self.used -= memory
            heapq.heappush(self.free, slot)
            self.turn.notify_all()

    def stop(self):
        """Nothing more is begun."""
        with self.turn:
            self.stopped = True
            self.turn.notify_all()

    def run(self, title, command, seconds, memory, cwd=None, env=None):
        """Runs a program, or calls what is none. Returns what it cost: seconds of wall and
        bytes. What it says is printed whole, after it has ended."""
        slot = self.take(seconds, memory)
        start = time.monotonic()
        try:
            with tempfile.TemporaryFile("w+", errors="replace") as said:
                status, cpu, peak = 0, 0.0, 0
                if callable(command):
                    command()
                else:
                    child = subprocess.Popen(command, shell=isinstance(command, str), cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
                    _, status, usage = os.wait4(child.pid, 0)
                    child.returncode = status
                    cpu, peak = usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10
                end = time.monotonic()
                said.seek(0)
                text = said.read()
        finally:
            self.give(slot, memory)
        if status:
            raise Failed(title, -(status & 127) or status >> 8, text)
        with self.turn:
            self.ended += 1
            span = f"core {slot}, {start - self.begin:.2f} to {end - self.begin:.2f} s, CPU {cpu:.1f} s, {peak // MIB} MiB"
            print(f"{text}job {self.ended}: {span}: {title}", flush=True)
        return end - start, peak


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


def cores():
    """As many as this process may use, or fewer where MAX_JOBS says so."""
    return int(os.environ.get("MAX_JOBS") or len(os.sched_getaffinity(0)))


class Sources:
    """What the files of DeepSpeed say, as far as it decides how they are compiled."""

    def __init__(self, root, torch, objects):
        self.root, self.torch, self.objects = root, torch, objects
        self.texts, self.macros, self.lock = {}, None, threading.Lock()
        self.records = [str(path) for path in pathlib.Path(torch).parent.parent.glob("torch-*.dist-info/RECORD")]

    def text(self, path):
        if path not in self.texts:
            try:
                self.texts[path] = pathlib.Path(path).read_text(errors="replace").replace("\\\n", " ")
            except OSError:
                self.texts[path] = None
        return self.texts[path]

    def own(self, source, include):
        """A source and the files of DeepSpeed that it includes."""
        found, todo = [], [source]
        folders = [i for i in include if i.startswith(self.root + "/")]
        while todo:
            path = todo.pop()
            if path in found or self.text(path) is None:
                continue
            found.append(path)
            for name in re.findall(r'^\s*#\s*include\s*["<]([^">]+)[">]', self.text(path), re.M):
                todo.extend(os.path.normpath(os.path.join(folder, name)) for folder in [os.path.dirname(path), *folders])
        return found

    def lean(self, source, argv, include):
        """The names of the torch/extension.h in lean/ that a source may do with, the least
        first, and why it must be torch's own where there is none.

        A name that is not there is an error, and leads to a second try. A macro that is not
        there is none: so a source must not ask for one that a header of torch defines."""
        own = self.own(source, include)
        texts = [self.text(path) for path in own]
        if not any(re.search(r"#\s*include\s*[<\"]torch/extension\.h", t) for t in texts):
            return [], ""
        asked, known = set(), {a[2:].split("=")[0] for a in argv if a.startswith("-D")}
        for t in texts:
            for condition in re.findall(r"^\s*#\s*(?:if|ifdef|ifndef|elif)\b(.*)", t, re.M):
                asked.update(re.findall(r"[A-Za-z_]\w*", re.sub(r"//.*|/\*.*?\*/", "", condition)))
            known.update(re.findall(r"^\s*#\s*define\s+(\w+)", t, re.M))
        asked = {name for name in asked - known if not name.startswith(("TORCH_VERSION_", "__"))} - {"defined"}
        if asked and asked & self.defined():
            asked &= self.defined()
            return [], "it asks for " + ", ".join(sorted(asked))
        binds = any(re.search(r"\b(PYBIND11_\w+|pybind11|py::|Py[A-Z_]\w+|THP\w+)", t) for t in texts)
        names = {name for t in texts for name in re.findall(r"\b(?:torch|at)::(\w+)", t)}
        levels = ["types"] if names - CORE else ["core", "types"]
        return [level + ("-python" if binds else "") for level in levels], ""

    def defined(self):
        """The names that torch's headers define as macros. To read them all takes a second:
        those of a torch that an installer has put there are kept."""
        with self.lock:
            if self.macros is None:
                self.macros = self._kept() if len(self.records) == 1 else self._defined()
            return self.macros

    def _kept(self):
        file, key = os.path.join(os.environ["DSBUILD_WORK"], "macros"), self.objects.key("macros", self.objects.files.digest(self.records[0]))
        if not self.objects.take(key, [file]):
            write(pathlib.Path(file), " ".join(sorted(self._defined())).encode())
            self.objects.keep(key, [file])
        return set(pathlib.Path(file).read_text().split())

    def _defined(self):
        found = set()
        for path in pathlib.Path(self.torch).rglob("*.h*"):
            found.update(re.findall(rb"^[ \t]*#[ \t]*define[ \t]+(\w+)", path.read_bytes(), re.M))
        return {name.decode() for name in found}


class Build:
    """The compilations and links of one wheel."""

    def __init__(self, torch, allowed=None):
        env, self.allowed = os.environ, allowed
        self.root = env["DSBUILD_SRC"]
        self.places = Places({
            "src": self.root, "env": env.get("DSBUILD_ENV"), "cuda": env.get("CUDA_HOME"), "tools": env["DSBUILD_TOOLS"], "work": env["DSBUILD_WORK"],
            **{f"beside{i}": at for i, at in enumerate(filter(None, env.get("DSBUILD_BESIDE", "").split(":")))},
        })
        self.objects = Objects(env["DSBUILD_OBJECTS"], self.places, recache=bool(env.get("CCACHE_RECACHE")), passing=[self.root, env["DSBUILD_TOOLS"], env["DSBUILD_WORK"]])
        self.sources = Sources(self.root, torch, self.objects)
        self.slots = Slots(cores(), available())
        self.units, self.links = [], []
        self.reading = threading.Lock()  # texts of nvcc's steps
        self.history = pathlib.Path(env["DSBUILD_OBJECTS"], "history.json")
        try:
            self.known = json.loads(self.history.read_text())
        except (OSError, ValueError):
            self.known = {}
        # What decides about a result beside the command: the compiler and what stands before it.
        self.compilers = [self.compiler(env["DSBUILD_CC"]), self.compiler(env["DSBUILD_CXX"])]
        self.compilers += [self.objects.files.digest(os.path.join(env["DSBUILD_TOOLS"], name)) for name in ("cxx", "nvcc")]
        self.compilers += [self.places.named(env.get(name, "")) for name in ("DSBUILD_CPU", "DSBUILD_KEEP_DEBUG", "DSBUILD_NVCC_NAMES", "CPATH", "SOURCE_DATE_EPOCH")]
        self.nvcc_is = None

    def compiler(self, program):
        """What a compiler is: its version and the bytes of what does the work."""
        ask = lambda *words: subprocess.run([program, *words], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        return [ask("-dumpfullversion"), ask("-dumpmachine"), *(self.objects.files.digest(ask("-print-prog-name=" + name)) for name in ("cc1plus", "cc1", "as"))]

    def nvcc(self):
        """The same of nvcc, whose version names its very build."""
        if self.nvcc_is is None:
            home = os.environ["CUDA_HOME"]
            said = subprocess.run([home + "/bin/nvcc", "-V"], stdout=subprocess.PIPE, text=True, check=True).stdout
            tools = ["bin/nvcc", "bin/cudafe++", "bin/ptxas", "bin/fatbinary", "nvvm/bin/cicc"]
            self.nvcc_is = [said, *(self.objects.files.digest(os.path.join(home, tool)) for tool in tools)]
        return self.nvcc_is

    def expected(self, title, kind):
        return self.known.get(title, (SECONDS[kind], MEMORY[kind]))

    def spend(self, title, command, kind, before=0, **how):
        """Runs a program where there is room, and learns from it what it takes. before is
        how long the rest takes that waits for it."""
        seconds, memory = self.expected(title, kind)
        took, peak = self.slots.run(title, command, seconds + before, memory, **how)
        self.known[title] = (round(took, 1), peak or memory)

    # What torch gives.

    def add(self, folder):
        """Takes the compilations of the build.ninja in a folder."""
        rules = subprocess.run(["ninja", "-t", "compdb", "compile", "cuda_compile"], cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout
        for entry in json.loads(rules):
            self.units.append(Unit(self, shlex.split(entry["command"]), entry["directory"], entry["file"], entry["output"]))

    def run(self):
        """Compiles and links all."""
        print(f"{len(self.units)} sources, {self.slots.count} parallel jobs, in {self.slots.memory // MIB} MiB of memory", flush=True)
        done = {}
        with concurrent.futures.ThreadPoolExecutor(max(1, len(self.units) + len(self.links))) as pool:
            for unit in sorted(self.units, key=lambda u: -self.expected(u.title, u.kind)[0]):
                done[unit.object] = pool.submit(unit.compile)
            running = list(done.values())
            running += [pool.submit(self.link, title, call, [done[o] for o in objects if o in done]) for title, objects, call in self.links]
            try:
                for future in concurrent.futures.as_completed(running):
                    future.result()
            except BaseException as e:
                self.slots.stop()
                if isinstance(e, Failed):
                    sys.exit(f"{e.said}\nerror: {e}")
                raise
        self.finish()

    def link(self, title, call, objects):
        for future in objects:
            future.result()
        self.spend(f"link {title}", call, "link", before=1e6)

    def finish(self):
        write(self.history, json.dumps(self.known).encode())
        self.objects.files.save()
        self.objects.prune()
        taken = sum(unit.taken for unit in self.units)
        print(f"objects: {taken} from the cache, {len(self.units) - taken} compiled", flush=True)


class Unit:
    """The compilation of one source."""

    def __init__(self, build, argv, cwd, source, output):
        self.build, self.cwd = build, cwd
        self.source, self.object = os.path.join(cwd, source), os.path.join(cwd, output)
        self.cuda = os.path.basename(argv[0]) == "nvcc"
        self.taken = False
        self.kind = "nvcc" if self.cuda else "compile"
        self.title = self.name = os.path.relpath(self.source, build.root)
        archs = [a.rpartition("=")[2] for a in argv if a.startswith("-gencode")]
        if archs:
            self.title += " for " + ", ".join(archs)
        argv = with_standard(argv, os.environ.get("DSBUILD_CXX_STANDARD", ""))
        self.argv = without(argv, {"-MMD": 0, "-MF": 1, "--generate-dependencies-with-compile": 0, "--dependency-output": 1, "-o": 1, "-c": 0, source: 0})
        self.include = [os.path.normpath(a[2:]) for a in argv if a.startswith("-I")]

    def compile(self):
        os.makedirs(os.path.dirname(self.object), exist_ok=True)
        # The stable ABI's header has nothing to leave out.
        levels, why = ([], "") if self.build.allowed else self.build.sources.lean(self.source, self.argv, self.include)
        if why:
            print(f"{self.name}: with torch's own header: {why}", flush=True)
        # Whether it compiles with a lean one is kept like an object.
        refused = {level: self.key("refused", level) for level in levels}
        levels = [level for level in levels if not self.build.objects.take(refused[level], [], self.include)]
        failed = []
        for level in [*levels, ""]:
            try:
                headers = self.made(level)
                break
            except Failed:
                if not level:
                    raise
                failed.append(level)
        for lesser in failed:
            self.build.objects.keep(refused[lesser], [], headers)
        if failed and not level:
            print(f"{self.name}: with torch's own header: the small one is not enough", flush=True)

    def uses(self, pattern):
        """Whether the source, or a file of DeepSpeed that it includes, has a pattern."""
        sources = self.build.sources
        return any(re.search(pattern, sources.text(path)) for path in sources.own(self.source, self.include))

    def key(self, *more):
        command = [self.build.places.named(a) for a in self.argv]
        tools = [*self.build.compilers, *(self.build.nvcc() if self.cuda else [])]
        return self.build.objects.key(tools, command, self.name, self.build.objects.files.digest(self.source), *[self.build.places.named(m) for m in more])

    def made(self, lean):
        """Takes the object or makes it. Returns the headers that were read, where it made it."""
        key = self.key("object", lean)
        if self.build.objects.take(key, [self.object], self.include):
            self.taken = True
            return []
        argv = [self.argv[0], *(["-I" + os.path.join(os.environ["DSBUILD_LEAN"], lean)] if lean else []), *self.argv[1:]]
        if self.cuda and not os.environ.get("DSBUILD_CCACHE"):
            headers = Nvcc(self, argv).run()
        else:
            headers = self.plainly(argv)
        if self.build.allowed:
            self.build.allowed(headers)
        self.build.objects.keep(key, [self.object], headers)
        return headers

    def plainly(self, argv):
        """Compiles by one command. Returns the headers that were read."""
        depfile = self.object + ".d"
        command = [*argv, *([] if self.cuda else NO_COLLECTION), "-MD", "-MF", depfile, "-c", self.source, "-o", self.object]
        self.build.spend(self.title, command, self.kind, cwd=self.cwd)
        return headers_of(depfile, self.cwd)


class ArchList:
    """The architectures that a source is compiled for, in the texts that nvcc's steps read
    and write.

    The libraries below thrust:: and cub:: put them into the name of an inline namespace, and
    torch's headers bring those into every source. So nothing would be the same when an
    architecture is added, though nothing else has changed. In a general text a
    placeholder stands for the list: in that name, also where it is part of another one,
    after its length, and in one expression of cub's. A source that uses those libraries itself
    is compiled for its very list."""

    LIST, LENGTH = b"@ARCHS@", b"@LENGTH@"
    EXPRESSION = b"runtime_to_compiletime"

    def __init__(self, command, exact=False):
        """The list in a command; exact: of a source for which it may decide more."""
        listed = None if exact else re.search(r"-D__CUDA_ARCH_LIST__=([\d,]+)", command)
        self.numbers = listed[1].split(",") if listed else []
        self.names = "_".join(self.numbers)

    def general(self, text):
        if not self.numbers:
            return text
        for name in sorted(set(re.findall(rb"_V_\d+_SM_", text))):
            whole = name + self.names.encode()
            text = text.replace(b"%d%s" % (len(whole), whole), self.LENGTH + name + self.LIST)
            text = re.sub(re.escape(whole) + rb"(?![\w])", name + self.LIST, text)
        # The list stands there as it was expanded, with marks of lines around it, which hold
        # whole paths.
        listed = re.compile(rb"\b" + rb",\s*".join(n.encode() for n in self.numbers) + rb"\b")
        return re.sub(self.EXPRESSION + rb"\s*<\s*1\s*,[^>]{0,9999}>", lambda found: listed.sub(self.LIST, found[0], 1), text)

    def special(self, text):
        for name in sorted(set(re.findall(rb"_V_\d+_SM_(?=@ARCHS@)", text))):
            whole = name + self.names.encode()
            text = text.replace(self.LENGTH + name + self.LIST, b"%d%s" % (len(whole), whole)).replace(name + self.LIST, whole)
        return text.replace(self.LIST, ", ".join(self.numbers).encode())

    def independent(self, text):
        """Whether a result is the same for another list, but for the name."""
        return self.LIST not in text and self.special(self.general(text)) == text and re.search(rb"\d" + self.EXPRESSION, text) is None


class Nvcc:
    """What nvcc does with one source, step by step: preprocess for each architecture and for
    the host; cudafe++, which takes host and device code apart; for each architecture cicc and
    ptxas; fatbinary, which joins their results; the host's compiler."""

    def __init__(self, unit, argv):
        self.unit, self.argv, self.build = unit, argv, unit.build
        self.dir = unit.object + ".steps"
        self.stem = pathlib.Path(unit.source).stem

    def run(self):
        os.makedirs(self.dir, exist_ok=True)
        env, steps = self.plan()
        if not steps:
            return self.unit.plainly(self.argv)
        self.env, self.archs = env, ArchList(steps["preprocess"][0], exact=self.unit.uses(r"\b(cub|thrust)\b"))
        # Names that hold one architecture, of the last, stand for the host.
        last = re.search(r'--gen_c_file_name "?(?:\./)?([^" ]*)\.cudafe1\.cpp', steps["cudafe++"][0])[1]
        mine = lambda command: command.replace(last + ".cudafe1.", self.stem + ".host.cudafe1.")
        with concurrent.futures.ThreadPoolExecutor(len(steps["preprocess"])) as pool:
            headers = set()
            for found in pool.map(self.preprocess, steps["preprocess"]):
                headers.update(found)
            self.kept(mine(steps["cudafe++"][0]), [self.stem + ".cpp4.ii"], [f"{self.stem}.host.cudafe1.cpp", self.named(r"module_id_file_name", steps["cudafe++"][0])], "host and device code")
            for job in [pool.submit(self.device, device) for device in steps["device"]]:
                job.result()
        stub = f"{last}.cudafe1.stub.c"
        os.replace(os.path.join(self.dir, stub), os.path.join(self.dir, f"{self.stem}.host.cudafe1.stub.c"))
        self.step(steps["fatbinary"][0], "join")
        self.step(" ".join([mine(steps["host"][0]), *NO_COLLECTION]), "host")
        os.replace(os.path.join(self.dir, "object.o"), self.unit.object)
        for file in os.scandir(self.dir):
            os.unlink(file.path)
        return sorted(headers)

    def plan(self):
        """What nvcc would run: its variables, and the commands by what they do; none
        where it would do something else than is known here."""
        command = [*self.argv, "--dryrun", "--keep", "--keep-dir", ".", "-c", self.unit.source, "-o", "object.o"]
        said = subprocess.run(command, cwd=self.dir, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        env, found = {**os.environ, "DSBUILD_IN_NVCC": "1"}, {"preprocess": [], "cudafe++": [], "cicc": [], "ptxas": [], "fatbinary": [], "host": []}
        for line in said.stdout.splitlines():
            line = line[3:] if line.startswith("#$ ") else "?"
            variable = re.match(r"(\w+)=(.*)", line)
            program = os.path.basename((shlex.split(line) or [""])[0])
            if variable:
                env[variable[1]] = variable[2].strip()
            elif program in ("rm", "--", "erase"):
                pass
            elif program in found:
                found[program].append(line)
            elif program in ("gcc", "g++", "cc", "c++") and " -E " in line:
                found["preprocess"].append(line)
            elif program in ("gcc", "g++", "cc", "c++") and " -c " in line:
                found["host"].append(line)
            else:
                return env, None
        devices = []
        for cicc in found["cicc"]:
            ptx = output(cicc)
            devices.append([cicc, *(line for line in found["ptxas"] if ptx in shlex.split(line))])
        whole = all(len(found[name]) == 1 for name in ("cudafe++", "fatbinary", "host")) and devices
        whole = whole and all(f"--{option} " in c for option in ("module_id_file_name", "stub_file_name", "gen_c_file_name") for c in found["cudafe++"] + found["cicc"])
        whole = whole and all(re.search(r"-arch[= ]\w+", c) for c in found["cicc"] + found["ptxas"])
        if said.returncode or not whole or sum(map(len, devices)) != len(found["cicc"]) + len(found["ptxas"]):
            return env, None
        return env, {**found, "device": devices}

    def preprocess(self, command):
        depfile = output(command) + ".d"
        self.step(f"{command} -MD -MF {depfile}", "preprocess")
        return headers_of(os.path.join(self.dir, depfile), self.dir)

    def device(self, commands):
        """The code of one architecture."""
        arch = re.search(r"-arch[= ](\w+)", commands[0])[1]
        ii = next(word for word in shlex.split(commands[0]) if word.endswith(".ii"))
        ptx, module = output(commands[0]), self.named("module_id_file_name", commands[0])
        self.kept(commands[0], [ii, module], [self.named("stub_file_name", commands[0]), ptx], arch)
        for command in commands[1:]:
            self.kept(command, [ptx], [output(command)], re.search(r"-arch[= ](\w+)", command)[1], binary=True)

    def kept(self, command, inputs, outputs, what, binary=False):
        """A step whose results are kept by its inputs: all but the list of architectures,
        where that decides nothing but a name (ArchList)."""
        files = [os.path.join(self.dir, file) for file in outputs]
        key = self.key(command, inputs, binary)
        if self.build.objects.take(key, files):
            for file in [] if binary else files:
                self.rewrite(file, file, self.archs.special)
            return
        exact = self.build.objects.key("step of one list", key, self.archs.names)
        if not binary and self.build.objects.take(exact, files):
            return
        self.step(command, what)
        if binary:
            self.build.objects.keep(key, files)
        elif all(self.archs.independent(pathlib.Path(file).read_bytes()) for file in files):
            for file in files:
                self.rewrite(file, file + ".general", self.archs.general)
            self.build.objects.keep(key, [file + ".general" for file in files])
        else:
            self.build.objects.keep(exact, files)

    def key(self, command, inputs, binary):
        general = (lambda data: data) if binary else self.archs.general
        said = self.build.places.named(re.sub(r"\.compute_\w+(?=\.)", "", command))
        # One text after the other: they are large, and many sources come to this at once.
        with self.build.reading:
            digests = [digest(general(pathlib.Path(self.dir, file).read_bytes())) for file in inputs]
        return self.build.objects.key("step", self.build.nvcc(), said, digests)

    @staticmethod
    def rewrite(file, to, change):
        pathlib.Path(to).write_bytes(change(pathlib.Path(file).read_bytes()))

    def step(self, command, what):
        rest = self.build.expected(self.unit.title, "nvcc")[0] if what != "host" else 0
        self.build.spend(f"{self.unit.name}: {what}", command, "nvcc", before=rest, cwd=self.dir, env=self.env)

    @staticmethod
    def named(option, command):
        words = shlex.split(command)
        return words[words.index("--" + option) + 1]


def output(command):
    words = shlex.split(command)
    return words[words.index("-o") + 1]


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


def pool(extensions, allowed=None):
    """Makes torch's build_ext (a class) compile in one pool. extensions is the module
    torch.utils.cpp_extension. allowed, where sources may not read every header, is given
    those that one has read."""
    command = extensions.BuildExtension
    original = command.build_extensions

    def build_extensions(self):
        build = Build(str(pathlib.Path(extensions.__file__).parent.parent / "include"), allowed)
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
