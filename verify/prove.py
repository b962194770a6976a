# Proves that this node runs the wanted wheel, as a training job of this user
# would find it. Changes nothing. What loads ops is in ops.py.


def check_files(place, request):
    """RECORD must be the one that was installed, and every file what it says."""
    info = dist_info([place])
    if info is None or record_rows(info) is None:
        raise Failed("%s has no DeepSpeed with a RECORD" % place, "deploy-again")
    version = metadata_version(info)
    if version != request["version"]:
        raise Failed("DeepSpeed %s is installed, not %s" % (version, request["version"]), "deploy-again")
    if record_sha256(info) != request["record"]:
        raise Failed("%s/RECORD is not that of the wheel" % info, "other-installation")
    wrong = altered(info)
    if wrong:
        raise Failed("files differ from RECORD: %s" % ", ".join(wrong), "deploy-force")
    return version


def check_along(request):
    """What was installed with the wheel must be what this user finds."""
    for name, want in sorted(request.get("along", {}).items()):
        check_found(name, want)


def prove(request):
    place = check_place()
    result = {"version": check_files(place, request), "torch": "", "cuda": ""}
    check_along(request)
    if request["level"] == "load":
        result.update(check_ops(place, request))
    return result
