"""Makes wheels of Python projects, and gathers those that others require.

usage: wheels.py with NAME... NAME==VERSION...   companions
       wheels.py bundle                          what they and DeepSpeed require

DSBUILD_ENV, the environment with torch, is used and never changed.
"""
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

ENV = pathlib.Path(os.environ["DSBUILD_ENV"])
IN = pathlib.Path(os.environ["DSBUILD_IN"])
OUT = pathlib.Path(os.environ["DSBUILD_OUT"])
WORK = pathlib.Path(os.environ["DSBUILD_WORK"])
PYTHON = str(ENV / "bin" / "python")
PIP = [PYTHON, "-m", "pip", "--disable-pip-version-check", "-q"]


def normal(name):
    """A name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def from_torch(name):
    """As wheel.IsTorchPackage: torch, and what comes with it."""
    name = normal(name)
    of = ("torch", "triton", "pytorch-triton", "cuda-toolkit", "cuda-bindings", "cuda-pathfinder")
    return name in of or name.startswith("nvidia-") and name != "nvidia-ml-py"


def name_of(wheel):
    return normal(wheel.name.split("-")[0])


def run(*argv, **env):
    subprocess.run(argv, check=True, env={**os.environ, **env})


def tried(*argv):
    """Whether a command succeeds, and what it says."""
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode == 0, done.stdout


def fetch(requirement, out):
    """A wheel of what the index has: its own, or one built from the sources."""
    binary, why = tried(*PIP, "download", "--no-deps", "--only-binary", ":all:", "-d", str(out), requirement)
    if binary:
        return
    sdist = WORK / "sdist" / normal(requirement)
    for isolation in (["--no-build-isolation"], []):
        found, said = tried(*PIP, "download", "--no-deps", "--no-binary", ":all:", *isolation, "-d", str(sdist), requirement)
        if found:
            break
    else:
        sys.exit(f"error: {requirement}: no wheel for this Python, and no sources\n{why}\n{said}")
    (archive,) = sdist.iterdir()
    build(archive, requirement.split("==")[0], requirement.split("==")[1], out)


def unpack(archive):
    """The one folder in a source archive, always at the same place."""
    source = WORK / "src"
    shutil.rmtree(source, ignore_errors=True)
    inside = WORK / "unpacked"
    shutil.rmtree(inside, ignore_errors=True)
    shutil.unpack_archive(str(archive), str(inside))
    (top,) = inside.iterdir()
    top.rename(source)
    return source


def build(archive, name, assumed, out):
    """A wheel of sources, in an environment that sees torch but is not its own."""
    source = unpack(archive)
    python = overlay(build_requires(source))
    made = WORK / "made"
    shutil.rmtree(made, ignore_errors=True)
    # For projects that ask git for their version; others do not look at it.
    run("uv", "build", "-q", "--wheel", "--no-build-isolation", "--python", python, "-o", str(made), str(source),
        SETUPTOOLS_SCM_PRETEND_VERSION=assumed, PATH=os.path.dirname(python) + os.pathsep + os.environ["PATH"])
    (wheel,) = made.glob("*.whl")
    if name_of(wheel) != normal(name):
        sys.exit(f"error: the sources given for {name} are sources of {name_of(wheel)}")
    shutil.copy(wheel, out)


def build_requires(source):
    """What a project wants for building that the environment has not."""
    file = source / "pyproject.toml"
    if not file.exists():
        return []
    try:
        import tomllib
    except ImportError:  # before Python 3.11: pip brings one
        from pip._vendor import tomli as tomllib
    from packaging.requirements import Requirement

    wanted = []
    for text in tomllib.loads(file.read_text(encoding="utf-8")).get("build-system", {}).get("requires", []):
        requirement = Requirement(text)
        try:
            have = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            have = ""
        there = from_torch(requirement.name) or have and requirement.specifier.contains(have, prereleases=True)
        if not there and (requirement.marker is None or requirement.marker.evaluate()):
            wanted.append(text)
    return wanted


def overlay(requires):
    """The Python of an environment over DSBUILD_ENV, with a project's build
    requirements, which never bring another torch."""
    env = WORK / "env"
    shutil.rmtree(env, ignore_errors=True)
    run("uv", "venv", "-q", "--python", PYTHON, str(env))
    python = env / "bin" / "python"
    site = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    pathlib.Path(site, "dsbuild.pth").write_text(sysconfig.get_path("purelib") + "\n")
    if requires:
        run("uv", "pip", "install", "-q", "--python", str(python), "--overrides", without(["torch", "triton"]), *requires)
    return str(python)


def without(names):
    """A file by which uv leaves names out of what it resolves."""
    file = WORK / "without.txt"
    file.write_text("".join(f"{name} ; python_version < '0'\n" for name in names))
    return str(file)


def companions(specs):
    assumed = dict(pair.split("=", 1) for pair in os.environ.get("DSBUILD_ASSUMED", "").split())
    for spec in specs:
        if "==" in spec:
            fetch(spec, OUT)
        else:
            build(IN / "companions" / (spec + ".tar.gz"), spec, assumed[spec], OUT)


def bundle():
    wheels = [*IN.glob("pack/*.whl"), *IN.glob("with/*.whl")]
    asked = WORK / "asked.txt"
    asked.write_text("".join(f"{name_of(w)} @ {w.resolve().as_uri()}\n" for w in wheels))
    resolved = resolve(asked)
    roots = {name_of(w) for w in wheels}
    for name, (version, _) in sorted(needed(resolved, roots).items()):
        fetch(f"{name}=={version}", OUT)
    for wheel in IN.glob("with/*.whl"):
        shutil.copy(wheel, OUT)
    # A node has torch, and nothing else may be lacking.
    left = sorted(n for n in {*resolved, "torch"} if from_torch(n))
    run("uv", "pip", "compile", "-q", "--no-header", "--python", PYTHON, "--no-index", "--find-links", str(OUT),
        "--overrides", without(left), "-o", str(WORK / "closed.txt"), str(asked))


def resolve(asked):
    """name → (version, those that require it) of all that is asked for, with the
    torch of the environment. Where there is a choice it is the version that the
    smoke step has proven."""
    pins, out = WORK / "torch.txt", WORK / "resolved.txt"
    pins.write_text(f"torch=={importlib.metadata.version('torch').split('+')[0]}\n")
    freeze = subprocess.run(["uv", "pip", "freeze", "--python", PYTHON], stdout=subprocess.PIPE, text=True, check=True)
    out.write_text(freeze.stdout)
    run("uv", "pip", "compile", "-q", "--no-header", "--annotation-style", "line", "--python", PYTHON, "-c", str(pins), "-o", str(out), str(asked))
    found = {}
    for line in out.read_text().splitlines():
        match = re.match(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?(?:==(\S+)| @ \S+)[^#]*(?:# via (.*))?$", line)
        if not match:
            sys.exit(f"error: dsbuild does not understand the output of uv: {line}")
        found[normal(match[1])] = (match[2], {normal(v) for v in re.split(r",\s*", match[3] or "")})
    return found


def needed(resolved, roots):
    """What the roots require, directly or not, but not what torch alone does."""
    reached, todo = set(), list(roots)
    while todo:
        parent = todo.pop()
        for name, (_, by) in resolved.items():
            if parent in by and name not in reached | roots and not from_torch(name):
                reached.add(name)
                todo.append(name)
    return {name: resolved[name] for name in reached}


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    if sys.argv[1] == "with":
        companions(sys.argv[2:])
    else:
        bundle()
