"""What the ops of an installed DeepSpeed show to Python, and what they answer without a GPU, as
JSON: the same for a wheel of the stable ABI and one of torch's C++ interface.

usage: exposed.py OP...     PYTHONPATH: the folder with DeepSpeed
       DSBUILD_DRIVER: a library in place of the GPU's driver, where there is none"""
import ctypes
import json
import os
import re
import sys

os.environ["DS_ACCELERATOR"] = "cuda"
import torch  # noqa: E402
from deepspeed.ops.op_builder.all_ops import ALL_OPS  # noqa: E402


def parts(text):
    """The parts of a list between commas that are in no brackets."""
    found, depth = [""], 0
    for c in text:
        depth += c in "([{"
        depth -= c in ")]}"
        if c == "," and not depth:
            found.append("")
        else:
            found[-1] += c
    return [p.strip() for p in found if p.strip()]


def signatures(function, *given):
    """The names of the arguments of each overload, with their defaults, from the words in which a
    call with too many arguments is refused. The types have other words in pybind11's versions."""
    try:
        function(*given, *[object()] * 60)
    except TypeError as e:
        listed = re.findall(r"^    \d+\. [\w.]*\((.*)\)(?: -> .*)?$", str(e), re.M)
    arguments = [[p.partition(":")[0] + "".join(p.partition(" = ")[1:]) for p in parts(one)] for one in listed]
    return ["(" + ", ".join(a) + ")" for a in arguments]


def doc(function):
    """The lines of the documentation, without the signatures that pybind11 adds."""
    lines = [line.strip() for line in (function.__doc__ or "").splitlines()]
    return [line for line in lines if line and line != "Overloaded function." and not re.match(r"(\d+\. )?\w+\(.*\)( -> .*)?$", line)]


def exposed(module):
    """The functions and classes of a module, by name."""
    shown = {}
    for name, value in vars(module).items():
        if name.startswith("__"):
            continue
        if isinstance(value, type) and hasattr(value, "__members__"):
            shown[name] = {k: int(v) for k, v in value.__members__.items()}
        elif isinstance(value, type):
            methods = {k: v for k, v in vars(value).items() if k == "__init__" or not k.startswith("_")}
            shown[name] = {k: [signatures(v, value.__new__(value)), doc(v)] for k, v in methods.items()}
        elif callable(value):
            shown[name] = [signatures(value), doc(value)]
        else:
            shown[name] = int(value)
    return dict(sorted(shown.items()))


def half(*size):
    return torch.linspace(-1, 1, torch.Size(size).numel()).half().reshape(size)


parameter = torch.nn.Parameter(torch.arange(4.0))
raw = torch.arange(16, dtype=torch.uint8)
# What an op is asked without a GPU: the calls whose own checks refuse them, and those that work.
CALLS = {
    # On the CPU; a list too few; lists of different lengths. Without any list DeepSpeed reads past the end.
    "fused_adam": [("multi_tensor_adam", 1, torch.zeros(1), lists, 1e-3, 0.9, 0.99, 1e-8, 1, 1, 1, 0.0) for lists in ([[parameter]] * 4, [[parameter]] * 3, [[parameter]] * 3 + [[]])],
    "random_ltd": [("token_sort_", torch.zeros(1, 1, 1), 1)],
    "transformer": [("forward_fp32", 1, *[torch.zeros(1)] * 14, *[False] * 5)],
    "stochastic_transformer": [("forward_fp16", 1, *[half(1)] * 14, *[False] * 5)],
    "transformer_inference": [("repeat_kv_cache_fp16", 1, 0), ("reset_cache",)],
    "inference_core_ops": [
        ("preprocess_weight", (half(64, 64) * 4).round() / 4), ("preprocess_weight", torch.zeros(4, 4)), ("preprocess_weight", half(8)),
        ("bias_activation", half(2, 2), None, 6), ("bias_activation", half(2, 2), None, 99), ("bias_activation", half(2, 2), torch.zeros(2), 1),
    ],
    "ragged_ops": [
        ("allocate_view_on", parameter, raw, 0), ("allocate_view_like", (2, 2), (1, 2), parameter, raw, 0), ("allocate_view_like", torch.Size([1]), (1,), parameter, raw, 4),
        ("allocate_view_like", [2, 2], (1, 2), parameter, raw, 0), ("allocate_view_like", (2, "2"), (1, 2), parameter, raw, 0),
    ],
    "ragged_device_ops": [
        ("build_atoms", torch.zeros(8, 8, dtype=torch.int64), torch.tensor([40, 1, 0, 0], dtype=torch.int32), torch.tensor([0, 40, 0, 0], dtype=torch.int32), torch.zeros(4, dtype=torch.int64), 16, 16),
        ("build_atoms", None, raw, raw, raw, 16, 16),
    ],
    "cutlass_ops": [("mixed_gemm", half(2, 2), torch.zeros(2, 2), half(2, 2), half(2), None, 8, 0), ("mixed_gemm", half(2, 2), half(2, 2), half(2, 2), half(2), half(2), 5, 0)],
}


def plain(value):
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), list(value.shape), list(value.stride()), value.requires_grad, value.flatten().tolist()]
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def answer(function, given):
    """What a call returns, or the kind of its error: torch's words for its own errors differ."""
    try:
        return plain(function(*given))
    except RuntimeError:  # torch's own AcceleratorError, a RuntimeError, does not cross the stable ABI
        return "RuntimeError"
    except Exception as e:
        return type(e).__name__


def driver():
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        ctypes.CDLL(os.environ["DSBUILD_DRIVER"])


told = {}
for op in sorted(sys.argv[1:], key="gds".__eq__):  # gds last: torch would ask the driver's stand-in for GPUs
    if op == "gds":
        driver()
    module = ALL_OPS[op].load()
    answers = [[name, answer(getattr(module, name), given)] for name, *given in CALLS.get(op, [])]
    told[op] = {"file": os.path.relpath(module.__file__, os.path.dirname(sys.modules["deepspeed"].__file__)), "exposed": exposed(module), "answers": answers}
print(json.dumps(told))
