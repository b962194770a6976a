# What deploy and verify prove alike: that an import finds the DeepSpeed of this
# environment. Changes nothing.


class Failed(Exception):
    """Something that went wrong. advice is the code of a hint: dsbuild has the text of
    each code (advice.go), a node sends none. detail is what only this node has to say."""

    def __init__(self, why, advice="", detail=""):
        Exception.__init__(self, why)
        self.advice, self.detail = advice, detail


def shadow_advice(place):
    """The code of the advice against another DeepSpeed that wins over the installed one."""
    import site

    if place == os.path.realpath(site.getusersitepackages()):
        return "shadow-user"
    for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        if entry and os.path.realpath(entry) == place:
            return "shadow-pythonpath"
    return "shadow"


def origin_of(name):
    """The file that an import of a package would run, "" for none: importlib.util
    says the same, and takes longer to import than to answer."""
    for finder in sys.meta_path:
        spec = finder.find_spec(name, None) if hasattr(finder, "find_spec") else None
        if spec is not None:
            return spec.origin or ""
    return ""


def check_place():
    """The package that an import finds must be the one that was installed."""
    origin = origin_of("deepspeed")
    if not origin:
        raise Failed("import deepspeed finds nothing", "removed")
    package = os.path.dirname(os.path.realpath(origin))
    place = os.path.dirname(package)
    if place not in sites():
        raise Failed("import deepspeed finds %s, not the one installed in %s" % (package, sites()[0]), shadow_advice(place))
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
        raise Failed("%s %s was installed, but %s of %s is found" % (name, want, dist.version, place), shadow_advice(place))


def plain(version):
    """A version as PEP 440 compares it, near enough for two spellings of one."""
    return version.lower().replace("-", ".").replace("_", ".")


def attempt(do, kind="wrong"):
    """Does something and says what is wrong, if anything is."""
    try:
        do()
    except Failed as e:
        emit({kind: str(e)[:2000], "advice": e.advice})
