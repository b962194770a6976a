"""Whether another account can change a path: the rule is a shell script (package private), which the controller sends."""
import subprocess

from dsbuild_node.controller import REQUEST


def first_unsafe(folder, parts=()):
    """The first part of the path of a folder, or of the parts in it, that another account could change, or ""."""
    script = REQUEST["safe"] + '\nunsafe "$@" || echo "cannot determine who can write to $1"'
    return subprocess.run(["sh", "-c", script, "sh", folder] + list(parts), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE).stdout.decode("utf-8", "replace").strip()
