"""Attention with up to two biases of MSA and pairs: forward and backward. Its kernels stand for one size of
GPU each, so an arch is asked through the device's capability."""

import itertools

import torch
from harness import BF16, F16, F32, F64, case, empty, load, on_streams_and_devices

LOG_SUM = 32  # rows of lse are padded to a multiple


def made(dtype, batch, rows, length, heads, size, first, second, device="cuda"):
    """q, k, v, the two biases, the output and lse: shapes of DeepSpeed's EvoformerFusedAttention."""
    qkv = [empty(batch, rows, length, heads, size, dtype=dtype, device=device) for _ in range(4)]
    bias1 = empty(batch, rows, 1, 1, length, dtype=dtype, device=device) if first else empty(0, dtype=dtype, device=device)
    bias2 = empty(batch, 1, heads, length, length, dtype=dtype, device=device) if second else empty(0, dtype=dtype, device=device)
    lse = empty(batch * rows, heads, (length + LOG_SUM - 1) // LOG_SUM * LOG_SUM, device=device)
    return [*qkv[:3], bias1, bias2, qkv[3], lse]


def backward(tensors, dtype, device="cuda"):
    q, k, v, bias1, bias2, out, lse = tensors
    gradients = [torch.empty_like(t) for t in (q, k, v)]
    of_bias = [torch.empty(b.shape, dtype=F32, device=device) for b in (bias1, bias2)]
    return [torch.empty_like(out), q, k, v, out, lse, torch.empty_like(lse), bias1, bias2, *gradients, *of_bias]


def cases(wheel):
    op = load(wheel, "evoformer_attn")
    for dtype, rows, length, heads, size, first, second in itertools.product(
        (F16, BF16, F32), (1, 4), (16, 64, 256), (1, 4), (8, 16, 32, 64, 128), (True, False), (True, False)
    ):
        title = f"{dtype}, {rows} x {length}, {heads} heads of {size}, biases {first} {second}"
        tensors = made(dtype, 1, rows, length, heads, size, first, second)
        case(f"attention: {title}", op.attention, *tensors)
        case(f"backward: {title}", op.attention_bwd, *backward(tensors, dtype))
    good = made(F16, 1, 4, 64, 4, 32, True, True)
    case("attention: without lse", op.attention, *good[:6], empty(0))
    case("attention: 64 bits", op.attention, *made(F64, 1, 4, 64, 4, 32, True, True))
    case("attention: other types", op.attention, good[0], good[1].float(), *good[2:])
    case("attention: strided", op.attention, good[0].transpose(1, 2), *good[1:])
    case("attention: heads of 12", op.attention, *made(F16, 1, 4, 64, 4, 12, True, True))
    case("attention: None", op.attention, None, *good[1:])
    on_streams_and_devices("attention", op.attention, lambda device: made(F16, 1, 4, 64, 4, 32, True, True, device=device))
