"""Finds the processes that use the environment of this Python, on a node that may share it with others."""
import sys

from dsbuild_node.controller import emit
from dsbuild_node.distributions import sites
from dsbuild_node.in_use import users


def main():
    emit({"place": sites()[0], "current": "", "python": sys.executable, "users": {"": users()}})
