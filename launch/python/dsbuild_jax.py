"""Starts a JAX program as one process of many.

JAX reads none of RANK, WORLD_SIZE and MASTER_ADDR. This file tells it who meets
where, and then runs the program:

    python dsbuild_jax.py --coordinator-address=HOST:PORT --num-processes=N \
        --process-id=I [--local-rank=L] [--local-devices=D] -- train.py ARGS...

The program may import it as dsbuild_jax to learn who it is:

    import dsbuild_jax as dist
    batch = dist.local_batch(256)   # this process's share; a remainder is refused
    if dist.is_main():
        print("logs, progress and checkpoints are rank 0's")

Without this start (python train.py) it is the only process there is.
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

    A batch that cannot be shared out evenly is refused: dropping the remainder
    would train on another batch than the one that was asked for.
    """
    share, rest = divmod(global_batch, _world.size)
    if share < 1 or rest:
        below, above = global_batch - rest, global_batch - rest + _world.size
        choices = f"{below} or {above}" if below else f"{above}"
        raise ValueError(
            f"a batch of {global_batch} cannot be shared by {_world.size} processes evenly: use {choices}"
        )
    return share


def _arguments(words):
    if "--" not in words:
        raise SystemExit("dsbuild_jax: no program: put it after --")
    split = words.index("--")
    parser = argparse.ArgumentParser(prog="dsbuild_jax")
    parser.add_argument("--coordinator-address", required=True, metavar="HOST:PORT")
    parser.add_argument("--num-processes", required=True, type=int, metavar="N")
    parser.add_argument("--process-id", required=True, type=int, metavar="I")
    parser.add_argument("--local-rank", default=0, type=int, metavar="L")
    parser.add_argument(
        "--local-devices", type=int, metavar="D", help="GPUs of each process (default: all of the node)"
    )
    options = parser.parse_args(words[:split])
    program = words[split + 1 :]
    if not program:
        parser.error("no program: put it after --")
    if not 0 <= options.process_id < options.num_processes:
        parser.error(f"process {options.process_id} of {options.num_processes}: the numbers start at 0")
    return options, program


def _meet(options):
    import jax

    devices = None
    if options.local_devices:
        first = options.local_rank * options.local_devices
        devices = list(range(first, first + options.local_devices))
    jax.distributed.initialize(
        coordinator_address=options.coordinator_address,
        num_processes=options.num_processes,
        process_id=options.process_id,
        local_device_ids=devices,
    )
    if jax.process_count() != options.num_processes:
        raise SystemExit(
            f"dsbuild_jax: JAX sees {jax.process_count()} processes and not {options.num_processes}:"
            " is it a JAX for another platform than JAX_PLATFORMS names?"
        )


def main(words):
    """Meets the others and runs the program."""
    options, program = _arguments(words)
    _world.rank = options.process_id
    _world.size = options.num_processes
    _world.local_rank = options.local_rank
    # For libraries that look there, under the names that torch gave them.
    os.environ["RANK"] = str(_world.rank)
    os.environ["WORLD_SIZE"] = str(_world.size)
    os.environ["LOCAL_RANK"] = str(_world.local_rank)
    # The program imports this very module, not a second one that knows nothing.
    sys.modules["dsbuild_jax"] = sys.modules["__main__"]
    _meet(options)
    sys.argv = program
    sys.path[0] = os.path.dirname(os.path.abspath(program[0]))
    runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
