"""Finds the processes that use the environments of a name, as this node sees their folder."""
import os

from dsbuild_node.controller import emit
from dsbuild_node.in_use import users
from dsbuild_node.places import CURRENT, PLACE, listed_folders, python_of, site_of, target


def main():
    found = {name: users(os.path.join(PLACE, name), [os.path.realpath(site_of(os.path.join(PLACE, name)))]) for name in listed_folders(PLACE)}
    current = target(CURRENT)
    emit({"place": PLACE, "current": current, "python": python_of(os.path.join(PLACE, current)) if current else "", "users": {name: used for name, used in found.items() if used.get("in_use")}})
