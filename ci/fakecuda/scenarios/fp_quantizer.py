import itertools

import torch
from harness import BF16, F16, F32, case, empty, load, on_streams_and_devices

U8 = torch.uint8
FORMATS = ((1, 2), (2, 3), (2, 5), (3, 4), (4, 7))  # bits of the mantissa and the exponent
SCALE = 4  # bytes of a group's scale, behind its values


def cases(wheel):
    op = load(wheel, "fp_quantizer")
    for dtype, bits, (mantissa, exponent), groups, size in itertools.product(
        (F16, BF16, F32), (4, 6, 8, 12), FORMATS, (1, 5, 128), (128, 512, 1000)
    ):
        values, packed = empty(groups, size, dtype=dtype), empty(groups, size * bits // 8 + SCALE, dtype=U8)
        title = f"{dtype}, {bits} bits of {mantissa}+{exponent}, {groups} x {size}"
        for stochastic in (0, 1):
            case(f"quantize: {title}, stochastic {stochastic}", op.quantize, packed, values, size, stochastic, bits, mantissa)
        case(f"dequantize: {title}", op.dequantize, values, packed, size, mantissa, exponent)
        case(
            f"selective dequantize: {title}",
            op.selective_dequantize,
            values,
            packed,
            torch.zeros(max(1, groups // 2), dtype=torch.int32, device="cuda"),
            size,
            mantissa,
            exponent,
        )
        case(f"scales: {title}", op.get_scales, packed, groups)
    case("scales: a view", op.get_scales, empty(9, 516, dtype=U8)[3:], 5)
    case("scales: on the CPU", op.get_scales, empty(9, 516, dtype=U8, device="cpu"), 5)
    on_streams_and_devices("scales", op.get_scales, lambda device: [empty(5, 516, dtype=U8, device=device), 5])
    on_streams_and_devices(
        "quantize",
        op.quantize,
        lambda device: [empty(5, 516, dtype=U8, device=device), empty(5, 512, dtype=F16, device=device), 512, 1, 8, 3],
    )
