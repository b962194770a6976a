import itertools
import random

import torch
from harness import BF16, F16, F32, F64, case, load, on_streams_and_devices, with_refused_launches

TENSORS = ("parameter", "copy", "m", "v", "gradient")
TYPES = ((F32, F32), (F32, F16), (F64, F64), (F16, F16), (BF16, BF16), (F32, BF16), (F64, F16), (F32, F64))


def cases(wheel):
    op = load(wheel, "fused_lamb")

    def call(tensors, lr=1e-3, beta1=0.9, beta2=0.999, most=10.0, least=0.01, eps=1e-8, scale=1.0, step=3, mode=1, bias=1, decay=0.01):
        return op.lamb(*tensors.values(), lr, beta1, beta2, most, least, eps, scale, step, mode, bias, decay)

    def made(size, dtype=F32, gradient=None, copied=True, device="cuda"):
        types = {"parameter": dtype, "copy": gradient or dtype, "m": dtype, "v": dtype, "gradient": gradient or dtype}
        return {name: torch.empty(0 if name == "copy" and not copied else size, dtype=t, device=device) for name, t in types.items()}

    for size, (dtype, gradient), copied in itertools.product((1, 5, (), (3, 7), 512, 513, 262144, 262145, 10**7, 0), TYPES, (True, False)):
        case(f"lamb: {size} of {dtype}, gradient {gradient}, copy {copied}", call, made(size, dtype, gradient, copied))
    tensors, numbers = made(1000, F32, F16), random.Random(7)
    any_of = numbers.choice
    for i in range(200):
        case(
            f"lamb: numbers {i}",
            call,
            tensors,
            lr=any_of([1e-3, 3, 0, numbers.random()]),
            beta1=any_of([0.9, 0.0, 1.0, numbers.random()]),
            beta2=any_of([0.999, 1.0, numbers.random()]),
            most=any_of([10.0, numbers.random()]),
            least=any_of([0.01, 0, numbers.random()]),
            eps=any_of([1e-8, numbers.random()]),
            scale=any_of([1.0, 65536.0, numbers.random()]),
            step=any_of([0, 1, 10, 10**6, 2**31 - 1, numbers.randrange(1, 10**5)]),
            mode=any_of([0, 1, 2]),
            bias=any_of([0, 1, 2]),
            decay=any_of([0.0, 0.01, numbers.random()]),
        )
    for wrong in ({"lr": "x"}, {"step": 1.5}, {"step": 2**31}, {"most": float("inf")}, {"eps": None}):
        case(f"lamb: a number {wrong}", call, tensors, **wrong)
    changes = {
        "on the CPU": lambda t: t.cpu(),
        "strided": lambda t: torch.empty(2000, dtype=t.dtype, device="cuda")[::2],
        "longer": lambda t: torch.empty(1001, dtype=t.dtype, device="cuda"),
        "64 bits": lambda t: t.double(),
        "integers": lambda t: torch.empty(1000, dtype=torch.int32, device="cuda"),
        "a view": lambda t: torch.empty(3000, dtype=t.dtype, device="cuda")[7:1007],
        "two dimensions": lambda t: torch.empty(10, 100, dtype=t.dtype, device="cuda"),
        "transposed": lambda t: torch.empty(10, 100, dtype=t.dtype, device="cuda").t(),
        "None": lambda t: None,
        "on the second device": lambda t: torch.empty(1000, dtype=t.dtype, device="cuda:1"),
        "a parameter": torch.nn.Parameter,
    }
    for name, (how, change) in itertools.product(TENSORS, changes.items()):
        case(f"lamb: {name} {how}", call, {**tensors, name: change(tensors[name])})
    for size in (2**31 - 2, 2**31 - 1, 2**31):
        case(f"lamb: {size} elements", call, made(size, F32, F16, copied=False))
        torch.cuda.empty_cache()
    on_streams_and_devices("lamb", call, lambda device: [made(100, device=device)])
    with_refused_launches(
        "lamb",
        call,
        lambda device: [made(100, device=device)],
        ["lamb_cuda_kernel_part1", "lamb_cuda_kernel_part2", "lamb_cuda_kernel_part3"],
        (1, 9, 701),
    )
