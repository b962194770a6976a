# What deploy and verify prove alike: that an import finds the DeepSpeed of this
# environment, and that its ops load. Changes nothing.


class Failed(Exception):
    def __init__(self, why, hint=""):
        Exception.__init__(self, why)
        self.hint = hint


def shadow_hint(place):
    """What to do about another DeepSpeed that wins over the installed one."""
    import site

    if place == os.path.realpath(site.getusersitepackages()):
        return "it is in this user's own packages: there run %s -m pip uninstall deepspeed, or set PYTHONNOUSERSITE=1" % sys.executable
    for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        if entry and os.path.realpath(entry) == place:
            return "PYTHONPATH puts it first: take %s out" % entry
    return "remove it, or take its folder off sys.path"


def check_place():
    """The package that an import finds must be the one that was installed."""
    import importlib.util

    spec = importlib.util.find_spec("deepspeed")
    if spec is None or not spec.origin:
        raise Failed("import deepspeed finds nothing", "was it removed since?")
    package = os.path.dirname(os.path.realpath(spec.origin))
    place = os.path.dirname(package)
    if place not in sites():
        raise Failed("import deepspeed finds %s, not the one installed in %s" % (package, sites()[0]), shadow_hint(place))
    return place


def check_found(name, want):
    """A distribution must be what this user finds under its name."""
    from importlib import metadata

    try:
        dist = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        raise Failed("%s %s was installed, but is not found" % (name, want))
    place = os.path.realpath(str(dist.locate_file("")))
    if plain(dist.version) != plain(want):
        raise Failed("%s %s was installed, but %s of %s is found" % (name, want, dist.version, place), shadow_hint(place))


def plain(version):
    """A version as PEP 440 compares it, near enough for two spellings of one."""
    return version.lower().replace("-", ".").replace("_", ".")


def without_compiler(do):
    """Does what loads ops where none can be compiled, and fails if one was."""
    import shutil

    # A place of its own that is not made: an op that kills this process with an
    # illegal instruction leaves nothing behind. (tempfile would try the folder out
    # with a file.)
    scratch = os.path.join(os.environ.get("TMPDIR", "/tmp"), "dsbuild-verify-" + os.urandom(16).hex())
    os.environ["TORCH_EXTENSIONS_DIR"] = scratch
    os.environ["CC"] = os.environ["CXX"] = "/bin/false"
    try:
        result = do()
        if os.path.exists(scratch):
            raise Failed("loading the ops compiled something: %s" % ", ".join(sorted(os.listdir(scratch))[:5]))
        return result
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def load_op(op, place):
    """Loads one op, and only from the wheel."""
    from deepspeed.git_version_info import installed_ops
    from deepspeed.ops.op_builder.all_ops import ALL_OPS

    if not installed_ops.get(op):
        raise Failed("op %s is not in the installed wheel" % op)
    builder = ALL_OPS.get(op)
    if builder is None:
        raise Failed("op %s: this DeepSpeed has no builder of that name for its accelerator" % op, "is DS_ACCELERATOR set on this node?")

    def never(*_, **__):
        raise Failed("op %s would be compiled on this node instead of loaded" % op, "torch, CUDA or the accelerator differ from the wheel's")

    builder.jit_load = never
    try:
        module = builder.load()
    except Failed:
        raise
    except Exception as e:
        raise Failed("op %s does not load: %s: %s" % (op, type(e).__name__, e))
    found = os.path.realpath(getattr(module, "__file__", None) or "")
    if not found.startswith(place + os.sep):
        raise Failed("op %s was loaded from %s" % (op, found or "nowhere"))
