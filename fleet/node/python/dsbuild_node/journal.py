"""The journals on a node, one for each place, with a line of JSON for each change; and the form in which the
controller gets the last change."""
from dsbuild_node.files import last_line, open_regular, read_json

LAST = {"runs": [], "interrupted": False, "undone": False, "wrong": "", "advice": ""}
BUSY = {"wrong": "another deploy is changing this environment", "advice": "wait"}


def last_entry(path):
    """The last entry of a journal, {} if there is none. Fails with an OSError or a ValueError if it cannot be read."""
    try:
        with open(open_regular(path), "rb") as f:
            entry = read_json(last_line(f)[0] or b"{}")
    except FileNotFoundError:
        return {}
    if not isinstance(entry, dict):
        raise ValueError("no entry")
    return entry


def is_run(run):
    """Whether a description of a run has its parts."""
    return isinstance(run, dict) and all(isinstance(run.get(key), str) for key in ("run", "at", "by"))
