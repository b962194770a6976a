"""Starts a JAX program as one process of many.

JAX reads none of RANK, WORLD_SIZE and MASTER_ADDR. This file tells it who meets
where, and then runs the program:

    python dsbuild_jax.py --coordinator-address=HOST:PORT --num-processes=N \
        --process-id=I [--local-rank=L] [--local-processes=P] [--gpus=G] \
        [--timeout=SECONDS] -- train.py ARGS...

or -- -m pkg.train ARGS... for a module. The G GPUs of a node are divided evenly
among its P processes; JAX must find them all.

The program may import it as dsbuild_jax to learn its rank:

    import dsbuild_jax as dist
    batch = dist.local_batch(256)   # this process's share; a remainder is an error
    if dist.is_main():
        print("logs, progress and checkpoints are rank 0's")

If started directly (python train.py), it is the only process.
"""

import argparse
import os
import runpy
import sys


class _World:
    """Who this process is, among how many."""

    def __init__(self, rank=0, size=1, local_rank=0):
        self.rank = rank
        self.size = size
        self.local_rank = local_rank


_world = _World()


def rank():
    """The number of this process, from 0."""
    return _world.rank


def world_size():
    """The number of processes."""
    return _world.size


def local_rank():
    """The number of this process on its node, from 0."""
    return _world.local_rank


def is_main():
    """Whether this process logs, shows progress and saves."""
    return _world.rank == 0


def local_batch(global_batch):
    """This process's share of a batch.

    A batch that cannot be divided evenly is rejected: dropping the remainder
    would train on a different batch than requested.
    """
    share, rest = divmod(global_batch, _world.size)
    if share < 1 or rest:
        below, above = global_batch - rest, global_batch - rest + _world.size
        choices = f"{below} or {above}" if below else f"{above}"
        raise ValueError(
            f"a batch of {global_batch} cannot be divided evenly among {_world.size} processes: use {choices}"
        )
    return share


def _arguments(words):
    if "--" not in words:
        raise SystemExit("dsbuild_jax: missing program: add it after --")
    split = words.index("--")
    parser = argparse.ArgumentParser(prog="dsbuild_jax")
    parser.add_argument("--coordinator-address", required=True, metavar="HOST:PORT")
    parser.add_argument("--num-processes", required=True, type=int, metavar="N")
    parser.add_argument("--process-id", required=True, type=int, metavar="I")
    parser.add_argument("--local-rank", default=0, type=int, metavar="L")
    parser.add_argument("--local-processes", default=1, type=int, metavar="P", help="processes of this node")
    parser.add_argument("--gpus", type=int, metavar="G", help="GPUs of this node (default: all there are)")
    parser.add_argument("--timeout", type=int, metavar="S", help="seconds to wait for the others (JAX: 300)")
    options = parser.parse_args(words[:split])
    program = words[split + 1 :]
    if program in ([], ["-m"]):
        parser.error("missing program: add it after --")
    if options.gpus and options.gpus % options.local_processes:
        parser.error(
            f"{options.gpus} GPUs cannot be divided evenly among {options.local_processes} processes"
        )
    if not 0 <= options.process_id < options.num_processes:
        parser.error(f"process {options.process_id} of {options.num_processes}: the numbers start at 0")
    return options, program


def _bracketed(address):
    """HOST:PORT as JAX reads it: an IPv6 address is in brackets."""
    host, _, port = address.rpartition(":")
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else address


def _devices(options):
    """The numbers of this process's GPUs; None for all."""
    if options.local_processes == 1:
        return None
    if not options.gpus:
        if os.environ.get("JAX_PLATFORMS", "").split(",")[0] in ("cuda", "rocm"):
            raise SystemExit(f"dsbuild_jax: {options.local_processes} processes per node require --gpus")
        return None
    share = options.gpus // options.local_processes
    first = options.local_rank * share
    return list(range(first, first + share))


def _meet(options):
    import jax

    more = {"initialization_timeout": options.timeout} if options.timeout else {}
    devices = _devices(options)
    jax.distributed.initialize(
        coordinator_address=_bracketed(options.coordinator_address),
        num_processes=options.num_processes,
        process_id=options.process_id,
        local_device_ids=devices,
        # JAX would fill in None from Slurm's variables (or Open MPI's), and
        # use SLURM_LOCALID as the index of its only GPU.
        cluster_detection_method="deactivate",
        **more,
    )
    if jax.process_count() != options.num_processes:
        raise SystemExit(
            f"dsbuild_jax: JAX sees {jax.process_count()} processes, want {options.num_processes}:"
            " check that this JAX is built for the platform in JAX_PLATFORMS"
        )
    wanted = len(devices) if devices else options.gpus
    if wanted and jax.default_backend() == "gpu" and jax.local_device_count() != wanted:
        raise SystemExit(
            f"dsbuild_jax: JAX sees {jax.local_device_count()} GPUs, want {wanted}:"
            " check CUDA_VISIBLE_DEVICES and JAX_LOCAL_DEVICE_IDS"
        )


def main(words):
    """Meets the others and runs the program."""
    options, program = _arguments(words)
    _world.rank = options.process_id
    _world.size = options.num_processes
    _world.local_rank = options.local_rank
    # For libraries that read torch's variables.
    os.environ["RANK"] = str(_world.rank)
    os.environ["WORLD_SIZE"] = str(_world.size)
    os.environ["LOCAL_RANK"] = str(_world.local_rank)
    # The program imports this module, not a second copy without its state.
    sys.modules["dsbuild_jax"] = sys.modules["__main__"]
    _meet(options)
    if program[0] == "-m":
        sys.argv = program[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = program
    sys.path[0] = os.path.dirname(os.path.abspath(program[0]))
    runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
