"""Proof that an installed wheel works: every op loads from the wheel, nothing
is compiled on the way, and those without device code (all but DSBUILD_GPU_OPS) do what
they are for. The variants for lower levels of CPUs (DSBUILD_LEVELS, of the ops DSBUILD_LEVEL_OPS) are
tried too. Where this CPU is below the wheel's level (DSBUILD_CPU) nothing of that can be tried, and
DSBUILD_OUT/not-run says why.

usage: smoke.py OP...    the wheel is installed when standard input ends
"""
import ctypes
import gc
import importlib
import logging
import os
import pathlib
import re
import sys
import tempfile
import traceback

import nogpu

# What each level adds, by the names of /proc/cpuinfo (x86-64 psABI, table 3.1; every 64-bit Arm CPU has Armv8-A).
FLAGS = {
    "x86-64-v2": "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3",
    "x86-64-v3": "avx avx2 bmi1 bmi2 f16c fma abm movbe xsave",
    "x86-64-v4": "avx512f avx512bw avx512cd avx512dq avx512vl",
}


def cpu():
    """What /proc/cpuinfo says of this machine's CPU."""
    with open("/proc/cpuinfo") as f:
        lines = f.read().partition("\n\n")[0].splitlines()
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def lacking(level):
    """The flags of a level, and of those below it, that this CPU has not."""
    have = cpu().get("flags", "").split()
    return [flag for name in sorted(FLAGS) if not level.startswith("arm") and name <= level for flag in FLAGS[name].split() if flag not in have]


missing = lacking(os.environ["DSBUILD_CPU"])
if missing:
    why = f"this machine's CPU is below {os.environ['DSBUILD_CPU']}: it lacks {' '.join(missing)}"
    print("not run:", why)
    with open(os.path.join(os.environ["DSBUILD_OUT"], "not-run"), "w") as f:
        f.write(why)
    sys.exit()


ARM = os.uname().machine == "aarch64"


def fail(why):
    """Ends with why as the last words. Python's own end would add reports of other packages about their leaks."""
    print(why, file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(1)


sys.excepthook = lambda *error: fail("".join(traceback.format_exception(*error)).rstrip())


def answer_for_cpuinfo():
    """Makes py-cpuinfo say what the kernel does: it measures the clock too, for a second,
    and CPU Adam asks only whose CPU this is."""
    try:
        import cpuinfo
    except ImportError:  # CPU Adam will say what that means
        return
    told = cpu()
    cpuinfo.get_cpu_info = lambda: {
        "arch": "ARM_8" if ARM else "X86_64", "vendor_id_raw": told.get("vendor_id", ""), "brand_raw": told.get("model name", ""), "flags": told.get("flags", "").split(),
    }


def import_ahead(*modules):
    """Imports what DeepSpeed will, most of the time that it takes, while there is no
    wheel yet."""
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError:  # older torch has fewer; DeepSpeed will say what that means
            pass
    sys.stdin.read()
    importlib.invalidate_caches()


answer_for_cpuinfo()
jit = tempfile.mkdtemp()
os.environ["TORCH_EXTENSIONS_DIR"] = jit
gc.disable()  # what is imported stays: to look for garbage in it takes a fifth of the time
import_ahead("torch", "torch._dynamo", "torch.utils.cpp_extension", "pydantic")

with nogpu.answered():
    import deepspeed  # noqa: E402
import torch  # noqa: E402
from deepspeed.ops.op_builder.all_ops import ALL_OPS  # noqa: E402

RELEASE = tuple(int(n) for n in re.findall(r"\d+", deepspeed.__version__)[:3])

gc.freeze()
gc.enable()


def stand_in_for_driver():
    """An op that calls the GPU's driver by itself loads only where there is one.
    Where there is none, what it was linked with takes its place: after all the
    others, for torch would ask it for GPUs."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        ctypes.CDLL(os.path.join(os.environ["DSBUILD_IN"], "compile", "libcuda.so.1"))
        return " (this machine has no GPU driver: with a stub of it)"
    return ""


NEEDS_DRIVER = ["gds"]


def one_step(name, ours, reference, right_since=(0,)):
    """One step of an optimizer beside the same step as torch computes it. A wheel of an older release than right_since has
    the mistake of DeepSpeed's own code."""
    torch.manual_seed(0)
    start, grad = torch.randn(1 << 16), torch.randn(1 << 16)
    results = []
    for step in (ours, reference):
        p = torch.nn.Parameter(start.clone())
        p.grad = grad.clone()
        step(p)
        results.append(p.detach())
    worst = (results[0] - results[1]).abs().max().item()
    moved = (results[1] - start).abs().max().item()
    if not worst <= 1e-6 or not moved > 1e-4:
        differs = f"{name}: one step differs from torch's by {worst:.2e} (step size {moved:.2e})"
        if RELEASE >= right_since:
            fail(differs)
        print(f"{differs}: DeepSpeed's own mistake before {'.'.join(map(str, right_since))}")
        return
    print(f"{name}: one step equals torch's within {worst:.1e}")


def adam(_):
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    from deepspeed.utils import logger

    logger.setLevel(logging.INFO)  # then the op says which SIMD level it runs
    one_step(
        "cpu_adam",
        lambda p: DeepSpeedCPUAdam([p], lr=1e-3, weight_decay=1e-2).step(),
        lambda p: torch.optim.AdamW([p], lr=1e-3, weight_decay=1e-2).step(),
    )


def adagrad(_):
    from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad

    one_step(
        "cpu_adagrad",
        lambda p: DeepSpeedCPUAdagrad([p], lr=1e-2, weight_decay=1e-2).step(),
        lambda p: torch.optim.Adagrad([p], lr=1e-2, weight_decay=1e-2).step(),
        (0, 19, 8),  # before, the numerator lacks weight decay
    )


def lion(_):
    from deepspeed.ops.lion import DeepSpeedCPULion

    def formula(p):
        # Of its first step, whose momentum is 0 (arXiv 2302.06675, algorithm 2);
        # torch has no Lion.
        with torch.no_grad():
            p.mul_(1 - 1e-3 * 1e-2).sub_(1e-3 * torch.sign(p.grad))

    one_step("cpu_lion", lambda p: DeepSpeedCPULion([p], lr=1e-3, weight_decay=1e-2).step(), formula,
             (0, 19, 8))  # before, the sum's exponent changes the step's


def utils(op):
    """Older releases flatten tensors here, newer ones show the bytes of some."""
    tensors = [torch.arange(6.0).reshape(2, 3), torch.ones(4)]
    if hasattr(op, "flatten"):
        back = op.unflatten(op.flatten(tensors), tensors)
    else:
        back = [b.view(torch.float32).reshape(t.shape) for b, t in zip(op.cast_to_byte_tensor(tensors), tensors)]
    if not all(torch.equal(a, b) for a, b in zip(tensors, back)):
        fail(f"utils: {tensors} became {back}")
    print("utils: tensors are unchanged after flatten and unflatten")


def direct_io(folder):
    """Why async_io could not work on files in a folder, "" if it can: it reads
    and writes around the page cache, by calls that not every kernel and file
    system has."""
    context = ctypes.c_ulong()
    libc = ctypes.CDLL(None, use_errno=True)
    setup, destroy = (0, 1) if ARM else (206, 207)  # io_setup, io_destroy
    if libc.syscall(setup, 1, ctypes.byref(context)) != 0:
        return f"io_setup: {os.strerror(ctypes.get_errno())}"
    libc.syscall(destroy, context)
    try:
        os.close(os.open(os.path.join(folder, "probe"), os.O_RDWR | os.O_CREAT | os.O_DIRECT))
    except OSError as e:
        return f"O_DIRECT: {e.strerror}"
    return ""


def async_io(op):
    with tempfile.TemporaryDirectory() as folder:
        if why := direct_io(folder):
            print("async_io: this machine cannot write a file with it:", why)
            return
        file = os.path.join(folder, "tensor")
        handle = op.aio_handle(1 << 20, 8, False, True, 1)  # block size, queue depth, single submit, overlap, threads
        # Before 0.15.3 a locked tensor has as many elements as bytes. Before 0.16 no function takes an offset in the file.
        written = handle.new_cpu_locked_tensor(4 << 20, torch.empty(0, dtype=torch.uint8))
        read = handle.new_cpu_locked_tensor(4 << 20, torch.empty(0, dtype=torch.uint8))
        written.copy_(torch.randint(256, (4 << 20,), dtype=torch.uint8))
        handle.sync_pwrite(written, file)
        handle.sync_pread(read, file)
        if os.path.getsize(file) != 4 << 20 or not torch.equal(written, read):
            fail("async_io: the data read differ from the data written")
        for tensor in (written, read):
            handle.free_cpu_locked_tensor(tensor)
    print("async_io: wrote 4 MiB to a file and read them back")


# The ops that run without a GPU, each called with its module.
RUN = {"cpu_adam": adam, "cpu_adagrad": adagrad, "cpu_lion": lion, "utils": utils, "async_io": async_io}

GPU_OPS = os.environ.get("DSBUILD_GPU_OPS", "").split()


def prove(ops):
    """Loads the ops, and runs those that need no GPU."""
    for op in sorted(ops, key=NEEDS_DRIVER.__contains__):
        if op not in ALL_OPS:
            fail(f"{op}: DeepSpeed {deepspeed.__version__} does not offer this op here")
        remark = stand_in_for_driver() if op in NEEDS_DRIVER else ""
        module = ALL_OPS[op].load()
        print(f"{op}: loaded from {os.path.relpath(module.__file__, os.path.dirname(deepspeed.__file__))}{remark}", flush=True)
        if op in RUN and op not in GPU_OPS:  # before 0.14.3 the CPU optimizers have device code
            RUN[op](module)


# The loader takes the highest level of this CPU. A process can load one variant of an op: copies of this one,
# which has loaded none yet, load the others.
for level in [level for level in os.environ.get("DSBUILD_LEVELS", "").split() if not lacking("x86-64-" + level)][:-1]:
    child = os.fork()
    if child == 0:
        os.environ["DSBUILD_CPU_LEVEL"] = level
        prove(os.environ["DSBUILD_LEVEL_OPS"].split())
        sys.stdout.flush()
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        fail(f"the ops for CPUs of level x86-64-{level} do not work")
prove(sys.argv[1:])
if os.listdir(jit):
    fail(f"compiled at first use instead of loaded from the wheel: {os.listdir(jit)}")
print(f"deepspeed {deepspeed.__version__}, torch {torch.__version__}: {len(sys.argv) - 1} ops work")
