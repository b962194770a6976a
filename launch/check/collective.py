# A process of a collective: it meets the others, sums with them, and tells how far it
# has come. It ends when its standard input does.
import json
import os
import sys
import threading
import time

told = json.loads(sys.argv[1])
stages = os.fdopen(told["fd"], "w", buffering=1)
go = threading.Event()
if sys.path and sys.path[0] in ("", os.getcwd()):  # the home of whoever logs in is no place for packages
    del sys.path[0]


speaking = threading.Lock()


def tell(stage, **more):
    with speaking:
        stages.write(json.dumps(dict(more, stage=stage)) + "\n")


def hear():
    while True:
        line = os.read(0, 64)
        if not line:
            os._exit(1)
        go.set()


def beat():
    while True:
        tell("alive")
        time.sleep(1)


threading.Thread(target=hear, daemon=True).start()
threading.Thread(target=beat, daemon=True).start()

from datetime import timedelta

import torch
import torch.distributed as dist

rank, world, limit = told["rank"], told["world"], timedelta(seconds=told["limit_s"])
device = torch.device("cpu")
if told["backend"] == "nccl":
    torch.cuda.set_device(told["local"])
    device = torch.device("cuda", told["local"])
tell("imported")
go.wait()
store = dist.TCPStore(told["master"], told["port"], world, rank == 0, timeout=limit, wait_for_workers=False)
store.set("dsbuild-%d" % rank, "here")
tell("met")
dist.init_process_group(told["backend"], store=store, rank=rank, world_size=world, timeout=limit)
tell("grouped")
right = world * (world + 1) / 2


def summed(numbers):
    """How long one sum takes. It must be right in each number."""
    x = torch.full((numbers,), float(rank + 1), device=device)
    begin = time.monotonic()
    dist.all_reduce(x)
    if device.type == "cuda":
        torch.cuda.synchronize()
    took = time.monotonic() - begin
    if not bool((x == right).all()):
        wrong = x[x != right]
        tell("wrong", error="%d of %d sums are wrong: %r in place of %r" % (wrong.numel(), numbers, wrong[0].item(), right))
        sys.exit(1)
    return took


summed(1)  # connects all with all
tell("joined")
latency = min(summed(1) for _ in range(5))
numbers = told["bytes"] // 4
seconds = min(summed(numbers) for _ in range(3))
tell("summed", seconds=seconds, latency=latency, bytes=numbers * 4)
dist.barrier()
go.clear()
tell("ended")
go.wait()  # until all have ended: the first has what the others need to part
os._exit(0)
