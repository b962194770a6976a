"""Installs the wheel of this folder into a temporary folder, compares each of its ops with torch, each in a new
process, and writes one result. It ends with 1 unless every op is compared and within its tolerance."""
import glob
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time

KIT = os.path.dirname(os.path.abspath(__file__))
DEADLINE = time.monotonic() + 470  # of 8 minutes
MOST = 150  # seconds for an op


def only(pattern):
    found = glob.glob(os.path.join(KIT, pattern))
    if len(found) != 1:
        sys.exit("error: this folder has %d files %s, not one" % (len(found), pattern))
    return found[0]


def install(wheel, site):
    packages, python = os.path.join(KIT, "packages"), "%d.%d" % sys.version_info[:2]
    listed = os.path.join(packages, python + ".txt")
    if not os.path.exists(listed):
        sys.exit("error: the kit has no packages for Python %s; set PYTHON to Python 3.10 to 3.14 with torch" % python)
    pip = [sys.executable, os.path.join(only("packages/pip-*.whl"), "pip"), "install", "-qq", "--no-index", "--no-deps", "--no-cache-dir", "--no-compile", "--no-warn-conflicts"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")}
    for what in (["--find-links", packages, "--require-hashes", "--requirement", listed], [wheel]):
        subprocess.run(pip + ["--target", site] + what, check=True, env=dict(env, PIP_CONFIG_FILE=os.devnull))


def compare(op, site, scratch):
    """What compute.py says of an op, or why it failed."""
    env = dict(
        os.environ, DS_ACCELERATOR="cuda", PYTHONDONTWRITEBYTECODE="1", PYTHONPATH=os.pathsep.join([site, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        CC="/bin/false", CXX="/bin/false", TMPDIR=scratch, TORCH_EXTENSIONS_DIR=scratch, TRITON_CACHE_DIR=scratch, CUDA_CACHE_PATH=scratch, USE_PYTORCH_KERNEL_CACHE="0")
    began, told = time.monotonic(), {}
    seconds = max(1, min(MOST, DEADLINE - began))
    try:
        done = subprocess.run([sys.executable, os.path.join(KIT, "compute.py"), op], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=seconds)
        lines = done.stdout.decode(errors="replace").splitlines()
        told = next((json.loads(line) for line in lines if line.startswith('{"op"')), {})
        error = ""
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            error = said[-1] if said else "ended with %d" % done.returncode
            if done.returncode < 0:
                error = "killed by signal %d: %s" % (-done.returncode, error)
        elif not told.get("compared") or not told["file"].startswith(site):
            error = "compared nothing, or loaded %s" % told.get("file")
    except subprocess.TimeoutExpired:
        error = "not done within %.0f s" % seconds
    return dict(told, op=op, error=error, seconds=round(time.monotonic() - began, 1))


def driver():
    try:
        with open("/sys/module/nvidia/version") as f:
            return f.read().strip()
    except OSError:
        return ""


def main(result):
    wheel, ops = only("deepspeed-*.whl"), []
    with open(wheel, "rb") as f:
        digest = hashlib.sha256(f.read()).hexdigest()
    with tempfile.TemporaryDirectory(prefix="dsbuild-gpu-kit-") as scratch:
        site = os.path.join(os.path.realpath(scratch), "site")
        install(wheel, site)
        with open(glob.glob(os.path.join(site, "deepspeed-*.dist-info", "dsbuild.json"))[0]) as f:
            names = json.load(f)["ops"]
        for op in names:
            ops.append(compare(op, site, scratch))
            print("%-24s %s" % (op, ops[-1]["error"] or "ok on %s (compared: %d)" % (ops[-1]["device"], len(ops[-1]["compared"]))), flush=True)
    failed = [o["op"] for o in ops if o["error"]]
    with open(result, "w") as f:
        json.dump({
            "wheel": os.path.basename(wheel), "sha256": digest, "date": time.strftime("%Y-%m-%d", time.gmtime()), "python": sys.version.split()[0],
            "driver": driver(), "ok": not failed, "ops": ops,
        }, f, indent=1)
        f.write("\n")
    print("%d of %d ops compute the same as torch: %s" % (len(ops) - len(failed), len(ops), result))
    sys.exit(1 if failed or not ops else 0)


main(sys.argv[1] if len(sys.argv) > 1 else "result.json")
