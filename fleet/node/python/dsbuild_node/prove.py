"""Proves an installation in a process of its own, which imports what a training job would import."""
from dsbuild_node.controller import REQUEST, emit
from dsbuild_node.import_check import Failed
from dsbuild_node.ops import check_ops
from dsbuild_node.proof import prove


def main():
    try:
        emit({"verified": prove(REQUEST, check_ops if REQUEST["level"] == "load" else None)})
    except Failed as e:
        emit({"failed": str(e)[:2000], "advice": e.advice})
    except Exception as e:
        emit({"failed": "import deepspeed failed: %s: %s" % (type(e).__name__, str(e)[:2000]), "advice": ""})
