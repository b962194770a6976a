import itertools

import torch
from harness import F16, case, empty, load, on_streams_and_devices


def half(*shape, device="cuda"):
    return empty(*shape, dtype=F16, device=device)


def cases(wheel):
    op = load(wheel, "spatial_inference")
    for batch, channels, size, layout in itertools.product((1, 2, 5), (8, 64, 320, 1280), (1, 7, 64), ("images", "tokens")):
        made = lambda: (
            half(batch, channels, size, size).to(memory_format=torch.channels_last)
            if layout == "images"
            else half(batch, size * size, channels)
        )
        title = f"{layout}, batch {batch}, {channels} channels, size {size}"
        case(f"bias: {title}", op.nhwc_bias_add, made(), half(channels))
        case(f"bias and other: {title}", op.nhwc_bias_add_add, made(), half(channels), made())
        case(f"two biases: {title}", op.nhwc_bias_add_bias_add, made(), half(channels), made(), half(channels))
    forms = {
        "contiguous": half(2, 8, 4, 4),
        "strided": half(2, 16, 8)[:, ::2],
        "transposed": half(2, 8, 16).transpose(1, 2),
        "expanded": half(1, 16, 8).expand(3, 16, 8),
        "float": empty(2, 16, 8),
        "on the CPU": half(2, 16, 8, device="cpu"),
        "None": None,
        "empty": half(0, 16, 8),
        "a parameter": torch.nn.Parameter(half(2, 16, 8)),
    }
    for name, tensor in forms.items():
        case(f"bias: {name}", op.nhwc_bias_add, tensor, half(8))
        case(f"error of the launch: {name}", torch.cuda.synchronize)  # of an empty grid
    on_streams_and_devices("bias", op.nhwc_bias_add, lambda device: [half(2, 16, 8, device=device), half(8, device=device)])
