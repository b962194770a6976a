"""Loads every op of a node's DeepSpeed, regardless of its installer, and names the ops that do not
load. Writes nothing, not even byte code."""
import sys

from dsbuild_node.controller import REQUEST, emit
from dsbuild_node.import_check import Failed, attempt, check_place, lacking
from dsbuild_node.ops import check_ops, load_op


def load(check=load_op):
    try:
        place = check_place()
    except Failed:
        return  # inspect_files.py has reported it
    try:
        check_ops(place, REQUEST, lambda op, place: attempt(lambda: check(op, place), "broken"))
    except Failed:
        raise
    except Exception as e:
        raise Failed("import deepspeed failed: %s: %s" % (type(e).__name__, str(e)[:1000]), lacking(e))


def main():
    sys.dont_write_bytecode = True
    attempt(load, "broken")
    emit({"done": True})
