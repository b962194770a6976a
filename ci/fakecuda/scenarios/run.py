"""Runs the scenarios of an op of an unpacked wheel: run.py WHEEL OP. record.py sets the environment."""

import importlib
import sys

import harness
import torch

wheel, op = sys.argv[1:]
torch.cuda.init()
importlib.import_module(op).cases(wheel)
harness.case("end", torch.cuda.synchronize)
