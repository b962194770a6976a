"""Code that the scenarios share: recorded calls of an op, and tensors.

A case is one call. In the record it begins with the line "case NAME" and ends with "result …" or "error …".
compare.py compares the records of two wheels."""

import contextlib
import ctypes
import importlib
import os
import pathlib
import sys
import types

import torch

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
_record = ctypes.CDLL(None)


def line(text):
    _record.fakecuda_line(text.replace("\n", "\\n").encode())


def shown(value):
    """Describe a result. Of a tensor, omit the elements, which no kernel wrote, and host addresses."""
    if isinstance(value, torch.Tensor):
        place = f"{value.device} at {value.data_ptr():x}" if value.is_cuda else f"{value.device}"
        return (
            f"tensor({list(value.shape)} {list(value.stride())}+{value.storage_offset()} {value.dtype} {place}"
            f" of {value.untyped_storage().nbytes()} grad={value.requires_grad} version={value._version})"
        )
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(shown, value)) + "]"
    return repr(value)


def case(name, function, *args, **kwargs):
    """Call a function and record its result or its error. Return the result, or None."""
    line(f"case {name}")
    try:
        result = function(*args, **kwargs)
    except Exception as error:
        line(f"error {type(error).__module__}.{type(error).__name__}: {error}")
        result = None
    else:
        line("result " + shown(result))
    if error := _record.cudaGetLastError():  # of a launch that the op did not check; torch would tell the next case
        line(f"error left in CUDA: {error}")
    return result


def empty(*shape, dtype=F32, device="cuda"):
    return torch.empty(shape, dtype=dtype, device=device)


def load(wheel, op):
    """Import the module of an op in an unpacked wheel, without DeepSpeed's own packages, which import
    more than the op."""
    places = (f"deepspeed/ops/**/{op}_op.*", f"deepspeed/inference/v2/**/{op}.*", f"deepspeed/inference/v2/kernels{op}.*")
    found = [p for place in places for p in sorted(pathlib.Path(wheel).glob(place)) if p.suffix in (".py", ".so")]
    if not found:
        sys.exit(f"{wheel}: no op {op}")
    parts = found[0].relative_to(wheel).parent.parts
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        if name not in sys.modules:
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__path__ = [os.path.join(wheel, *parts[:depth])]
    return importlib.import_module(".".join((*parts, found[0].name.split(".")[0])))


@contextlib.contextmanager
def refusing(error, what):
    """Make CUDA fail malloc, or launches of kernels with this in their name, with an error number."""
    os.environ["FAKECUDA_REFUSE"] = f"{error}:{what}"
    try:
        yield
    finally:
        del os.environ["FAKECUDA_REFUSE"]


def on_streams_and_devices(name, call, make):
    """Call an op on other streams and devices. make(device) makes the arguments of a call."""
    here, there = torch.cuda.Stream(), torch.cuda.Stream(device="cuda:1", priority=-1)
    with torch.cuda.stream(here):
        case(f"{name}: on a stream", call, *make("cuda"))
    with torch.cuda.stream(torch.cuda.ExternalStream(torch.cuda.Stream().cuda_stream)):
        case(f"{name}: on a stream from outside", call, *make("cuda"))
    with torch.cuda.stream(there):
        case(f"{name}: stream and tensors of the second device", call, *make("cuda:1"))
        case(f"{name}: stream of the second device, tensors of the first", call, *make("cuda"))
    case(f"{name}: tensors of the second device", call, *make("cuda:1"))
    case(f"{name}: current device after it", torch.cuda.current_device)
    with torch.cuda.device(1):
        case(f"{name}: second device current, its tensors", call, *make("cuda:1"))
        case(f"{name}: second device current, tensors of the first", call, *make("cuda"))
        case(f"{name}: current device after that", torch.cuda.current_device)
    with torch.cuda.stream(there), torch.cuda.device(0):
        case(f"{name}: first device current, second's stream and tensors", call, *make("cuda:1"))


def with_refused_launches(name, call, make, kernels, errors=(1, 2, 9, 98, 701)):
    """Call an op whose launches fail: 1 invalid value, 2 out of memory, 9 invalid configuration, 98 invalid
    device function, 701 out of resources."""
    for error in errors:
        for kernel in kernels:
            with refusing(error, kernel):
                case(f"{name}: {kernel} refused by {error}", call, *make("cuda"))
                case(f"{name}: {kernel} refused by {error} on the second device", call, *make("cuda:1"))
                case(f"{name}: current device after {error}", torch.cuda.current_device)
            case(f"{name}: the error of {kernel} is told", torch.cuda.synchronize)
    case(f"{name}: after refusals", call, *make("cuda"))
