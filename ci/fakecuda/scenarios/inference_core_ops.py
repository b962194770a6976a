import itertools

import torch
from harness import BF16, F16, F32, F64, case, empty, load, on_streams_and_devices, with_refused_launches

ACTIVATIONS = range(7)  # csrc/includes/activation_type.h: 0 to 6, and one that is none
SIZES = ((1, 64), (7, 768), (32, 1024), (128, 4096), (3, 8192))


def cases(wheel):
    op = load(wheel, "inference_core_ops")
    for dtype, (rows, columns) in itertools.product((F16, BF16, F32, F64), SIZES):
        elementwise(op, dtype, rows, columns)
        products(op, dtype, rows, columns)
    case("handle", op.create_handle)
    six_bits(op)
    x = (
        lambda device: [empty(4, 64, dtype=F16, device=device) for _ in range(2)]
        + [empty(64, dtype=F16, device=device) for _ in range(2)]
        + [1e-5]
    )
    on_streams_and_devices("layer_norm", op.layer_norm, x)
    with_refused_launches("layer_norm", op.layer_norm, x, ["fused_ln"], (9,))
    a, b, gamma, beta, _ = x("cuda")
    for name, wrong in {"None": None, "on the CPU": a.cpu(), "other type": a.float(), "strided": empty(4, 128, dtype=F16)[:, ::2]}.items():
        case(f"layer_norm: {name}", op.layer_norm, b, wrong, gamma, beta, 1e-5)


def elementwise(op, dtype, rows, columns):
    title = f"{dtype}, {rows} x {columns}"
    made = lambda n=columns: empty(rows, n, dtype=dtype)
    x, y, residual, out, gamma, beta = made(), made(), made(), made(), empty(columns, dtype=dtype), empty(columns, dtype=dtype)
    for kind, bias in itertools.product(ACTIVATIONS, (None, gamma)):
        case(f"bias_activation {kind}: {title}, bias {bias is not None}", op.bias_activation, x, bias, kind)
    for kind, bias in itertools.product(ACTIVATIONS, (None, empty(2 * columns, dtype=dtype))):
        case(f"gated_activation {kind}: {title}, bias {bias is not None}", op.gated_activation, out, made(2 * columns), bias, kind)
    case(f"layer_norm: {title}", op.layer_norm, out, x, gamma, beta, 1e-5)
    case(f"pre_layer_norm: {title}", op.pre_layer_norm, residual, out, x, y, gamma, beta, 1e-5)
    case(f"post_layer_norm: {title}", op.post_layer_norm, out, x, y, gamma, beta, 1e-5)
    case(f"rms_norm: {title}", op.rms_norm, out, x, gamma, 1e-6)
    case(f"rms_pre_norm: {title}", op.rms_pre_norm, out, residual, x, y, gamma, 1e-6)


def products(op, dtype, rows, columns):
    title = f"{dtype}, {rows} x {columns}"
    hidden, weights = empty(rows, columns, dtype=dtype), empty(48, columns, dtype=dtype)
    case(f"blas_linear: {title}", op.blas_linear, empty(rows, 48, dtype=dtype), hidden, weights)
    case(
        f"blas_linear transposed: {title}",
        op.blas_linear,
        empty(rows, 48, dtype=dtype),
        empty(columns, rows, dtype=dtype).t(),
        empty(columns, 48, dtype=dtype).t(),
    )
    case(
        f"blas_4d_matmul: {title}",
        op.blas_4d_matmul,
        empty(2, 3, rows, 48, dtype=dtype),
        empty(2, 3, columns, 48, dtype=dtype),
        empty(2, 3, rows, columns, dtype=dtype),
    )


def six_bits(op):
    for m, k, n, split in itertools.product((256, 1024), (64, 256), (1, 8, 16, 33, 64, 128, 200), (1, 2, 4)):
        two, four = empty(m * k * 2 // 8, dtype=torch.uint8), empty(m * k * 4 // 8, dtype=torch.uint8)
        arguments = (empty(n, m, dtype=F16), empty(n, k, dtype=F16), two, four, empty(m, dtype=F16), empty(m * n * split), m, n, k, split)
        case(f"wf6af16_linear: {m} x {k}, {n} tokens, split {split}", op.cuda_wf6af16_linear, *arguments)
    for name, weight in {
        "64 x 64": torch.ones(64, 64, dtype=F16),
        "on the GPU": empty(64, 64, dtype=F16),
        "float": torch.ones(64, 64),
        "one dimension": torch.ones(64, dtype=F16),
    }.items():
        case(f"preprocess_weight: {name}", lambda: [(list(t.shape), t.dtype, t.sum().item()) for t in op.preprocess_weight(weight)])
