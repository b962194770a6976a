"""Loads every op of a node's DeepSpeed like load_ops.py, and compares what it computes with torch. Writes nothing,
not even byte code."""
import os
import sys

from dsbuild_node.controller import REQUEST, emit
from dsbuild_node.import_check import Failed, attempt
from dsbuild_node.load_ops import load
from dsbuild_node.ops import load_op


def compare_op(op, place):
    load_op(op, place)
    emit({"op": op, "doing": "computing"})
    from dsbuild_node.compute import NoGPU, Uncompared, compared, device, wrong

    try:
        found, _ = compared(op)
    except (Uncompared, ImportError) as e:  # ImportError: this release of DeepSpeed has another interface
        if isinstance(e, NoGPU) and REQUEST["gpu"]:
            raise Failed("op %s: %s, but the node has one" % (op, e))
        emit({"note": "op %s: not compared: %s" % (op, e)})
        return
    except Exception as e:
        raise Failed("cannot compare op %s: %s: %s" % (op, type(e).__name__, str(e)[:1000]))
    if wrong(found):
        raise Failed("op %s: %s" % (op, wrong(found)))
    worst = max(found, key=lambda c: c["worst"] / (c["most"] or 1))
    emit({"compared": dict(worst, op=op, device=device(op), count=len(found))})


def main():
    sys.dont_write_bytecode = True
    # CUDA and torch keep kernels that they compiled, and torch creates the folder for some when it is imported, except
    # where it exists.
    os.environ.update(CUDA_CACHE_DISABLE="1", USE_PYTORCH_KERNEL_CACHE="0", TORCHINDUCTOR_CACHE_DIR="/proc")
    attempt(lambda: load(compare_op), "broken")
    emit({"done": True})
