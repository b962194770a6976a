"""Check that a training job of this user would find the wanted wheel on this node. Changes nothing. As a program it runs in
a separate process, which imports what a job would import."""
from dsbuild_node.controller import REQUEST, emit
from dsbuild_node.distributions import dist_info, metadata_version, record_sha256
from dsbuild_node.import_check import Failed, check_found, check_place, lacking
from dsbuild_node.record import altered, record_rows


def check_files(place, request):
    """Check that RECORD is the installation's and every file matches it."""
    info = dist_info([place])
    if info is None or record_rows(info) is None:
        raise Failed("no DeepSpeed with a RECORD in %s" % place, "deploy-again")
    version = metadata_version(info)
    if version != request["version"]:
        raise Failed("DeepSpeed %s is installed, not %s" % (version, request["version"]), "deploy-again")
    if record_sha256(info) != request["record"]:
        raise Failed("%s/RECORD does not match the wheel's" % info, "other-installation")
    wrong = altered(info)
    if wrong:
        raise Failed("files differ from RECORD: %s" % ", ".join(wrong), "deploy-force")
    return version


def check_extra_wheels(request):
    """This user must find the packages that dsbuild installed with the wheel."""
    for name, want in sorted(request.get("extra_wheels", {}).items()):
        check_found(name, want)


def check(request, load_ops=None):
    """Return the versions that are found. load_ops, if set, loads the ops too."""
    place = check_place()
    result = {"version": check_files(place, request), "torch": "", "cuda": ""}
    check_extra_wheels(request)
    if load_ops:
        result.update(load_ops(place, request))
    return result


def main():
    from dsbuild_node.ops import check_ops

    try:
        emit({"verified": check(REQUEST, check_ops if REQUEST["level"] == "load" else None)})
    except Failed as e:
        emit({"failed": str(e)[:2000], "advice": e.advice})
    except Exception as e:
        emit({"failed": "import deepspeed failed: %s: %s" % (type(e).__name__, str(e)[:2000]), "advice": lacking(e)})
