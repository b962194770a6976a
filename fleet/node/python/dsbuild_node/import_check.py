"""The proof that deploy and verify share: an import finds the DeepSpeed of this environment. Changes
nothing."""
import os
import sys

from dsbuild_node.distributions import sites
from dsbuild_node.controller import emit


class Failed(Exception):
    """An expected failure. advice is the code of a hint: the node sends the code, and dsbuild
    has its text (advice.go). detail is the part of the message that differs from node to node."""

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


def found_by_import(name):
    """Return the package, or else the module, that an import of a name would run, or "". importlib.util would find the
    same, but importing it takes longer than the answer."""
    for finder in sys.meta_path:
        spec = finder.find_spec(name, None) if hasattr(finder, "find_spec") else None
        if spec is not None:
            origin = os.path.realpath(spec.origin) if spec.origin else ""
            return os.path.dirname(origin) if spec.submodule_search_locations else origin
    return ""


def check_place():
    """Check that an import finds the installed package."""
    package = found_by_import("deepspeed")
    if not package:
        raise Failed("cannot import deepspeed: not found", "removed")
    place = os.path.dirname(package)
    if place not in sites():
        raise Failed("import deepspeed finds %s, not the installation in %s" % (package, sites()[0]), shadow_advice(place))
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
        raise Failed("%s %s was installed, but %s in %s is found" % (name, want, dist.version, place), shadow_advice(place))


def plain(version):
    """A version in a form in which two spellings of one version are equal, almost as in PEP 440."""
    return version.lower().replace("-", ".").replace("_", ".")


def lacking(error):
    """The code of the advice for an import that failed."""
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] not in ("", "deepspeed"):
        return "no-module"
    return "no-permission" if isinstance(error, PermissionError) else ""


def attempt(do, kind="wrong"):
    """Call do, and report its failure."""
    try:
        do()
    except Failed as e:
        emit({kind: str(e)[:2000], "advice": e.advice})
