import itertools

import torch
from harness import F16, case, empty, load, on_streams_and_devices, refusing, with_refused_launches

I8 = torch.int8


def half(*shape, device="cuda"):
    return empty(*shape, dtype=F16, device=device)


def cases(wheel):
    op = load(wheel, "quantizer")
    kinds = (op.Symmetric, op.Asymmetric)

    def scales(groups, kind):
        return empty(groups, 1 if kind == op.Symmetric else 2)

    for kind, bits, groups, size in itertools.product(
        kinds, (4, 8), (1, 2, 3, 16, 1000), (8, 16, 24, 64, 128, 136, 256, 1000, 1024, 4096, 4104, 8192, 8200, 12288, 16384, 20000)
    ):
        case(f"quantize: {kind.name}, {bits} bits, {groups} x {size}", op.quantize, half(groups, size), groups, bits, kind)
    for name, kind, bits, groups, size in itertools.product(
        ("dequantize", "dequantize_fp32"), kinds, (4, 8), (1, 2, 16, 100), (16, 64, 512, 4096, 6000)
    ):
        values = empty(groups, size * bits // 8, dtype=I8)
        case(f"{name}: {kind.name}, {bits} bits, {groups} x {size}", getattr(op, name), values, scales(groups, kind), groups, bits, kind)
    for bits, groups, size in itertools.product((4, 8), (1, 7, 64), (8, 64, 1024, 4096)):
        function = getattr(op, f"dequantize_int{bits}_to_half_experimental")
        case(
            f"dequantize to half: {bits} bits, {groups} x {size}",
            function,
            empty(groups, size * bits // 8, dtype=torch.uint8),
            half(groups),
            half(groups),
            groups,
            size,
        )
    sizes = (64, 128, 512, 1024, 2048, 4096, 8192, 12288, 16384, 20480, 24576, 32768, 40960)
    for kind, bits, groups, size, pipeline, nodes, devices in itertools.product(kinds, (4, 8), (16, 64), sizes, (1, 2), (1, 2), (1, 4)):
        title = f"swizzle: {kind.name}, {bits} bits, {groups} x {size}, pipeline {pipeline}, {nodes} nodes of {devices}"
        case(title, op.swizzle_quant, half(groups, size), groups, bits, kind, pipeline, nodes, devices)
    sizes = (128, 512, 2048, 4096, 8192, 12288, 16384, 20480, 24576, 32768, 49152, 65536, 81920, 98304)
    for kind, bits, groups, size, devices in itertools.product(kinds, (4, 8), (1, 16), sizes, (2, 3, 8, 16)):
        values = empty(devices * groups, size * bits // 8, dtype=I8)
        title = f"reduce: {kind.name}, {bits} bits, {groups} x {size}, {devices} devices"
        case(title, op.quantized_reduction, values, scales(devices * groups, kind), devices * groups, groups, bits, kind, devices)
    forms = {
        "one dimension": (half(64), 4),
        "four dimensions": (half(2, 3, 4, 64), 24),
        "strided": (half(4, 128)[:, ::2], 4),
        "a view": (half(4, 128)[2:], 2),
        "float": (empty(4, 128), 4),
        "on the CPU": (half(4, 128, device="cpu"), 4),
        "a parameter": (torch.nn.Parameter(half(4, 128)), 4),
        "3 bits": (half(4, 128), 4, 3),
        "a list": ([half(4, 8)], 4),
        "None": (None, 4),
        "half a group": (half(4, 8), 4.5),
        "too many groups": (half(4, 8), 2**31),
    }
    for name, (tensor, groups, *bits) in forms.items():
        case(f"quantize: {name}", op.quantize, tensor, groups, *(bits or [8]), op.Symmetric)
    case("quantize: a number for the kind", op.quantize, half(4, 8), 4, 8, 0)
    case("quantize: an argument too few", op.quantize, half(4, 8), 4, 8)
    case("quantize: an argument too many", op.quantize, half(4, 8), 4, 8, op.Symmetric, 1)
    on_streams_and_devices("quantize", op.quantize, lambda device: [half(4, 128, device=device), 4, 8, op.Symmetric])
    on_streams_and_devices(
        "dequantize", op.dequantize, lambda device: [empty(4, 128, dtype=I8, device=device), empty(4, 1, device=device), 4, 8, op.Symmetric]
    )
    on_streams_and_devices("swizzle", op.swizzle_quant, lambda device: [half(16, 512, device=device), 16, 8, op.Symmetric, 1, 1, 2])
    on_streams_and_devices(
        "reduce",
        op.quantized_reduction,
        lambda device: [empty(8, 512, dtype=I8, device=device), empty(8, 1, device=device), 8, 4, 8, op.Symmetric, 2],
    )
    with_refused_launches(
        "quantize", op.quantize, lambda device: [half(4, 128, device=device), 4, 8, op.Symmetric], ["cached_quantization"], (9,)
    )
    large = half(2**14, 4096)
    torch.cuda.empty_cache()
    with refusing(2, "malloc"):
        case("quantize: no memory", op.quantize, large, 2**14, 8, op.Symmetric)
