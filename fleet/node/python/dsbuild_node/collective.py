"""A process of a collective: it connects to the others, sums with them, and reports its progress.
It ends when its standard input does."""
import os
import sys

if sys.path and sys.path[0] in ("", os.getcwd()):  # a job imports nothing from the login user's home
    del sys.path[0]
import json
import threading
import time

told = json.loads(sys.argv[1])
stages = os.fdopen(told["fd"], "w", buffering=1)
go = threading.Event()


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


rank, world = told["rank"], told["world"]


class ByTorch:
    """Sums by torch.distributed, as gloo or NCCL do."""

    def __init__(self):
        from datetime import timedelta

        import torch
        import torch.distributed

        self.torch, self.dist = torch, torch.distributed
        self.limit = timedelta(seconds=told["limit_s"])
        self.device = torch.device("cpu")
        if told["backend"] == "nccl":
            torch.cuda.set_device(told["local"])
            self.device = torch.device("cuda", told["local"])
        if told["zero"]:
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(told["local"]),
                              MASTER_ADDR=told["master"], MASTER_PORT=str(told["port"]),
                              DS_ACCELERATOR="cuda" if told["backend"] == "nccl" else "cpu")
            import deepspeed

            backend = sys.modules.get("deepspeed.comm.torch")
            if hasattr(backend, "build_shm_op"):
                backend.build_shm_op = lambda: None  # a check compiles nothing
            self.deepspeed = deepspeed
            self.layer = torch.nn.Linear(64, 64, bias=False).to(self.device)
            torch.nn.init.constant_(self.layer.weight, 1.0)
            self.optimizer = torch.optim.SGD(self.layer.parameters(), lr=0.5)  # here, because it imports much of torch

    def meet(self):
        self.store = self.dist.TCPStore(told["master"], told["port"], world, rank == 0, timeout=self.limit, wait_for_workers=False)
        self.store.set("dsbuild-%d" % rank, "here")

    def group(self):
        self.dist.init_process_group(told["backend"], store=self.store, rank=rank, world_size=world, timeout=self.limit)

    def all_reduce(self, numbers):
        """The duration of one sum, and its numbers."""
        x = self.torch.full((numbers,), float(rank + 1), device=self.device)
        begin = time.monotonic()
        self.dist.all_reduce(x)
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()
        return time.monotonic() - begin, x

    def part(self):
        self.dist.barrier()

    def step(self):
        """One step of ZeRO, whose new weights every process must have right."""
        engine = self.deepspeed.initialize(
            model=self.layer,
            optimizer=self.optimizer,
            config={"train_micro_batch_size_per_gpu": 1, "zero_allow_untested_optimizer": True, "gradient_clipping": 0.0,
                    "zero_optimization": {"stage": 2}},
        )[0]
        x = self.torch.full((1, 64), float(rank + 1), device=self.device)
        engine.backward(engine(x).sum())
        engine.step()
        right = 1 - 0.5 * (world + 1) / 2  # the gradient is the mean of all inputs
        weight = self.layer.weight
        wrong = weight[(weight - right).abs() > 1e-3]
        if len(wrong):
            fail("%d of %d weights are wrong after a ZeRO step: %r instead of %r" % (len(wrong), weight.numel(), wrong[0].item(), right))


class ByJAX:
    """Sums by jax.distributed: "jax" on CPUs, "jax-gpu" with a GPU for each process."""

    def __init__(self):
        gpu = told["backend"] == "jax-gpu"
        os.environ["JAX_PLATFORMS"] = "cuda" if gpu else "cpu"
        if gpu:  # a check leaves room for others
            os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        import jax
        import numpy
        from jax.experimental import multihost_utils
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        self.jax, self.numpy, self.utils = jax, numpy, multihost_utils
        self.mesh, self.sharding, self.spec = Mesh, NamedSharding, PartitionSpec
        self.local = [told["local"]] if gpu else None

    def meet(self):
        host = told["master"]
        self.jax.distributed.initialize(
            coordinator_address="%s:%d" % ("[%s]" % host if ":" in host else host, told["port"]),
            num_processes=world,
            process_id=rank,
            local_device_ids=self.local,
            cluster_detection_method="deactivate",  # Slurm's variables are another job's
            initialization_timeout=int(told["limit_s"]),
        )

    def group(self):
        if self.jax.process_count() != world:
            raise RuntimeError("JAX sees %d processes, not %d" % (self.jax.process_count(), world))
        first = {d.process_index: d for d in reversed(self.jax.devices())}  # one device of each process
        mesh = self.mesh(self.numpy.array([first[i] for i in range(world)]), ("process",))
        self.rows = self.sharding(mesh, self.spec("process"))
        self.sum = self.jax.jit(lambda x: x.sum(0), out_shardings=self.sharding(mesh, self.spec()))

    def all_reduce(self, numbers):
        """The duration of one sum, and its numbers."""
        row = self.numpy.full((1, numbers), rank + 1, self.numpy.float32)
        x = self.jax.make_array_from_process_local_data(self.rows, row, (world, numbers))
        begin = time.monotonic()
        total = self.sum(x).block_until_ready()
        return time.monotonic() - begin, self.numpy.asarray(total.addressable_data(0))

    def part(self):
        self.utils.sync_global_devices("ended")


def fail(error):
    tell("wrong", error=error)
    sys.exit(1)


def summed(numbers):
    """The duration of one sum. Each number of it must be right."""
    took, x = job.all_reduce(numbers)
    right = world * (world + 1) / 2
    if not bool((x == right).all()):
        wrong = x[x != right]
        fail("%d of %d sums are wrong: %r instead of %r" % (len(wrong), numbers, wrong[0].item(), right))
    return took


threading.Thread(target=hear, daemon=True).start()
threading.Thread(target=beat, daemon=True).start()
job = ByJAX() if told["backend"].startswith("jax") else ByTorch()
tell("imported")
go.wait()
job.meet()
tell("met")
job.group()
tell("grouped")
summed(1)  # connects all with all
tell("joined")
latency = min(summed(1) for _ in range(5))
numbers = told["bytes"] // 4
seconds = min(summed(numbers) for _ in range(3))
tell("summed", seconds=seconds, latency=latency, bytes=numbers * 4)
if told["zero"]:
    job.step()
    tell("stepped")
job.part()
go.clear()
tell("ended")
go.wait()  # until all have ended: the others need the first process to disconnect
os._exit(0)
