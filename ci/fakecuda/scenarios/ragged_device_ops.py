"""The kernels for batches of requests of any length. Their metadata is in integer tensors, which only kernels
read."""

import itertools

import torch
from harness import BF16, F16, F32, case, empty, load, on_streams_and_devices, with_refused_launches

I32, I64 = torch.int32, torch.int64


def ints(*shape, dtype=I32, device="cuda"):
    return empty(*shape, dtype=dtype, device=device)


def metadata(tokens, sequences, device="cuda"):
    """batch_metadata, seq_metadata, tokens_to_seq, kv_ptrs."""
    return [
        ints(2, device=device),
        ints(sequences, 4, device=device),
        ints(tokens, device=device),
        ints(sequences, dtype=I64, device=device),
    ]


def cases(wheel):
    op = load(wheel, "ragged_device_ops")
    for dtype, tokens, sequences in itertools.product((F16, BF16, F32), (1, 17, 256), (1, 8)):
        embeddings(op, dtype, tokens, sequences)
        caches(op, dtype, tokens, sequences)
    for dtype, tokens, experts, best in itertools.product((F16, BF16, F32), (1, 17, 256), (2, 8, 64, 128), (1, 2, 4, 8, 16)):
        experts_of(op, dtype, tokens, experts, best)
    gating = lambda device: [
        ints(8, device=device),
        empty(17, 2, device=device),
        ints(17, 2, device=device),
        ints(17, 2, device=device),
        empty(17, 8, dtype=F16, device=device),
        ints(2, device=device),
    ]
    on_streams_and_devices("top_k_gating", op.top_k_gating, gating)
    with_refused_launches("top_k_gating", op.top_k_gating, gating, ["top_k_gating"], (9,))
    good = gating("cuda")
    for i, how in itertools.product(range(len(good)), ("None", "on the CPU", "64 bits", "shorter")):
        wrong = {"None": None, "on the CPU": good[i].cpu(), "64 bits": good[i].to(I64), "shorter": good[i][:1]}[how]
        case(f"top_k_gating: argument {i} {how}", op.top_k_gating, *good[:i], wrong, *good[i + 1 :])


def embeddings(op, dtype, tokens, sequences):
    title, columns = f"{dtype}, {tokens} tokens of {sequences}", 768
    for numbers, position in itertools.product((I32, I64), (None, empty(512, columns, dtype=dtype))):
        case(
            f"ragged_embed: {title}, {numbers}, position {position is not None}",
            op.ragged_embed,
            empty(tokens, columns, dtype=dtype),
            ints(tokens, dtype=numbers),
            empty(1000, columns, dtype=dtype),
            position,
            2,
            *metadata(tokens, sequences),
        )
    batch, sequence, _, _ = metadata(tokens, sequences)
    case(
        f"gather_for_logits: {title}",
        op.gather_for_logits,
        empty(sequences, columns, dtype=dtype),
        empty(tokens, columns, dtype=dtype),
        batch,
        sequence,
    )


def caches(op, dtype, tokens, sequences):
    for heads, per_key, size in itertools.product((1, 8), (1, 4), (64, 128)):
        title = f"{dtype}, {tokens} tokens of {sequences}, {heads} x {per_key} heads of {size}"
        cache, q = empty(16, 64, 2, heads, size, dtype=dtype), empty(tokens, heads * per_key * size, dtype=dtype)
        k, v, about = empty(tokens, heads * size, dtype=dtype), empty(tokens, heads * size, dtype=dtype), metadata(tokens, sequences)
        case(f"kv_rotary_embeddings: {title}", op.kv_rotary_embeddings, cache, q, k, v, size, 10000.0, *about)
        case(f"kv_trained_rotary_embeddings: {title}", op.kv_trained_rotary_embeddings, cache, q, k, v, empty(size // 2), *about)
        # the copy wants q, k and v with one stride: parts of one tensor
        together = empty(tokens, (per_key + 2) * heads * size, dtype=dtype)
        parts = together.split([heads * per_key * size, heads * size, heads * size], dim=1)
        case(f"linear_kv_copy: {title}", op.linear_kv_copy, cache, *parts, *about)
        case(f"linear_kv_copy of other strides: {title}", op.linear_kv_copy, cache, q, k, v, *about)


def experts_of(op, dtype, tokens, experts, best):
    title, columns = f"{dtype}, {tokens} tokens, {best} of {experts} experts", 1024
    counts, scores, assignments, offsets, slots = (
        ints(experts),
        empty(tokens, best),
        ints(tokens, best),
        ints(tokens, best),
        ints(tokens, best),
    )
    activations, spread = empty(tokens, columns, dtype=dtype), empty(tokens * best, columns, dtype=dtype)
    case(f"top_k_gating: {title}", op.top_k_gating, counts, scores, assignments, offsets, empty(tokens, experts, dtype=dtype), ints(2))
    case(f"moe_scatter: {title}", op.moe_scatter, spread, ints(experts, dtype=I64), slots, activations, counts, assignments, offsets)
    for normalized in (True, False):
        case(f"moe_gather: {title}, normalized {normalized}", op.moe_gather, activations, spread, scores, slots, counts, normalized)
