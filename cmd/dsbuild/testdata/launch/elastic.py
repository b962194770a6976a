"""Counts steps to LAST together, from the last checkpoint, with however many there are."""

import datetime
import json
import os
import socket
import time

import torch
import torch.distributed as dist

LAST = 60
FILE = "checkpoint.json"

# A lost node whose connections stay silent is noticed after this time.
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
rank, world = dist.get_rank(), dist.get_world_size()
step = 0
if os.path.exists(FILE):
    with open(FILE) as f:
        step = json.load(f)["step"]
line = f"rank {rank} of {world} on {socket.gethostname()}: from step {step}, agent {os.getppid()}, worker {os.getpid()}\n"
os.write(1, line.encode())
while step < LAST:
    time.sleep(0.2)
    present = torch.ones(1)
    dist.all_reduce(present)
    step += 1
    if rank == 0:
        with open(FILE + ".tmp", "w") as f:
            json.dump({"step": step, "present": int(present.item())}, f)
        os.replace(FILE + ".tmp", FILE)
os.write(1, f"rank {rank} of {world} on {socket.gethostname()}: done at step {step}\n".encode())
dist.destroy_process_group()
