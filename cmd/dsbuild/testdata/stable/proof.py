"""What the CPU ops of an installed DeepSpeed compute and how they refuse, as JSON: the same for
every torch, for every Python, and for a wheel of torch's C++ interface. Of the ops cpu_adam and utils
must be installed.

usage: proof.py     PYTHONPATH: the folder with DeepSpeed, where it is not installed"""
import hashlib
import itertools
import json
import os
import platform
import tempfile
import threading
import time

os.environ["DS_ACCELERATOR"] = "cuda"
import torch  # noqa: E402
from deepspeed.git_version_info import installed_ops  # noqa: E402
from deepspeed.ops.op_builder.all_ops import ALL_OPS  # noqa: E402

SIZES = (1, 7, 8, 64, 1000, 100003)  # with and without a rest after whole vectors


def tensors(size, dtype, state):
    torch.manual_seed(size)
    return torch.randn(size).to(dtype), torch.zeros(size, dtype=state), torch.zeros(size, dtype=state), [torch.randn(size).to(dtype) for _ in range(5)]


def adam(op, p, m, v, grads, decay):
    op.create_adam(1, 1e-3, 0.9, 0.999, 1e-8, decay, decay > 0, False)
    for step, g in enumerate(grads, 1):
        op.adam_update(1, step, 1e-3, 0.9, 0.999, 1e-8, decay, True, p, g, m, v)
    if p.dtype == m.dtype == torch.float32:
        op.adam_rollback(1, 5, 1e-3, 0.9, 0.999, 1e-8, decay, True, p, grads[-1], m, v)
    op.destroy_adam(1)


def lion(op, p, m, _v, grads, decay):
    op.create_lion(1, 1e-3, 0.9, 0.99, decay, False)
    for step, g in enumerate(grads, 1):
        op.lion_update(1, step, 1e-3, 0.9, 0.99, decay, p, g, m)
    op.destroy_lion(1)


def adagrad(op, p, _m, v, grads, decay):
    op.create_adagrad(1, 1e-3, 1e-8, decay, False)
    for step, g in enumerate(grads, 1):
        op.adagrad_update(1, step, 1e-3, 1e-8, decay, p, g, v)
    op.destroy_adagrad(1)


def numbers():
    """The digest of all results, bit by bit, and of the words of what is refused."""
    results, words, runs = hashlib.sha256(), hashlib.sha256(), 0
    types = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    for name, steps in (("cpu_adam", adam), ("cpu_lion", lion), ("cpu_adagrad", adagrad)):
        if not installed_ops[name]:
            continue
        op = ALL_OPS[name].load()
        for dtype, narrow, size, decay in itertools.product(types, (False, True), SIZES, (0.01, 0.0)):
            p, m, v, grads = tensors(size, dtype, dtype if narrow else torch.float32)
            try:
                steps(op, p, m, v, grads, decay)
            except RuntimeError as e:  # no such kernel
                words.update(str(e).encode())
                continue
            runs += 1
            for t in (p, m, v):
                results.update(t.view(torch.uint8).numpy().tobytes())
    op, given = ALL_OPS["utils"].load(), [torch.arange(7.0), torch.ones(3, 2, dtype=torch.float16), torch.nn.Parameter(torch.zeros(2))]
    for t in op.cast_to_byte_tensor(given):
        assert not t.requires_grad
        results.update(t.numpy().tobytes())
    assert op.cast_to_byte_tensor(src_tensor=given[0]).data_ptr() == given[0].data_ptr()
    return {"results": results.hexdigest(), "words": words.hexdigest(), "runs": runs}


def optimizers():
    """The digest of what DeepSpeed's own CPU optimizers make of five steps, for each type of
    parameters and of states that they take."""
    from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    from deepspeed.ops.lion import DeepSpeedCPULion

    results = hashlib.sha256()
    kinds = [kind for op, kind in (("cpu_adam", DeepSpeedCPUAdam), ("cpu_adagrad", DeepSpeedCPUAdagrad), ("cpu_lion", DeepSpeedCPULion)) if installed_ops[op]]
    for kind, dtype, wide in itertools.product(kinds, (torch.float32, torch.bfloat16, torch.float16), (True, False)):
        start, _, _, grads = tensors(1000, dtype, dtype)
        parameter = torch.nn.Parameter(start)
        optimizer = kind([parameter], lr=1e-3, weight_decay=0.01, fp32_optimizer_states=wide)
        for parameter.grad in grads:
            optimizer.step()
        for t in (parameter.detach(), *(s for s in optimizer.state[parameter].values() if isinstance(s, torch.Tensor) and s.dim())):
            results.update(str(t.dtype).encode() + t.contiguous().view(torch.uint8).numpy().tobytes())
    return results.hexdigest()


def files():
    """Files written and read by async_io from locked buffers of pin_memory, at once and asynchronously,
    by name; then what pin_memory says of its buffers."""
    if not installed_ops["async_io"]:
        return []
    told, handle = [], ALL_OPS["async_io"].load().aio_handle(1 << 20, 8, False, True, 2)
    told += [handle.get_block_size(), handle.get_queue_depth(), handle.get_single_submit(), handle.get_overlap_events(), handle.get_intra_op_parallelism()]
    written, read = (handle.new_cpu_locked_tensor(1 << 20, torch.empty(0, dtype=torch.float32)) for _ in range(2))
    written.copy_(torch.arange(1 << 20))
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "tensor")
        told.append(handle.sync_pwrite(written, file, 0))
        told.append(handle.sync_pread(read, file, 0))
        told.append(torch.equal(written, read))
        read.zero_()
        told += [handle.async_pread(read, file, 0), handle.wait(), torch.equal(written, read)]
        told.append(os.path.getsize(file))
    told += [handle.free_cpu_locked_tensor(t) for t in (written, read)]
    told.append(handle.free_cpu_locked_tensor(torch.zeros(4)))
    return told


def refused(do):
    try:
        do()
    except Exception as e:
        return type(e).__name__
    return "nothing"


def refusals():
    """The kinds of errors that wrong arguments lead to."""
    a, u = ALL_OPS["cpu_adam"].load(), ALL_OPS["utils"].load()
    t = torch.zeros(3)
    a.create_adam(3, 1e-3, 0.9, 0.999, 1e-8, 0.0, True, False)
    step = lambda *last: a.adam_update(3, 1, 1e-3, 0.9, 0.999, 1e-8, 0.0, True, t, t, *last)
    return [refused(do) for do in (
        lambda: u.cast_to_byte_tensor(), lambda: u.cast_to_byte_tensor("x"), lambda: u.cast_to_byte_tensor(None), lambda: u.cast_to_byte_tensor([t, None]),
        lambda: u.cast_to_byte_tensor(tensor=t), lambda: step(t), lambda: step(t, 1), lambda: step(t, t, t), lambda: step(t.double(), t),
        lambda: a.create_adam(2**31, 1e-3, 0.9, 0.999, 1e-8, 0.0, True, False), lambda: a.create_adam(1.0, 1e-3, 0.9, 0.999, 1e-8, 0.0, True, False),
        lambda: a.create_adam(3, "1", 0.9, 0.999, 1e-8, 0.0, True, False), lambda: a.adam_update(3, -1, 1e-3, 0.9, 0.999, 1e-8, 0.0, True, t, t, t, t),
    )]


def together(threads=4, rounds=300):
    """Threads that add and remove optimizers of one op, whose table is guarded by the GIL or
    by what stands in for it, and children that are forked meanwhile and use the op."""
    op, failed = ALL_OPS["cpu_adam"].load(), []

    def work(number):
        try:
            for i in range(rounds):
                key, p = 1000 + number * rounds + i, torch.ones(33)
                op.create_adam(key, 1e-3, 0.9, 0.999, 1e-8, 0.0, True, False)
                op.adam_update(key, 1, 1e-3, 0.9, 0.999, 1e-8, 0.0, True, p, torch.ones(33), torch.zeros(33), torch.zeros(33))
                op.destroy_adam(key)
                if not torch.allclose(p, torch.tensor(0.999)):
                    failed.append(f"thread {number}: {p[0]}")
        except Exception as e:
            failed.append(repr(e))

    torch.set_num_threads(1)  # a child of a process with OpenMP's threads has none of them
    running = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
    for t in running:
        t.start()
    for _ in range(20):
        child = os.fork()
        if child == 0:
            before = len(failed)
            work(-1 - os.getpid() % 2)
            os._exit(len(failed) - before)
        if os.waitpid(child, 0)[1]:
            failed.append("a child failed")
    for t in running:
        t.join()
    return failed


def one_at_a_time(size=40_000_000):
    """Whether a call waits for one that another thread has begun before."""
    op, tensors, times = ALL_OPS["cpu_adam"].load(), [torch.ones(size) for _ in range(4)], {}
    op.create_adam(5, 1e-3, 0.9, 0.999, 1e-8, 0.0, True, False)
    begun = threading.Event()

    def long():
        begun.set()
        times["begin"] = time.monotonic()
        op.adam_update(5, 1, 1e-3, 0.9, 0.999, 1e-8, 0.0, True, *tensors)
        times["end"] = time.monotonic()

    thread = threading.Thread(target=long)
    thread.start()
    begun.wait()
    time.sleep(0.005)
    op.create_adam(6, 1e-3, 0.9, 0.999, 1e-8, 0.0, True, False)
    other = time.monotonic()
    thread.join()
    return other - times["begin"] > (times["end"] - times["begin"]) / 2


def compiled():
    """A compiled function that calls an op, before and after a tensor's own operations."""
    op = ALL_OPS["utils"].load()
    return torch.compile(lambda t: op.cast_to_byte_tensor(t + 1).numel() + (t * 2).sum().item(), backend="eager")(torch.ones(3))


print(json.dumps({
    "torch": torch.__version__.split("+")[0], "cuda": torch.version.cuda, "python": platform.python_version(),
    "file": os.path.basename(ALL_OPS["cpu_adam"].load().__file__), "compiled": compiled(), "optimizers": optimizers(), "files": files(),
    "refusals": refusals(), "together": together(), "one_at_a_time": one_at_a_time(), **numbers(),
}))
