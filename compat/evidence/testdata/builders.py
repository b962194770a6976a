"""Prints the sources and the include folders of each op of a tree of DeepSpeed, as its builders say when they run:
builders.py TREE. Nothing of torch is needed: a stand-in answers whatever is asked of it."""
import json
import os
import sys
import types
from unittest import mock

os.chdir(sys.argv[1])
sys.path.insert(0, os.getcwd())
torch = mock.MagicMock(name="torch", __version__="2.15.0", version=types.SimpleNamespace(cuda="13.2", hip=None))
torch.utils.cpp_extension.CUDA_HOME = "/cuda"
for name in "torch", "torch.cuda", "torch.utils", "torch.utils.cpp_extension", "torch.distributed", "numpy":
    sys.modules[name] = torch if name == "torch" else mock.MagicMock(name=name, CUDA_HOME="/cuda", ROCM_HOME=None)
sys.modules["torch.utils.cpp_extension"] = torch.utils.cpp_extension
os.environ["DS_ACCELERATOR"] = "cuda"

from op_builder.all_ops import ALL_OPS  # noqa: E402

told = {}
for name, builder in ALL_OPS.items():
    try:
        includes = builder.include_paths()
    except RuntimeError:  # of another package
        includes = []
    told[name] = {"class": type(builder).__module__ + "." + type(builder).__name__, "sources": builder.sources(), "includes": includes}
json.dump(told, sys.stdout)
