# Proves that this node runs the wanted wheel, as a training job of this user
# would find it. Changes nothing.


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


def check_files(place):
    """RECORD must be the one that was installed, and every file what it says."""
    info = dist_info([place])
    if info is None or record_rows(info) is None:
        raise Failed("%s has no DeepSpeed with a RECORD" % place, "deploy again")
    version = metadata_version(info)
    if version != REQUEST["version"]:
        raise Failed("DeepSpeed %s is installed, not %s" % (version, REQUEST["version"]), "deploy again")
    if record_sha256(info) != REQUEST["record"]:
        raise Failed("%s/RECORD is not that of the wheel" % info, "this node sees another installation, or something changed it; deploy again")
    wrong = altered(info)
    if wrong:
        raise Failed("files differ from RECORD: %s" % ", ".join(wrong), "something changed them after the installation; deploy with --force")
    return version


def check_along():
    """What was installed with the wheel must be what this user finds."""
    from importlib import metadata

    for name, want in sorted(REQUEST.get("along", {}).items()):
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


def check_ops(place):
    """Every op must load from the wheel, and nothing may be compiled."""
    import tempfile

    # A place of its own that is not made: an op that kills this process with an
    # illegal instruction leaves nothing behind.
    scratch = os.path.join(tempfile.gettempdir(), "dsbuild-verify-" + os.urandom(16).hex())
    os.environ["TORCH_EXTENSIONS_DIR"] = scratch
    os.environ["CC"] = os.environ["CXX"] = "/bin/false"
    try:
        import torch
        import deepspeed

        if plain(deepspeed.__version__) != plain(REQUEST["version"]):
            raise Failed("deepspeed.__version__ is %s, not %s" % (deepspeed.__version__, REQUEST["version"]))
        for op in REQUEST["ops"]:
            emit({"op": op})
            load_op(op, place)
        if os.path.exists(scratch):
            raise Failed("loading the ops compiled something: %s" % ", ".join(sorted(os.listdir(scratch))[:5]))
        return {"torch": torch.__version__.split("+")[0], "cuda": torch.version.cuda or ""}
    finally:
        import shutil

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


def verify():
    place = check_place()
    result = {"version": check_files(place), "torch": "", "cuda": ""}
    check_along()
    if REQUEST["level"] == "load":
        result.update(check_ops(place))
    return result


try:
    emit({"verified": verify()})
except Failed as e:
    emit({"failed": str(e)[:2000], "hint": e.hint})
except Exception as e:
    emit({"failed": "import deepspeed fails: %s: %s" % (type(e).__name__, str(e)[:2000]), "hint": ""})
