"""A small JAX program on many processes: a line is fitted to points.

Each process makes its share of the data, the gradients are averaged over all, and
only rank 0 logs and saves. Start it with "dsbuild launch jax ... -- example_train.py".
"""

import argparse
import json
import os

import dsbuild_jax as dist
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def loss(params, x, y):
    return jnp.mean((params["w"] * x + params["b"] - y) ** 2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=64, help="points of a step, over all processes")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save", default="line.json")
    options = parser.parse_args()

    # One mesh of all devices of all processes; the batch is cut along it.
    mesh = Mesh(np.array(jax.devices()), ("data",))
    by_data, everywhere = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    local = dist.local_batch(options.batch)
    random = np.random.default_rng(dist.rank())  # other points on each process

    @jax.jit
    def step(params, x, y):
        value, gradient = jax.value_and_grad(loss)(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.3 * g, params, gradient), value

    params = jax.device_put({"w": np.zeros((), np.float32), "b": np.zeros((), np.float32)}, everywhere)
    for number in range(options.steps):
        x = random.uniform(-1, 1, local).astype(np.float32)
        x, y = (jax.make_array_from_process_local_data(by_data, a) for a in (x, 3 * x + 1))
        params, value = step(params, x, y)
        if dist.is_main() and number % 50 == 0:
            print(f"step {number}: loss {float(value):.6f}", flush=True)

    # The line is the same on all processes; one of them writes it, whole or not at all.
    if dist.is_main():
        line = {name: float(p) for name, p in params.items()}
        with open(options.save + ".tmp", "w") as f:
            json.dump({**line, "processes": dist.world_size()}, f)
        os.replace(options.save + ".tmp", options.save)
        print(f"saved {options.save}: {line}", flush=True)
    # Nobody leaves while rank 0 still writes.
    multihost_utils.sync_global_devices("saved")


if __name__ == "__main__":
    main()
