"""Proof that an installed wheel works: every op loads from the wheel, nothing
is compiled on the way, and one step of CPU Adam equals torch's. Where this CPU
is below the wheel's level (DSBUILD_CPU) nothing of that can be tried, and
DSBUILD_OUT/not-run says why.

usage: smoke.py OP...
"""
import logging
import os
import sys
import tempfile

# What each level adds, by the names of /proc/cpuinfo (x86-64 psABI, table 3.1).
FLAGS = {
    "x86-64-v2": "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3",
    "x86-64-v3": "avx avx2 bmi1 bmi2 f16c fma abm movbe xsave",
    "x86-64-v4": "avx512f avx512bw avx512cd avx512dq avx512vl",
}


def lacking(level):
    """The flags of a level, and of those below it, that this CPU has not."""
    with open("/proc/cpuinfo") as f:
        have = next((line for line in f if line.startswith("flags")), "").split()
    return [flag for name in sorted(FLAGS) if name <= level for flag in FLAGS[name].split() if flag not in have]


missing = lacking(os.environ["DSBUILD_CPU"])
if missing:
    why = f"this machine's CPU is below {os.environ['DSBUILD_CPU']}: it lacks {' '.join(missing)}"
    print("not run:", why)
    with open(os.path.join(os.environ["DSBUILD_OUT"], "not-run"), "w") as f:
        f.write(why)
    sys.exit()

jit = tempfile.mkdtemp()
os.environ["TORCH_EXTENSIONS_DIR"] = jit

import deepspeed  # noqa: E402
import torch  # noqa: E402
from deepspeed.ops.op_builder.all_ops import ALL_OPS  # noqa: E402


def adam_step():
    """One step of DeepSpeedCPUAdam beside torch.optim.AdamW on the same values."""
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    from deepspeed.utils import logger

    logger.setLevel(logging.INFO)  # then the op says which SIMD level it runs

    torch.manual_seed(0)
    start, grad = torch.randn(1 << 16), torch.randn(1 << 16)
    results = []
    for optimizer in (DeepSpeedCPUAdam, torch.optim.AdamW):
        p = torch.nn.Parameter(start.clone())
        p.grad = grad.clone()
        optimizer([p], lr=1e-3, weight_decay=1e-2).step()
        results.append(p.detach())
    worst = (results[0] - results[1]).abs().max().item()
    moved = (results[1] - start).abs().max().item()
    if not worst <= 1e-6 or not moved > 1e-4:
        sys.exit(f"cpu_adam: one step differs from torch's by {worst:.2e} (step size {moved:.2e})")
    print(f"cpu_adam: one step equals torch's within {worst:.1e}")


for op in sys.argv[1:]:
    if op not in ALL_OPS:
        sys.exit(f"{op}: DeepSpeed {deepspeed.__version__} does not offer this op here")
    module = ALL_OPS[op].load()
    print(f"{op}: loaded from {os.path.relpath(module.__file__, os.path.dirname(deepspeed.__file__))}")
if "cpu_adam" in sys.argv[1:]:
    adam_step()
if os.listdir(jit):
    sys.exit(f"compiled at first use instead of loaded from the wheel: {os.listdir(jit)}")
print(f"deepspeed {deepspeed.__version__}, torch {torch.__version__}: {len(sys.argv) - 1} ops work")
