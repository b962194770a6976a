import itertools

import torch
from harness import BF16, F16, F32, F64, case, empty, load, on_streams_and_devices

PRECISIONS = {"fp16": F16, "fp32": F32, "bf16": BF16}
BOTH = (True, False)


def cases(wheel):
    op = load(wheel, "transformer_inference")
    for precision, dtype in PRECISIONS.items():
        if hasattr(op, f"bias_gelu_{precision}"):  # bf16 only where the arch has it
            elementwise(op, precision, dtype)
            with_workspace(op, precision, dtype)
    norm = lambda device: [
        empty(1, 5, 64, dtype=F16, device=device),
        empty(64, dtype=F16, device=device),
        empty(64, dtype=F16, device=device),
        1e-5,
    ]
    on_streams_and_devices("layer_norm", op.layer_norm, norm)
    for name, wrong in {"integers": empty(1, 5, 64, dtype=torch.int32), "64 bits": empty(1, 5, 64, dtype=F64), "None": None}.items():
        case(f"layer_norm: {name}", op.layer_norm, wrong, *norm("cuda")[1:])


def elementwise(op, precision, dtype):
    of, made = lambda name: getattr(op, f"{name}_{precision}"), lambda *shape: empty(*shape, dtype=dtype)
    for batch, length, hidden in itertools.product((1, 3), (1, 17, 128), (64, 768, 1024, 4096)):
        title, x, other = f"{precision} {batch} {length} {hidden}", made(batch, length, hidden), made(batch, length, hidden)
        case(f"layer_norm: {title}", op.layer_norm, x, made(hidden), made(hidden), 1e-5)
        case(f"layer_norm transposed: {title}", op.layer_norm, x.transpose(0, 1), made(hidden), made(hidden), 1e-5)
        case(
            f"layer_norm and residual: {title}",
            op.layer_norm_residual_store_pre_ln_res,
            x,
            made(hidden),
            other,
            made(hidden),
            made(hidden),
            1e-5,
        )
        case(f"rms_norm: {title}", op.rms_norm, x, made(hidden), 1e-6)
        case(f"pre_rms_norm: {title}", op.pre_rms_norm, x, other, made(hidden), 1e-6)
        for kind in (2, 0):
            case(f"gated_activation {kind}: {title}", op.gated_activation, x, made(hidden), kind)
        for name in ("bias_gelu", "bias_relu", "bias_add"):
            case(f"{name}: {title}", of(name), x, made(hidden))
        case(f"bias_residual: {title}", of("bias_residual"), x, other, made(hidden))
        case(f"vector_add: {title}", op._vector_add, x, other, 0.3)
        for parallel, after, add, pre in itertools.product((1, 2), BOTH, BOTH, BOTH):
            case(
                f"residual_add_bias: {title} {parallel} {after} {add} {pre}",
                of("residual_add_bias"),
                x,
                other,
                other,
                made(hidden),
                made(hidden),
                parallel,
                after,
                add,
                pre,
            )


def with_workspace(op, precision, dtype):
    of, made = lambda name: getattr(op, f"{name}_{precision}"), lambda *shape: empty(*shape, dtype=dtype)
    none = made(0)
    for hidden, heads, length, batch, layers in ((1024, 16, 128, 1, 2), (4096, 32, 256, 2, 3)):
        title, x = f"{precision} {hidden} {heads} {length} {batch}", made(batch, length, hidden)
        case(f"workspace: {title}", of("allocate_workspace"), hidden, heads, length, batch, layers, 1, False, 0, 512, 1)
        for bias, transposed in itertools.product(BOTH, BOTH):
            weight = lambda rows, columns: made(columns, rows) if transposed else made(rows, columns)
            switches = f"{title} bias {bias}, transposed {transposed}"
            case(
                f"qkv_gemm: {switches}",
                of("qkv_gemm"),
                x,
                weight(hidden, 3 * hidden),
                none,
                made(3 * hidden),
                made(hidden),
                made(hidden),
                1e-5,
                bias,
                False,
                transposed,
            )
            case(
                f"linear_layer: {switches}",
                of("linear_layer"),
                x,
                weight(hidden, 3 * hidden),
                made(3 * hidden),
                bias,
                False,
                heads,
                transposed,
                10000.0,
            )
            case(
                f"mlp_gemm: {switches}",
                of("mlp_gemm"),
                x,
                x,
                made(hidden),
                weight(hidden, 4 * hidden),
                weight(4 * hidden, hidden),
                made(4 * hidden),
                made(hidden),
                made(hidden),
                1e-5,
                bias,
                True,
                none,
                none,
                False,
                1,
                transposed,
            )
        case(f"vector_matmul: {title}", of("vector_matmul"), x, made(hidden, hidden), False, none, False, False)
        for prompt, rotary, masked, local in itertools.product(BOTH, (0, 64), BOTH, BOTH):
            tokens = length if prompt else 1
            case(
                f"softmax_context: {title} prompt {prompt}, rotary {rotary}, masked {masked}, local {local}",
                of("softmax_context"),
                made(batch, tokens, 3 * hidden),
                made(batch, 1, 1, tokens) if masked else none,
                rotary,
                True,
                False,
                heads,
                -1,
                8.0,
                True,
                local,
                256,
                not masked,
                0,
                layers,
                none,
                10000.0,
                prompt,
                None,
                None,
            )
        case(f"dequantize: {title}", of("dequantize"), empty(hidden, hidden, dtype=torch.int8), empty(16), 16)
        case(f"rotary: {title}", op.apply_rotary_pos_emb, x, made(batch, length, hidden), 64, 0, heads, True, 10000.0)
        case(f"moe_res_matmul: {title}", op.moe_res_matmul, made(length, hidden), made(hidden, 2), made(length, hidden))
        for name in ("reset_cache", "release_workspace", "retake_workspace"):
            case(f"{name}: {title}", getattr(op, name))
