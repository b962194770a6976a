"""Run the scenarios of an op of an unpacked wheel: run.py WHEEL OP. record.py sets the environment."""

import concurrent.futures
import importlib
import sys

import harness
import torch

wheel, op = sys.argv[1:]


def run():
    torch.cuda.init()
    importlib.import_module(op).cases(wheel)
    harness.case("end", torch.cuda.synchronize)


# The memory of a thread that is not the first is mapped, also in a Python that is no position-independent program:
# compare.py knows its addresses as the host's.
concurrent.futures.ThreadPoolExecutor(1).submit(run).result()
