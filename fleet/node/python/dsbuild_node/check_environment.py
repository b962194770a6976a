"""Compares every file of an environment with RECORD, and its packages with those that were deployed."""
import os

from dsbuild_node.controller import emit
from dsbuild_node.places import CURRENT, PLACE, Whole, mark_of, target, unsafe


def checked(name):
    whole, noted = Whole(os.path.join(PLACE, name)).describe(), mark_of(name).get("packages")
    replaced = [p for p in sorted(whole["packages"]) if isinstance(noted, dict) and noted.get(p, whole["packages"][p]) != whole["packages"][p]]
    return dict(whole, name=name, replaced=replaced)


def main():
    danger, name = unsafe(), target(CURRENT)
    emit({"unsafe": danger} if danger else {"checked": checked(name) if name else None})
