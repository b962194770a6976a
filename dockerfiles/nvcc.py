"""Makes a CUDA 12.4 root of Debian's package nvidia-cuda-toolkit, without root and without apt.

usage: nvcc.py DIR
       nvcc.py check    only says whether the package can be had

The package has nvcc and the programs that it calls (they need glibc 2.7); headers and
libraries come from Python packages (build.sh). It is known by its sha256, so it does not
matter where it comes from. It is looked for in the file DSBUILD_TOOLKIT_DEB (--nvcc-deb),
beside this script as toolkit.deb, in the folder DSBUILD_DOWNLOADS, on the mirror
DSBUILD_APT_MIRROR, and on those that apt knows here.
"""
import base64
import hashlib
import io
import os
import pathlib
import re
import shutil
import ssl
import subprocess
import sys
import tarfile
import tempfile
import urllib.parse
import urllib.request

PACKAGE = "pool/non-free/n/nvidia-cuda-toolkit/nvidia-cuda-toolkit_12.4.131~12.4.1-2_amd64.deb"
SHA256 = "cd5fe85aee38d108b315f408a688641478f2402622a10c677478eb7a6c4e5319"
ARCHIVE = "http://deb.debian.org/debian"  # Debian's own, where nothing else is known

PROFILE = """TOP              = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH            += $(TOP)/nvvm/bin:$(_HERE_):
INCLUDES        +=  "-I$(TOP)/include" $(_SPACE_)
LIBRARIES        =+ $(_SPACE_) "-L$(TOP)/lib64"
CUDAFE_FLAGS    +=
PTXAS_FLAGS     +=
"""

# Where the package has what, and where a CUDA root does.
PLACES = {
    "usr/lib/nvidia-cuda-toolkit/bin/nvcc": "bin/nvcc-12.4",
    "usr/lib/nvidia-cuda-toolkit/bin/cicc": "nvvm/bin/cicc",
    "usr/lib/nvidia-cuda-toolkit/bin/crt": "bin/crt",
    "usr/lib/nvidia-cuda-toolkit/libdevice": "nvvm/libdevice",
    "usr/bin/fatbinary": "bin/fatbinary-12.4",
    **{f"usr/bin/{name}": f"bin/{name}" for name in ("cudafe++", "ptxas", "nvlink", "bin2c", "cuobjdump")},
}

# nvcc 12.4 ends at 9.0. For a newer GPU it makes PTX for 9.0, of which ptxas of CUDA 12.8
# makes machine code: these two stand before nvcc and before fatbinary, which joins the codes.
NVCC = """#!/bin/sh
# Compiles for 10.0 and 12.0, too: PTX for 9.0, of which ptxas 12.8.93 makes machine code.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
newer= kept= before= dry=
for arg do
    shift
    word=$arg
    case $before in -gencode | --generate-code) word=-gencode=$arg ;; esac
    before=
    case $word in
    -gencode | --generate-code) before=$word; continue ;;
    -gencode=arch=compute_1[0-9][0-9],code=sm_* | --generate-code=arch=compute_1[0-9][0-9],code=sm_*)
        newer="$newer ${word##*=sm_}"
        continue
        ;;
    -gencode=arch=compute_90,code=compute_90) kept=yes ;;
    --dryrun | -dryrun) dry=yes ;;
    esac
    set -- "$@" "$word"
done
[ -n "$newer" ] || exec "$here/nvcc-12.4" "$@"
[ -z "$dry" ] || { echo "nvcc: no list of steps for$newer: they are not nvcc's own alone" >&2; exit 1; }
[ -n "$kept" ] || set -- "$@" -gencode=arch=compute_90,code=compute_90
DSBUILD_NEWER=$newer DSBUILD_KEEP_PTX=$kept exec "$here/nvcc-12.4" "$@"
"""
FATBINARY = """#!/bin/sh
# Adds machine code for the GPUs in DSBUILD_NEWER, made of the PTX for 9.0.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
for arg do
    shift
    case ${DSBUILD_NEWER:+yes},$arg in
    yes,--image3=kind=ptx,sm=90,file=*)
        ptx=${arg##*,file=}
        for sm in $DSBUILD_NEWER; do
            "$here/ptxas-12.8" -m64 --gpu-name="sm_$sm" "$ptx" -o "$ptx.sm_$sm.cubin"
            set -- "$@" "--image3=kind=elf,sm=$sm,file=$ptx.sm_$sm.cubin"
        done
        [ -z "${DSBUILD_KEEP_PTX-}" ] || set -- "$@" "$arg"
        ;;
    *) set -- "$@" "$arg" ;;
    esac
done
exec "$here/fatbinary-12.4" "$@"
"""


def mirrors():
    """The mirrors of Debian, the site's first."""
    found = []
    if os.environ.get("DSBUILD_APT_MIRROR"):
        found.append(os.environ["DSBUILD_APT_MIRROR"].rstrip("/") + "/debian")
    else:
        for file in [pathlib.Path("/etc/apt/sources.list"), *sorted(pathlib.Path("/etc/apt/sources.list.d").glob("*"))]:
            try:
                text = file.read_text(errors="replace")
            except OSError:
                continue
            for line in re.findall(r"^(?:deb|URIs:)\s.*", text, re.M):
                found += re.findall(r"\bhttps?://[^\s\]]+/debian(?=/?(?:\s|$))", line)
        found.append(ARCHIVE)
    return list(dict.fromkeys(found))


def digest(file):
    sha = hashlib.sha256()
    with open(file, "rb") as f:
        for block in iter(lambda: f.read(1 << 20), b""):
            sha.update(block)
    return sha.hexdigest()


def without_password(url):
    return re.sub(r"//[^/@]*@", "//***@", url)


def request(url):
    """A request for a URL, whose user and password go into a header."""
    parts = urllib.parse.urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    headers = {"User-Agent": "dsbuild"}
    if user:
        headers["Authorization"] = "Basic " + base64.b64encode(urllib.parse.unquote(user).encode()).decode()
    return urllib.request.Request(parts._replace(netloc=host).geturl(), headers=headers)


def fetch(to):
    """Downloads the package. Returns why it could not, a line for each mirror."""
    trust = ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE") or None)
    why = []
    for mirror in mirrors():
        try:
            with urllib.request.urlopen(request(f"{mirror}/{PACKAGE}"), timeout=120, context=trust) as answer, open(to, "wb") as f:
                shutil.copyfileobj(answer, f, 1 << 20)
        except (OSError, ValueError) as e:
            why.append(f"{without_password(mirror)}: {without_password(str(e))}")
            continue
        if digest(to) == SHA256:
            return []
        why.append(f"{without_password(mirror)}: other bytes: sha256 {digest(to)}, wanted {SHA256}")
    return why


def downloaded():
    """Where the package is kept; None if it is not."""
    return pathlib.Path(os.environ["DSBUILD_DOWNLOADS"]) / os.path.basename(PACKAGE) if os.environ.get("DSBUILD_DOWNLOADS") else None


def present():
    """The package as a file that is here already; None if it is not."""
    for file in (os.environ.get("DSBUILD_TOOLKIT_DEB"), pathlib.Path(__file__).resolve().with_name("toolkit.deb"), downloaded()):
        if file and os.path.isfile(file) and digest(file) == SHA256:
            return str(file)
    return None


def check():
    """Ends with an error if no mirror answers with the package."""
    if present():
        return
    trust = ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE") or None)
    why = []
    for mirror in mirrors():
        try:
            urllib.request.urlopen(request(f"{mirror}/{PACKAGE}"), timeout=8, context=trust).close()
            return
        except (OSError, ValueError) as e:
            why.append(f"{without_password(mirror)}: {without_password(str(e))}")
    sys.exit("error: " + "; ".join(why))


def package(work):
    """The package as a file."""
    if here := present():
        return here
    kept, file = downloaded(), work / "toolkit.deb"
    why = fetch(file)
    if why:
        sys.exit("\n".join([f"error: no Debian mirror has {os.path.basename(PACKAGE)}:", *("  " + line for line in why),
                            "  DSBUILD_APT_MIRROR names a mirror, --nvcc-deb takes the file"]))
    if kept:
        kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        whole = kept.with_name(f"{kept.name}.{os.getpid()}")
        shutil.copyfile(file, whole)
        os.replace(whole, kept)
    return str(file)


def data(file):
    """The data.tar.xz of a Debian package: an ar archive of a few members."""
    with open(file, "rb") as f:
        if f.read(8) != b"!<arch>\n":
            sys.exit(f"error: {file} is not a Debian package")
        while True:
            head = f.read(60)
            if len(head) < 60:
                sys.exit(f"error: {file} has no data.tar.xz")
            name, size = head[:16].decode().strip().rstrip("/"), int(head[48:58])
            if name == "data.tar.xz":
                return f.read(size)
            f.seek(size + size % 2, io.SEEK_CUR)


def unpack(file, work):
    packed = data(file)
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:xz") as tar:
            for member in tar:
                name = member.name[2:] if member.name.startswith("./") else member.name
                if member.isfile() and any(name == source or name.startswith(source + "/") for source in PLACES):
                    tar.extract(member, work)
    except tarfile.CompressionError:  # a Python without lzma
        subprocess.run(["tar", "-xJ", "-C", str(work)], input=packed, check=True)


def main():
    if sys.argv[1:] == ["check"]:
        check()
        return
    root = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        unpack(package(work), work)
        for source, place in PLACES.items():
            to = root / place
            to.parent.mkdir(parents=True, exist_ok=True)
            if (work / source).is_dir():
                shutil.copytree(work / source, to, dirs_exist_ok=True)
            else:
                shutil.copy2(work / source, to)
    (root / "bin/nvcc.profile").write_text(PROFILE)
    for name, text in (("nvcc", NVCC), ("fatbinary", FATBINARY)):
        (root / "bin" / name).write_text(text)
        (root / "bin" / name).chmod(0o755)


if __name__ == "__main__":
    main()
