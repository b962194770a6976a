# A probe's errand: looks at the DeepSpeed that a node has, whoever installed it, and
# says all that is wrong with its files. found is what the probe told. Writes nothing.
import hashlib

MOST_FILES = 20000  # of one package; more are not DeepSpeed's
MOST_NAMED = 50  # files of one kind that are named


def some(paths):
    """Some paths for a message, and how many there are."""
    return {"count": len(paths), "first": sorted(paths)[:MOST_NAMED]}


class Files:
    """The files of a distribution, held against its RECORD."""

    def __init__(self, info):
        self.site = os.path.dirname(info)
        self.files = {}  # path below site-packages → sha256
        self.altered, self.missing, self.listed = [], [], set()
        rows = record_rows(info)
        self.bare = rows is None  # it has no RECORD
        for row in rows or []:
            self.compare(row)

    def compare(self, row):
        path = os.path.normpath(row[0])
        algorithm, _, want = (row[1] if len(row) > 1 else "").partition("=")
        self.listed.add(path)
        if algorithm not in ("sha256", "sha384", "sha512"):
            return  # byte code, RECORD itself
        full = os.path.join(self.site, path)
        try:
            digest = file_digest(full, algorithm).digest()
            self.files[path] = (digest if algorithm == "sha256" else file_digest(full).digest()).hex()
        except OSError:
            self.missing.append(path)
            return
        if written(digest) != want.rstrip("="):
            self.altered.append(path)


def walk(place, package):
    """Every file of a package but cached byte code, as paths below place. (os.walk
    and relpath take three times as long.)"""
    folders = [package]
    for folder in folders:
        try:
            with os.scandir(os.path.join(place, folder)) as entries:
                inside = [(entry.name, is_folder(entry), entry.is_symlink()) for entry in entries]
        except OSError:
            continue
        for name, is_dir, is_link in inside:
            path = folder + os.sep + name
            if not is_dir:
                yield path
            elif name != "__pycache__" and not is_link:
                folders.append(path)


def is_folder(entry):
    """Whether an entry is a folder, or a link to one."""
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def look_at_files(info):
    """The package's files, and what of them RECORD does not say."""
    from importlib.machinery import all_suffixes

    known = Files(info)
    unknown = [path for path in walk(known.site, "deepspeed") if path not in known.listed]
    # What an import could find changes what runs; the rest only lies there.
    code = [path for path in unknown if path.endswith(tuple(all_suffixes()))]
    outside = [path for path in known.altered if path.startswith(os.pardir + os.sep)]
    if text(os.path.join(info, "INSTALLER")).strip() == "conda":  # it writes the environment's place into commands
        known.altered = [path for path in known.altered if path not in outside]
    for path in (unknown if known.bare else code)[:MOST_FILES]:
        try:
            known.files[path] = file_digest(os.path.join(known.site, path)).hexdigest()
        except OSError:
            pass
    own = sorted((path, sha256) for path, sha256 in known.files.items() if path.startswith("deepspeed" + os.sep))[:MOST_FILES]
    lines = "".join("%s\0%s\n" % pair for pair in own)
    digest = hashlib.sha256(lines.encode("utf-8", "replace")).hexdigest()
    # A list that another node sent already need not be sent again.
    return {"digest": digest, "files": {} if digest in REQUEST["known"] else dict(own), "altered": some(known.altered), "missing": some(known.missing),
            "unknown": some([] if known.bare else code), "litter": some([] if known.bare else set(unknown) - set(code))}


def noted_by_dsbuild(record):
    """What dsbuild noted when it installed, and whether that is still what is there."""
    noted = load_json(os.path.join(sys.prefix, ".dsbuild", "installed.json"))
    if not isinstance(noted, dict):
        return {}
    kept = {key: str(noted.get(key, "")) for key in ("wheel", "sha256", "version")}
    kept["same"] = bool(record) and noted.get("record") == record
    along = noted.get("along")
    kept["along"] = [w for w in along if isinstance(w, dict)] if isinstance(along, list) else []
    return kept


def look_along(wheels):
    """What became of the wheels that dsbuild installed with DeepSpeed."""
    infos = dict(reversed(list(named_infos())))
    for wheel in wheels:
        name = str(wheel.get("name", ""))
        info = infos.get(name)
        if info is None:
            emit({"wrong": "%s, which dsbuild installed with DeepSpeed, is gone" % name, "hint": "deploy again with --deps bundle"})
            continue
        if record_sha256(info) != wheel.get("record"):
            emit({"remark": "%s was installed with DeepSpeed and has been replaced since" % name})
            continue
        files = Files(info)
        for paths, what in ((files.altered, "are not what RECORD says"), (files.missing, "are missing")):
            if paths:
                emit({"wrong": "files of %s %s: %s" % (name, what, brief(paths)), "hint": "something changed them after the installation; deploy with --force"})
        attempt(lambda: check_found(name, metadata_version(info)))


def brief(paths):
    paths = sorted(paths)
    return ", ".join(paths[:5]) + (" and %d more" % (len(paths) - 5) if len(paths) > 5 else "")


def manifest(info):
    """What dsbuild's manifest says that the wheel was built for, or None."""
    whole = load_json(os.path.join(info, "dsbuild.json"))
    keys = ("name", "version", "ops", "archs", "ptx", "op_archs", "cpu", "python", "torch", "cuda", "glibc", "glibcxx", "cxx11abi")
    return {key: whole[key] for key in keys if key in whole} if isinstance(whole, dict) else None


def look():
    infos = dist_infos(sites())
    if not infos:
        origin = origin_of("deepspeed")
        if origin:
            package = os.path.dirname(os.path.realpath(origin))
            emit({"wrong": "it has no DeepSpeed of its own: an import finds %s" % package, "hint": shadow_hint(os.path.dirname(package))})
        return
    attempt(check_place)
    info = infos[0]
    if len(infos) > 1:
        emit({"wrong": "several DeepSpeeds are registered: %s" % ", ".join(os.path.basename(i) for i in infos),
              "hint": "an installation was cut off: remove both (python -m pip uninstall deepspeed, twice), then deploy again"})
    facts = found["deepspeed"] or installed(False)  # a deploy may have come in between
    record = facts["record"]
    noted = noted_by_dsbuild(record)
    along = noted.pop("along", [])
    looked = {"version": facts["version"], "record": record, "noted": noted or None, "manifest": manifest(info)}
    looked.update(look_at_files(info))
    emit({"looked": looked})
    look_along(along)


look()
emit({"done": True})
