"""What each op of an installed DeepSpeed is on this machine, as JSON: the file that was loaded and how far what it computes is
from torch's, or with which words it is refused.

usage: machine.py COMPUTE OP...     COMPUTE: fleet/node's compute.py"""
import importlib.util
import json
import os
import platform
import sys

import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.ops.op_builder.all_ops import ALL_OPS

spec = importlib.util.spec_from_file_location("compute", sys.argv[1])
compute = importlib.util.module_from_spec(spec)
spec.loader.exec_module(compute)


def answer(op):
    try:
        told = {"file": os.path.basename(ALL_OPS[op].load().__file__)}
        found, _ = compute.compared(op)
    except compute.NoGPU:
        return told
    except Exception as e:
        return {"error": f"{type(e).__name__}: {e}"}
    worst = max(found, key=lambda c: c["worst"] / (c["most"] or 1))
    return dict(told, worst=worst["worst"], most=worst["most"], wrong=compute.wrong(found))


print(json.dumps({
    "torch": torch.__version__, "cuda": torch.version.cuda or "", "python": platform.python_version(), "accelerator": get_accelerator()._name,
    "ops": {op: answer(op) if op in ALL_OPS else {"error": "not offered"} for op in sys.argv[2:]},
}))
