"""Follows the probe: lists the environments of a node."""
import os

from dsbuild_node.controller import REQUEST, emit
from dsbuild_node.files import is_locked
from dsbuild_node.journal import BUSY
from dsbuild_node.places import (
    CURRENT, HOME, PLACE, PREVIOUS, ROOT, describe, last_change, mark_of, stored, target, unfinished_switch, unsafe, whole_of)
from dsbuild_node.probe import file_system, free, listed
from dsbuild_node.view import existing, seen_by_node


def room():
    """The free space for the environments, and whether this user may write there."""
    place = existing(ROOT)
    return free(place), os.access(place, os.W_OK)


def leftovers():
    """Whether an interrupted run has left files."""
    own, names = listed(HOME), listed(PLACE)
    folders = [n for n in names if os.path.isdir(os.path.join(PLACE, n)) and not os.path.islink(os.path.join(PLACE, n))]
    return any(n == "inbox" or n.startswith("run-") for n in own) or "change.json" in names or not all(mark_of(n) for n in folders)


def follow(_):
    """Run after the probe has found its facts."""
    danger, (bytes_free, writable) = unsafe(), room()
    left, last, cut = leftovers(), last_change(), unfinished_switch()
    if left and last and is_locked(os.path.join(HOME, "lock")):
        last.update(BUSY)
    emit({"unsafe": danger} if danger else {"looked": {
        "current": describe(target(CURRENT)), "previous": describe(str(cut.get("previous") or "") if cut else target(PREVIOUS)), "last": last,
        "ready": [d for d in REQUEST["digests"] if whole_of(d)], "have": stored(REQUEST["files"]), "free": bytes_free, "writable": writable,
        "leftovers": left, "place": PLACE, "file_system": file_system(PLACE),
        "seen": seen_by_node(existing(PLACE)), "seen_at": existing(PLACE)}})
