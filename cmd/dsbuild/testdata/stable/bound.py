"""What the functions of bound.cpp answer, and with which error they refuse, as JSON: the same as a
module of pybind11 and over the stable ABI.

usage: bound.py LIBRARY            a module of pybind11
       bound.py LIBRARY LOADER     a library of the stable ABI, and the program that loads it"""
import importlib.util
import json
import os
import pathlib
import re
import sys
import types
import zlib

import torch


def loaded(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def library(path, loader=""):
    if not loader:
        return loaded("bound", path)
    module = {"__name__": "bound", "__file__": os.path.join(os.path.dirname(path), "bound.py")}
    loaded("loader", loader).expose(module, {"": zlib.crc32(pathlib.Path(path).read_bytes())})
    return types.SimpleNamespace(**module)


class Number:  # as numpy's are
    def __index__(self):
        return 7


bound, t = library(*sys.argv[1:]), torch.ones(5)
CALLS = [
    ("shape", (2, 3)), ("shape", ()), ("shape", torch.Size([4, 5])), ("shape", (Number(), True)), ("shape", (2**62,)),
    ("shape", [2, 3]), ("shape", 2), ("shape", None), ("shape", (2, "3")), ("shape", (1.5,)), ("shape", (None,)), ("shape", (2**63,)),
    ("given", t, 1, 0.5), ("given", None, None, None), ("given", None, 2, 3), ("given", t, None, None), ("given", t), ("given", 1, 1, 1),
    ("given", None, 1.5, None), ("given", None, "1", None), ("given", None, None, "1"), ("given", [t], None, None), ("given", None, 2**63, None),
    ("present", [t, None, t]), ("present", []), ("present", (None,)), ("present", None), ("present", [1]),
]


def answer(name, given):
    try:
        return getattr(bound, name)(*given)
    except Exception as e:
        return type(e).__name__


answers = [[name, len(given), answer(name, given)] for name, *given in CALLS]
assert bound.same(None) is None and bound.same(t).data_ptr() == t.data_ptr()
answers.append([bound.shape(sizes=(1,)), bound.counter().step(), bound.counter(first=5).step(by=2), bound.counter.__init__.__doc__.strip().splitlines()[-1]])
try:
    bound.counter.__init__(bound.counter.__new__(bound.counter), "x", "y")
except TypeError as e:
    # Versions of pybind11 have other words for the types.
    answers.append([re.sub(r"first: .* =", "first: int =", line) for line in str(e).splitlines() if line.startswith("    1. ")])
print(json.dumps(answers))
