"""Loads DeepSpeed's ops where they were built over torch's stable ABI: one library for every
torch from TORCH on and every Python. dsbuild puts this file into such a wheel, as
deepspeed/_stable_abi.py.

The module of an op, deepspeed/ops/adam/cpu_adam_op.py, calls expose. It loads the library that
lies beside it, libcpu_adam_op.so, and gets the functions, classes and enumerations that the
module has where pybind11 binds it. Torch's dispatcher calls the functions; the arguments are
checked and converted here before, as pybind11 does, because the dispatcher has fewer types.

An op can have several libraries: for the CUDA of each torch (libfused_adam_op.cu13.so), or for
levels of CPUs (libcpu_adam_op.v3.so). The one that fits is loaded. DSBUILD_CPU_LEVEL=v2 forces
a lower level.
"""
import collections.abc
import ctypes
import enum
import functools
import json
import operator
import os
import re
import sys
import zlib

import torch

TORCH = "2.10"  # the oldest torch that has all of the stable ABI that the ops use
LEVEL = ""  # of x86-64, that every op needs: v2, v3 or v4; "" for another machine. variants.py writes it

# What each level adds, by the names of /proc/cpuinfo (x86-64 psABI, table 3.1).
FLAGS = {
    "v2": "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3",
    "v3": "avx avx2 bmi1 bmi2 f16c fma abm movbe xsave",
    "v4": "avx512f avx512bw avx512cd avx512dq avx512vl",
}


class Refused(ImportError):
    """Why an op cannot be loaded here, with what helps."""

    def __init__(self, op, why, hint):
        super().__init__(f"DeepSpeed's op {op[:-3] if op.endswith('_op') else op} {why}\nhint: {hint}")


def minor(version):
    """The first two numbers of a version: (2, 15) of 2.15.0+cu132."""
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in version.split("+")[0].split(".")[:2])


def torch_info(built, _cuda):
    """What DeepSpeed is told about the torch of its build, which it compares with the torch that
    runs: the torch that runs, for refuse decides. built is what DeepSpeed's build recorded; the
    CUDA that the ops need is for other readers."""
    told = dict(built, version=".".join(torch.__version__.split(".")[:2]))
    if torch.version.cuda:
        told["cuda_version"] = ".".join(torch.version.cuda.split(".")[:2])
    return told


def accelerator(installed, device):
    """The accelerator that DeepSpeed is told the ops were built for, and the installed ones: for that
    of a machine without a GPU all but those with device code."""
    from deepspeed.accelerator import get_accelerator

    if get_accelerator()._name != "cpu":
        return "cuda", installed
    return "cpu", {name: False if name in device else built for name, built in installed.items()}


def refuse(op, cuda):
    """Raises Refused if the torch that runs cannot have an op, before anything is loaded. cuda has
    the majors of CUDA that there are libraries for, none for a library that needs no CUDA."""
    if minor(torch.__version__) < minor(TORCH):
        raise Refused(
            op, f"needs torch {TORCH} or newer, but this environment has torch {torch.__version__}",
            f"install a newer torch, or a DeepSpeed that was built for this one (dsbuild wheel --abi torch --torch {'.'.join(torch.__version__.split('.')[:2])})",
        )
    if not cuda:
        return
    running, wanted = torch.version.cuda, " or ".join(cuda)
    if not running:
        raise Refused(op, f"needs a torch for CUDA {wanted}, but this torch {torch.__version__} has no CUDA", f"install a torch for CUDA {wanted}")
    major = running.split(".")[0]
    if major not in cuda:
        raise Refused(
            op, f"was built for CUDA {' and '.join(cuda)}, but this torch {torch.__version__} is built for CUDA {running}",
            f"install a torch for CUDA {wanted}, or a DeepSpeed that was built for CUDA {major}",
        )
    runtime = f"libcudart.so.{major}"
    try:
        ctypes.CDLL(runtime)
    except OSError as e:
        raise Refused(op, f"needs {runtime}, but it cannot be loaded: {e}", f"install the CUDA {major} runtime that this torch requires (nvidia-cuda-runtime)") from None


@functools.lru_cache(None)
def cpu_flags():
    """The flags of this CPU. The kernel leaves out those of registers that it does not save. None are
    known where it hides them."""
    try:
        with open("/proc/cpuinfo", errors="replace") as f:
            return next((set(line.partition(":")[2].split()) for line in f if line.startswith("flags")), set())
    except OSError:
        return set()


def level_of(op, levels):
    """The highest of the levels that this CPU has, or Refused if it has none. The lowest if the kernel
    hides what the CPU has. DSBUILD_CPU_LEVEL is the most that counts."""
    flags, forced = cpu_flags(), os.environ.get("DSBUILD_CPU_LEVEL", "")
    if not re.fullmatch("(v[1-9])?", forced):
        raise Refused(op, f"cannot be loaded: DSBUILD_CPU_LEVEL is {forced!r}", "set it to v2, v3 or v4 to force a level of the CPU, or unset it")
    lowest = min(levels)
    if forced and forced < lowest:
        raise Refused(op, f"was built for CPUs of level x86-64-{lowest}, but DSBUILD_CPU_LEVEL is {forced}", "unset DSBUILD_CPU_LEVEL")
    if not flags:
        return max(level for level in levels if level <= (forced or lowest))
    lacking = lambda level: [flag for name in FLAGS if name <= level for flag in FLAGS[name].split() if flag not in flags]
    if lacking(lowest):
        lower = [name for name in FLAGS if not lacking(name)]
        raise Refused(
            op, f"was built for CPUs of level x86-64-{lowest}, but this CPU lacks {' '.join(lacking(lowest))}",
            f"install a DeepSpeed that was built for this CPU (dsbuild wheel --cpu x86-64-{max(lower)})" if lower else "use another machine, or DeepSpeed without compiled ops",
        )
    return max(level for level in levels if not lacking(level) and level <= (forced or level))


def refuse_damaged(op, path, crc32):
    """Raises Refused if a library cannot be read, or is not what was built: a process that uses a
    page of a file beyond its end is killed, and changed code computes anything."""
    try:
        with open(path, "rb") as f:
            data = f.read()
    except OSError as e:
        why = e.strerror
    else:
        if zlib.crc32(data) == crc32:
            return
        why = f"damaged: these {len(data)} bytes are not what was built"
    raise Refused(op, f"cannot be loaded: {path}: {why}", "install the wheel again (pip install --force-reinstall --no-deps WHEEL)")


def expose(module, libraries, cuda=()):
    """Loads the library of an op and gives its module what it binds. module is globals() of
    the module. libraries has the CRC-32 of each library by its variant: v2, v3 for levels of CPUs,
    cu12, cu13 for majors of CUDA, "" for the only one. cuda has the majors that there are libraries
    for, none if the op needs no CUDA."""
    op = module["__name__"].rpartition(".")[2]
    refuse(op, cuda)
    levels = [variant for variant in libraries if variant.startswith("v")]
    level = level_of(op, levels or [LEVEL]) if levels or LEVEL else ""
    variant = level if levels else f"cu{torch.version.cuda.split('.')[0]}" if len(cuda) > 1 else ""
    path = os.path.join(os.path.dirname(module["__file__"]), f"lib{op}{'.' + variant if variant else ''}.so")
    refuse_damaged(op, path, libraries[variant])
    try:
        library = ctypes.CDLL(path)
    except OSError as e:
        raise Refused(op, f"cannot be loaded with torch {torch.__version__}: {e}", "report it, with this torch and the wheel's name; meanwhile use a DeepSpeed built for this torch (dsbuild wheel --abi torch)") from None
    library.dsbuild_register.restype = ctypes.c_char_p
    told = json.loads(library.dsbuild_register())
    if "error" in told:
        raise Refused(op, f"cannot be registered with torch {torch.__version__}: {told['error']}", "one process can have one DeepSpeed")
    probe(op)
    module.pop("expose", None)  # pybind11's module has no such name
    module.update(Module(op, module["__name__"]).made(told))
    # DeepSpeed loads pin_memory once more by the name of its file, for all to see.
    module["__file__"] = path


def probe(op):
    """Raises Refused if this torch hands values over in another way than the library was compiled
    for: torch promises that none does. The op dsbuild_probe writes down what it was given. Of
    integers, because deepspeed.zero.Init changes the type of other tensors. Nothing is known where
    torch makes tensors without values, as under FakeTensorMode: the op would read at address 0."""
    tensor = torch.tensor([[1, 2], [3, 4], [5, 6]], device="cpu")[1:, 1]
    if type(tensor) is not torch.Tensor:
        return
    try:
        told = getattr(torch.ops, "dsbuild_" + op).dsbuild_probe.default(tensor, [tensor, tensor], None, 0.5, -(2**40), True, "\u00e9")
    except RuntimeError as e:
        told = str(e)
    wanted = "2/2 4 6, 2 of 2/2 4 6, absent, 0.5, -1099511627776, 1, \u00e9"
    if told != wanted:
        raise Refused(
            op, f"does not work with torch {torch.__version__}, whose stable ABI differs from torch {TORCH}'s: got {told!r}, want {wanted!r}",
            "report it, with this torch and the wheel's name; meanwhile use a DeepSpeed built for this torch (dsbuild wheel --abi torch)",
        )


def not_compiled(function):
    """A function that torch.compile leaves out of its graphs, as it does one of pybind11. That is
    torch's own compiler.disable, once a process has what compiles: importing it takes a second."""
    disabled = []

    @functools.wraps(function)
    def call(*args, **kwargs):
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(torch.compiler.disable(function))
        return disabled[0](*args, **kwargs)

    call._torchdynamo_disable = True  # and nothing of this function either
    return call


def shown(value):
    """An argument for people, as pybind11 shows it."""
    try:
        return repr(value)
    except Exception:
        return "<repr raised Error>"


def of_its_type(error):
    """The error that torch's C++ interface raises in the place of one from the stable ABI, over which
    an error is a text alone. It is known by the words with which the text begins."""
    if type(error) is not RuntimeError:
        return error
    text = str(error)
    if text.startswith("CUDA out of memory"):
        return torch.OutOfMemoryError(text)
    if text.startswith("CUDA error: "):
        return torch.AcceleratorError(text)
    if text.startswith("Could not run 'aten::"):
        return NotImplementedError(text)
    if text.startswith("NotImplementedError: "):  # of check.h
        return NotImplementedError(text.removeprefix("NotImplementedError: "))
    return IndexError(text) if text.startswith("Dimension out of range") else error


class Unfit(Exception):
    """An argument that a signature does not take."""


class Module:
    """The Python side of one library."""

    def __init__(self, op, name):
        self.ops, self.name, self.names = getattr(torch.ops, "dsbuild_" + op), name, {}

    def made(self, told):
        """The names of the module, of the description in the library."""
        functions, methods, values, exported = {}, {}, {}, []
        for entry in told:
            if "function" in entry:
                functions.setdefault(entry["function"], []).append(entry)
            elif "class" in entry:
                self.names[entry["class"]] = self.handle_class(entry)
            elif "method" in entry:
                methods.setdefault((entry["of"], entry["method"]), []).append(entry)
            elif "enum" in entry:
                values[entry["enum"]] = {}
            elif "value" in entry:
                values[entry["of"]][entry["value"]] = entry["number"]
            elif "export" in entry:
                exported.append(entry["export"])
        for name, members in values.items():
            self.names[name] = enum.IntEnum(name, members, module=self.name)
        for (owner, name), entries in methods.items():
            setattr(self.names[owner], name, self.method(owner, name, entries))
        for name, entries in functions.items():
            self.names[name] = self.function(name, entries)
        for name in exported:
            self.names.update(self.names[name].__members__)
        return self.names

    def overloads(self, name, entries, of=""):
        return Overloads(name, [Signature(self, entry, of) for entry in entries])

    def function(self, name, entries):
        overloads = self.overloads(name, entries)

        def call(*args, **kwargs):
            return overloads(args, kwargs)

        return self.dressed(call, name, name, entries)

    def method(self, owner, name, entries):
        new = name == "__init__"
        overloads = self.overloads(name, entries, of=owner)

        def call(self, *args, **kwargs):
            return overloads((self, *args), kwargs)

        def init(self, *args, **kwargs):
            self._address = overloads((self, *args), kwargs)

        return self.dressed(init if new else call, name, f"{owner}.{name}", entries)

    def dressed(self, call, name, qualified, entries):
        call.__name__, call.__qualname__, call.__module__ = name, qualified, self.name
        call.__doc__ = "\n\n".join(filter(None, (entry["doc"] for entry in entries)))
        return not_compiled(call)

    def handle_class(self, entry):
        """A class whose objects hold the address of one of the library's."""
        name, delete = entry["class"], getattr(self.ops, entry["op"]).default

        def release(self):
            address, self._address = self._address, 0
            if address:
                delete(address)

        def reduce(self, _protocol):
            raise TypeError(f"cannot pickle '{name}' object")

        return type(name, (), {"__module__": self.name, "_address": 0, "__del__": release, "__reduce_ex__": reduce})


class Overloads:
    """The functions of one name. As pybind11 does, a call takes the first that fits without a
    conversion, and else the first that fits with one."""

    def __init__(self, name, signatures):
        self.name, self.signatures = name, signatures

    def __call__(self, args, kwargs):
        for convert in (False, True) if len(self.signatures) > 1 else (True,):
            for signature in self.signatures:
                try:
                    values = signature.values(args, kwargs, convert)
                except Unfit:
                    continue
                try:
                    return signature.op(*values)
                except RuntimeError as error:
                    raise of_its_type(error)
        raise TypeError(self.refusal(args, kwargs))

    def refusal(self, args, kwargs):
        """The words of pybind11."""
        kind = "constructor" if self.name == "__init__" else "function"
        known = "".join(f"\n    {i}. {s}" for i, s in enumerate(self.signatures, 1))
        given = ", ".join(map(shown, args))
        if kwargs:
            given += ("; " if given else "") + "kwargs: " + ", ".join(f"{k}={shown(v)}" for k, v in kwargs.items())
        return f"{self.name}(): incompatible {kind} arguments. The following argument types are supported:{known}\n\nInvoked with: {given}"


class Signature:
    """One function of the library: its op, and what it takes."""

    def __init__(self, module, entry, of):
        self.op = getattr(module.ops, entry["op"]).default
        self.arguments = [Argument(module, i, told) for i, told in enumerate(entry["arguments"])]
        self.result, self.makes = entry["result"], ""
        if of and entry["method"] == "__init__":
            self.arguments.insert(0, Ignored())
            self.makes = f"{module.name}.{of}"
        elif of:
            self.arguments[0] = Argument(module, 0, {"name": "self", "type": "class " + of})

    def __str__(self):
        if self.makes:
            return f"{self.makes}({', '.join(map(str, self.arguments[1:]))})"
        return f"({', '.join(map(str, self.arguments))}) -> {python_type(self.result)}"

    def values(self, args, kwargs, convert):
        """What the op is called with, or Unfit."""
        if len(args) > len(self.arguments):
            raise Unfit
        values, used = [], 0
        for place, argument in enumerate(self.arguments):
            if place < len(args):
                if argument.name in kwargs:
                    raise Unfit
                values.append(argument.take(args[place], convert))
            elif argument.name in kwargs:
                used += 1
                values.append(argument.take(kwargs[argument.name], convert))
            elif argument.has_default:
                values.append(argument.default)
            else:
                raise Unfit
        if used != len(kwargs):
            raise Unfit
        return [v for v in values if v is not Ignored]


class Argument:
    """One argument of a function. Without a name it is given by its place alone."""

    def __init__(self, module, place, told):
        self.name = told.get("name")
        self.shown = self.name or f"arg{place}"
        self.type = told["type"]
        self.has_default, self.default = "default" in told, told.get("default")
        self.take = taker(module, told["type"])

    def __str__(self):
        return f"{self.shown}: {python_type(self.type)}" + (f" = {self.default!r}" if self.has_default else "")


class Ignored:
    """The object of a constructor, which the library does not get."""

    has_default, name = False, None

    @staticmethod
    def take(_value, _convert):
        return Ignored


def python_type(name):
    """The type of an argument for people."""
    kind, _, rest = name.partition(" ")
    if kind == "list":
        return f"list[{python_type(rest)}]"
    if kind in ("class", "enum"):
        return rest
    if kind == "optional":
        return f"{python_type(rest)} | None"
    if kind == "Tensor":
        return "torch.Tensor"
    return "int" if kind.startswith(("int", "uint")) else kind  # of a tuple pybind11 says no more


def taker(module, name):
    """The function that takes an argument of a type: from what was given and whether it may be
    converted, it makes what the dispatcher gets, or raises Unfit."""
    kind, _, rest = name.partition(" ")
    if kind == "list":
        return take_list(taker(module, rest))
    if kind == "tuple":
        return take_tuple(taker(module, rest))
    if kind == "optional":
        return take_optional(taker(module, rest))
    if kind == "class":
        return take_address(module, rest)
    if kind == "enum":
        return take_enum(module, rest)
    if kind in TAKE:
        return TAKE[kind]
    bits = int(kind.lstrip("uint"))
    return take_int(0, 2**bits - 1) if kind[0] == "u" else take_int(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def take_tensor(value, _convert):
    if isinstance(value, torch.Tensor):
        return value
    raise Unfit


def take_bool(value, convert):
    if value is True or value is False:
        return value
    if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    if convert and (value is None or hasattr(type(value), "__bool__")):
        return bool(value)
    raise Unfit


def take_float(value, convert):
    if isinstance(value, float):
        return float(value)
    if convert and (hasattr(type(value), "__float__") or hasattr(type(value), "__index__")):
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            pass
    raise Unfit


def take_str(value, _convert):
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass
    raise Unfit


def take_int(low, high):
    def take(value, convert):
        try:
            number = operator.index(value)
        except TypeError:
            if not convert or isinstance(value, float) or not hasattr(type(value), "__int__"):
                raise Unfit from None
            try:
                number = int(value)
            except (TypeError, ValueError, RuntimeError, OverflowError):
                raise Unfit from None
        if low <= number <= high:
            # The dispatcher has no unsigned numbers.
            return number if number < 2**63 else number - 2**64
        raise Unfit

    return take


def take_list(one):
    def take(value, convert):
        if isinstance(value, (str, bytes)) or not isinstance(value, collections.abc.Sequence):
            raise Unfit
        return [one(v, convert) for v in value]

    return take


def take_tuple(one):
    def take(value, _convert):
        if not isinstance(value, tuple):
            raise Unfit
        try:
            return [one(v, True) for v in value]
        except Unfit:
            # pybind11 binds a tuple of anything, and the op looks into it when it runs.
            raise RuntimeError(f"Unable to cast Python instance of type {type(value)} to C++ type 'std::vector<int64_t>'") from None

    return take


def take_optional(one):
    def take(value, convert):
        return None if value is None else one(value, convert)

    return take


def take_address(module, name):
    def take(value, _convert):
        # An object whose constructor was not called, or failed, has none.
        if isinstance(value, module.names[name]) and value._address:
            return value._address
        raise Unfit

    return take


def take_enum(module, name):
    def take(value, _convert):
        if isinstance(value, module.names[name]):
            return int(value)
        raise Unfit

    return take


TAKE = {"Tensor": take_tensor, "bool": take_bool, "float": take_float, "str": take_str}
