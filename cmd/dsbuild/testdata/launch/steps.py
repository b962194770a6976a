"""Sums ones with all others, step by step; one rank may be told to fail."""

import datetime
import os
import signal
import subprocess
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
if os.environ.get("ESCAPE"):
    # What leaves its session, its parent and good manners behind.
    subprocess.Popen(["setsid", "sh", "-c", "trap '' TERM; (sleep 10000; :) & sleep 10000; :"])
for step in range(int(os.environ.get("STEPS", "3"))):
    present = torch.ones(1)
    dist.all_reduce(present)
    print(f"rank {rank} of {world}: step {step}, sum {present.item():g}", flush=True)
    how = os.environ.get(f"FAIL_{rank}") if step == 2 else None
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "raise":
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB (a test)")
    time.sleep(0.2)
dist.destroy_process_group()
print(f"rank {rank}: done, given {sys.argv[1:]}", flush=True)
