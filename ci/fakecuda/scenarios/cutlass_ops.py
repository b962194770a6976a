import itertools

import torch
from harness import BF16, F16, F32, case, empty, load, on_streams_and_devices

ACTIVATIONS = range(7)
I8, I64 = torch.int8, torch.int64


def cases(wheel):
    op = load(wheel, "cutlass_ops")
    for dtype, rows, experts, (k, n), kind in itertools.product(
        (F16, BF16), (1, 16, 100, 512), (1, 8), ((128, 256), (1024, 4096)), ACTIVATIONS
    ):
        title = f"{dtype}, {rows} rows, {experts} experts of {k} x {n}, activation {kind}"
        out, hidden, before = empty(rows, n, dtype=dtype), empty(rows, k, dtype=dtype), empty(experts, dtype=I64)
        for bias in (None, empty(experts, n, dtype=dtype)):
            case(
                f"moe_gemm: {title}, bias {bias is not None}",
                op.moe_gemm,
                out,
                hidden,
                empty(experts, k, n, dtype=dtype),
                bias,
                before,
                kind,
            )
            for bits in (4, 8):
                case(
                    f"mixed_moe_gemm: {title}, {bits} bits, bias {bias is not None}",
                    op.mixed_moe_gemm,
                    out,
                    hidden,
                    empty(experts, k, n, dtype=I8),
                    empty(experts, n, dtype=dtype),
                    bias,
                    before,
                    bits,
                    kind,
                )
    for dtype, rows, (k, n), kind, bits in itertools.product(
        (F16, BF16), (1, 16, 100, 512), ((128, 256), (1024, 4096)), ACTIVATIONS, (4, 8, 3)
    ):
        for bias in (None, empty(n, dtype=dtype)):
            case(
                f"mixed_gemm: {dtype}, {rows} rows, {k} x {n}, activation {kind}, {bits} bits, bias {bias is not None}",
                op.mixed_gemm,
                empty(rows, n, dtype=dtype),
                empty(rows, k, dtype=dtype),
                empty(k, n, dtype=I8),
                empty(n, dtype=dtype),
                bias,
                bits,
                kind,
            )
    moe = lambda device: [
        empty(16, 256, dtype=F16, device=device),
        empty(16, 128, dtype=F16, device=device),
        empty(2, 128, 256, dtype=F16, device=device),
        None,
        empty(2, dtype=I64, device=device),
        6,
    ]
    on_streams_and_devices("moe_gemm", op.moe_gemm, moe)
    out, hidden, weight, _, before, kind = moe("cuda")
    for name, arguments in {
        "other types": (out, hidden.float(), weight),
        "a row too few": (out[:15], hidden, weight),
        "other width": (out, hidden[:, :64], weight),
        "None": (out, None, weight),
    }.items():
        case(f"moe_gemm: {name}", op.moe_gemm, *arguments, None, before, kind)
