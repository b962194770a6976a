"""Cases of the ops that walk lists of tensors (multi_tensor_apply): fused_adam, fused_lion."""

import itertools
import random
import threading

import torch
from harness import BF16, F16, F32, F64, case, empty, on_streams_and_devices, with_refused_launches

CHUNK = 65536
BLOCKS = 320  # of a launch
TENSORS = {3: 48, 4: 36}  # of a launch, by the number of lists


def lists_of(depth, sizes, dtype=F32, device="cuda"):
    return [[torch.empty(size, dtype=dtype, device=device) for size in sizes] for _ in range(depth)]


def cases(op, depth, call, *, wide):
    """call(flag, lists, chunk, **numbers) calls the op. wide: its sizes have 64 bits."""
    flag = torch.zeros(1, dtype=torch.int32, device="cuda")
    numbers = random.Random(7)
    sizes_of_lists(op, depth, call, flag, numbers)
    numbers_of_a_call(op, depth, call, flag, numbers)
    places_in_memory(op, depth, call, flag)
    wrong_arguments(op, depth, call, flag)
    on_streams_and_devices(op, lambda lists: call(flag, lists, 64), lambda device: [lists_of(depth, [5, 300], device=device)])
    in_a_thread(op, depth, call, flag)
    with_refused_launches(
        op, lambda lists: call(flag, lists, 64), lambda device: [lists_of(depth, [5, 6], device=device)], ["multi_tensor_apply"]
    )
    if wide:
        for size, dtype in itertools.product((2**31 - 2, 2**31 - 1, 2**31, 2**31 + 5), (F16, BF16, F32, F64)):
            # one list in all places: 64 GB for each would not fit the device
            case(f"{op}: {size} elements of {dtype}", call, flag, [lists_of(1, [size, 3], dtype)[0]] * depth, 2**24)
            torch.cuda.empty_cache()


def sizes_of_lists(op, depth, call, flag, numbers):
    full = TENSORS[depth]
    lengths = {
        "one": [1],
        "odd": [7, 513, 65536, 65537, 3],
        "no dimension": [()],
        "two dimensions": [(3, 5), (1, 1, 4)],
        "an empty one": [0],
        "empty ones between": [0, 5, 0, 0, 9, 0],
        "the last empty": [5, 0],
        "all empty": [0, 0, 0],
        "a full launch": [10] * full,
        "one more than a launch": [10] * (full + 1),
        "250 of any size": [numbers.randrange(1, 3000) for _ in range(250)],
        "all blocks": [BLOCKS * CHUNK],
        "one block more": [BLOCKS * CHUNK + 1],
        "a tensor over two launches": [(BLOCKS - 1) * CHUNK, CHUNK + 1],
        "chunks over many launches": [1000 * CHUNK + 17, 5, 700 * CHUNK - 1, 31],
    }
    for (name, sizes), dtype in itertools.product(lengths.items(), (F32, F16, BF16, F64)):
        case(f"{op}: {name}, {dtype}", call, flag, lists_of(depth, sizes, dtype), CHUNK)
    for chunk in (1, 7, 64, 2**20, 2**31 - 1):
        case(f"{op}: chunks of {chunk}", call, flag, lists_of(depth, [1, 100, 350, 36]), chunk)


def numbers_of_a_call(op, depth, call, flag, numbers):
    lists, any_of = lists_of(depth, [100, 33], F16), numbers.choice
    for i in range(200):
        case(
            f"{op}: numbers {i}",
            call,
            flag,
            lists,
            CHUNK,
            lr=any_of([1e-3, 0.1, 1e-7, 3, 0, -1e-3, numbers.random()]),
            beta1=any_of([0.9, 0.0, 1 - 1e-9, numbers.random()]),
            beta2=any_of([0.999, 0.95, numbers.random()]),
            eps=any_of([1e-8, 1e-6, 0.0, numbers.random()]),
            step=any_of([0, 1, 2, 1000, 10**6, 2**31 - 1, numbers.randrange(1, 10**5)]),
            mode=any_of([0, 1, 2]),
            bias=any_of([0, 1, True]),
            decay=any_of([0.0, 0.01, numbers.random()]),
        )
    for wrong in (
        {"lr": "x"},
        {"lr": None},
        {"lr": float("nan")},
        {"lr": float("inf")},
        {"lr": 1e300},
        {"step": 1.5},
        {"step": 2**31},
        {"step": torch.tensor(3)},
        {"decay": torch.tensor(0.5)},
    ):
        case(f"{op}: a number {wrong}", call, flag, lists, CHUNK, **wrong)


def places_in_memory(op, depth, call, flag):
    base = empty(4096)
    case(
        f"{op}: views", call, flag, [[base[i * 1000 + 3 : i * 1000 + 103], base[i * 1000 + 200 : i * 1000 + 201]] for i in range(depth)], 64
    )
    case(f"{op}: the same tensor in all lists", call, flag, [[base]] * depth, 64)
    layouts = {
        "channels last": empty(4, 6, 5, 5).to(memory_format=torch.channels_last),
        "channels last, 3 d": empty(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d),
        "transposed": empty(4, 6).t(),
        "strided": empty(10)[::2],
        "expanded": empty(1, 4).expand(5, 4),
        "permuted": empty(2, 3, 4, 5).permute(3, 0, 1, 2),
        "strided and empty": empty(0, 10)[:, ::2],
        "dimensions of 1": empty(4, 1, 3, 1).transpose(1, 3),
    }
    for name, tensor in layouts.items():
        case(f"{op}: {name}", call, flag, [[tensor]] * depth, 64)
        case(f"{op}: {name} in the last list", call, flag, [[torch.empty(tensor.shape, device="cuda")]] * (depth - 1) + [[tensor]], 64)
    parameters = [[torch.nn.Parameter(empty(30))] for _ in range(depth)]
    case(f"{op}: parameters", call, flag, parameters, 64)
    case(f"{op}: parameters after it", lambda: [p for each in parameters for p in each])
    with torch.no_grad():
        case(f"{op}: parameters without grad", call, flag, parameters, 64)
    with torch.inference_mode():
        case(f"{op}: inference mode", call, flag, lists_of(depth, [5]), 64)


def wrong_arguments(op, depth, call, flag):
    good = lambda: [empty(5), empty(6)]
    lists = {
        "a list too few": [good()] * (depth - 1),
        "a list too many": [good()] * (depth + 1),
        "lists of other lengths": [good()] * (depth - 1) + [good()[:1]],
        "tensors of other sizes": [good()] * (depth - 1) + [[empty(5), empty(7)]],
        "on the CPU": lists_of(depth, [5], device="cpu"),
        "the last on the CPU": [good()] * (depth - 1) + lists_of(1, [5, 6], device="cpu"),
        "integers": lists_of(depth, [5], torch.int32),
        "truth values": lists_of(depth, [5], torch.bool),
        "complex": lists_of(depth, [5], torch.complex64),
        "8 bits": lists_of(depth, [5], torch.float8_e4m3fn),
        "other types": lists_of(depth - 1, [5]) + lists_of(1, [5], F16),
        "other types in a list": [[empty(5), empty(5, dtype=F16)]] * depth,
        "two devices": [good()] * (depth - 1) + lists_of(1, [5, 6], device="cuda:1"),
        "numbers": [[1, 2]] * depth,
        "a tensor": empty(depth, 3),
        "tuples": tuple((empty(3),) for _ in range(depth)),
        "None": None,
        "lists of None": [[None]] * depth,
        "without data": lists_of(depth, [5], device="meta"),
        "sparse": [[torch.eye(3).to_sparse()]] * depth,
    }
    for name, wrong in lists.items():
        case(f"{op}: lists: {name}", call, flag, wrong, 64)
    flags = {
        "float": torch.zeros(1, device="cuda"),
        "64 bits": torch.zeros(1, dtype=torch.int64, device="cuda"),
        "on the CPU": torch.zeros(1, dtype=torch.int32),
        "empty": empty(0, dtype=torch.int32),
        "None": None,
        "a view": torch.zeros(9, dtype=torch.int32, device="cuda")[5:6],
    }
    for name, wrong in flags.items():
        case(f"{op}: flag: {name}", call, wrong, [good()] * depth, 64)


def in_a_thread(op, depth, call, flag):
    def run():
        case(f"{op}: in a thread", call, flag, lists_of(depth, [5, 6]), 64)
        with torch.cuda.stream(torch.cuda.Stream()):
            case(f"{op}: in a thread, on a stream", call, flag, lists_of(depth, [5, 6]), 64)

    with torch.cuda.stream(torch.cuda.Stream()):  # the current stream is per thread
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
