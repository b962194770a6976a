"""A pip for the environments of tests: it installs the wheels that it is given, and replaces what is there of
the same name. It leaves the files that pip leaves, which TestQuickPip proves, in a tenth of pip's time."""
import base64
import csv
import glob
import hashlib
import io
import json
import os
import re
import sys
import sysconfig
from urllib.parse import quote
import zipfile

SITE, BIN = sysconfig.get_path("purelib"), sysconfig.get_path("scripts")
COMMAND = """#!%s
# -*- coding: utf-8 -*-
import re
import sys
from %s import %s
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])
    sys.exit(%s())
"""


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def project(metadata):
    """The name and the version in a METADATA."""
    return [re.search(rb"^%s: *(.*?)\r?$" % key, metadata, re.M).group(1).decode("utf-8") for key in (b"Name", b"Version")]


def installed(name):
    """The .dist-info folders of a project in this environment."""
    found = glob.glob(os.path.join(glob.escape(SITE), "*.dist-info", "METADATA"))
    return [os.path.dirname(path) for path in found if canonical(project(read(path))[0]) == name]


def read(path):
    with open(path, "rb") as f:
        return f.read()


def uninstall(info):
    """Removes the files that RECORD lists, and the folders that become empty."""
    with open(os.path.join(info, "RECORD"), newline="", encoding="utf-8") as f:
        paths = [os.path.normpath(os.path.join(SITE, row[0])) for row in csv.reader(f) if row]
    folders = set()
    for path in paths:
        folder, name = os.path.split(path)
        code = glob.glob(os.path.join(glob.escape(folder), "__pycache__", glob.escape(name[:-3]) + ".*.pyc")) if name.endswith(".py") else []
        for file in [path] + code:
            if os.path.lexists(file):
                os.unlink(file)
            folders.add(os.path.dirname(file))
    for folder in sorted(folders, key=len, reverse=True):
        while folder.startswith(SITE + os.sep) and os.path.isdir(folder) and not os.listdir(folder):
            os.rmdir(folder)
            folder = os.path.dirname(folder)


def target(name, parts, pure):
    """Where a member of a wheel goes."""
    if not parts[0].endswith(".data"):
        return os.path.join(SITE if pure else sysconfig.get_path("platlib"), *parts)
    if parts[1] == "headers":
        return os.path.join(sys.prefix, "include", "site", "python%d.%d" % sys.version_info[:2], name, *parts[2:])
    return os.path.join(sysconfig.get_path(parts[1]), *parts[2:])


def write(path, data, mode=0o644):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.lexists(path):
        os.unlink(path)
    with open(path, "wb") as f:
        f.write(data)
    if mode & 0o111:
        os.chmod(path, 0o777 & ~umask() | 0o111)
    return path


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def row(path):
    """The row of RECORD of a file that is not as it was in the wheel."""
    data = read(path)
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode("ascii").rstrip("=")
    return ["sha256=" + digest, str(len(data))]


def commands(text):
    """The commands of an entry_points.txt: name, module, function."""
    for section in re.split(r"^(?=\[)", text, flags=re.M):
        if re.match(r"\[(console|gui)_scripts\]", section):
            yield from re.findall(r"^\s*([^\s=#\[]+)\s*=\s*([\w.]+):([\w.]+)", section, flags=re.M)


def install(wheel, compiled):
    """Installs a wheel and returns its name and version."""
    data = read(wheel)
    z = zipfile.ZipFile(io.BytesIO(data))
    members = [m for m in z.infolist() if not m.is_dir()]
    top = next(m.filename.split("/")[0] for m in members if m.filename.split("/")[0].endswith(".dist-info"))
    pure = b"root-is-purelib: true" in z.read(top + "/WHEEL").lower()
    name, version = project(z.read(top + "/METADATA"))
    for info in installed(canonical(name)):
        uninstall(info)
    recorded = {r[0]: r[1:] for r in csv.reader(io.StringIO(z.read(top + "/RECORD").decode("utf-8"))) if r}
    rows, modules = {}, []
    for m in sorted(members, key=lambda m: ".data/" in m.filename):  # commands come last, as with pip
        if m.filename == top + "/RECORD":
            continue
        parts, content = m.filename.split("/"), z.read(m)
        script = parts[0].endswith(".data") and parts[1] == "scripts" and content.startswith(b"#!python")
        if script:
            content = b"#!" + os.fsencode(sys.executable) + b"\n" + content.partition(b"\n")[2]
        path = write(target(name, parts, pure), content, m.external_attr >> 16)
        rows[path] = row(path) if script else recorded.get(m.filename, ["", ""])
        if path.endswith(".py") and path.startswith(SITE + os.sep):
            modules.append(path)
    info = os.path.join(SITE, top)
    if os.path.exists(os.path.join(info, "entry_points.txt")):
        for command, module, function in commands(read(os.path.join(info, "entry_points.txt")).decode("utf-8")):
            text = COMMAND % (sys.executable, module, function.split(".")[0], function)
            path = write(os.path.join(BIN, command), text.encode("utf-8"), 0o755)
            rows[path] = row(path)
    archive = {"archive_info": {}, "url": "file://" + quote(wheel)}
    for made, text in {"INSTALLER": "pip\n", "REQUESTED": "", "direct_url.json": json.dumps(archive, sort_keys=True)}.items():
        path = write(os.path.join(info, made), text.encode("utf-8"))
        rows[path] = row(path)
    rows[os.path.join(info, "RECORD")] = ["", ""]
    if compiled:
        import py_compile

        rows.update((py_compile.compile(path, doraise=False), ["", ""]) for path in modules)
    out = io.StringIO()
    csv.writer(out).writerows(sorted([os.path.relpath(path, SITE)] + rest for path, rest in rows.items() if path))
    write(os.path.join(info, "RECORD"), out.getvalue().encode("utf-8"))
    return name, version


def main():
    wheels = [os.path.abspath(a) for a in sys.argv[1:] if a.endswith(".whl")]
    try:
        done = [install(wheel, "--no-compile" not in sys.argv) for wheel in wheels]
    except OSError as e:
        sys.exit("ERROR: Could not install packages due to an OSError: %s" % e)
    print("Successfully installed " + " ".join("%s-%s" % d for d in done))


if __name__ == "__main__":
    main()
