"""Compares a Python that was just unpacked with its archive, and renames it to its final name. That Python
itself runs this program."""
import os
import shutil

from dsbuild_node.controller import REQUEST, emit
from dsbuild_node.interpreter import LIST, altered_python, list_tree, tree_of


def main():
    os.umask(os.umask(0o022) | 0o022)
    work, final = REQUEST["work"], REQUEST["place"]
    lines, old = sorted(list_tree(os.path.join(work, "tree")).values()), work + ".old"
    whole = tree_of(lines) == REQUEST["tree"]
    if whole:
        with open(os.path.join(work, LIST), "wb") as f:
            f.writelines(lines)
        there = os.path.isdir(final)
        if not there or altered_python(final, REQUEST["tree"]):
            try:
                if there:
                    os.rename(final, old)
                os.rename(work, final)
            except OSError:  # another run was faster, perhaps of a node that shares the directory
                if altered_python(final, REQUEST["tree"]):
                    raise
        for path in (work, old):
            shutil.rmtree(path, ignore_errors=True)
    emit({"ready": whole})
