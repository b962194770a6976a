"""All processes add up their numbers; each says what it was and what it got."""

import datetime
import json
import os
import socket
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
rank, world = dist.get_rank(), dist.get_world_size()
# DeepSpeed's launcher adds this one.
given = [word for word in sys.argv[1:] if not word.startswith("--local_rank=")]
given += [os.environ["GREETING"]] if "GREETING" in os.environ else []
total = torch.tensor([rank + 1.0])
dist.all_reduce(total)
# One write: lines of several processes do not mix.
line = f"rank {rank} of {world} on {socket.gethostname()}: sum {total.item():g}, given {json.dumps(given)}\n"
os.write(1, line.encode())
dist.destroy_process_group()
