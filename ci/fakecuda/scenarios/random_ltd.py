import itertools

import torch
from harness import BF16, F16, F32, F64, case, empty, load, on_streams_and_devices


def indices(*shape, device="cuda"):
    return empty(*shape, dtype=torch.int32, device=device)


def cases(wheel):
    op = load(wheel, "random_ltd")
    for layers, batch, kept, tokens in itertools.product((1, 3), (1, 4), (1, 7, 100, 512), (128, 256, 384, 512, 1000, 1024, 2048, 4096)):
        case(f"sort: {layers} layers, batch {batch}, {kept} of {tokens}", op.token_sort_, indices(layers, batch, kept), tokens)
    for dtype, batch, tokens, kept, channels, first in itertools.product(
        (F32, F16, BF16, F64), (1, 3), (16, 512), (1, 8, 100), (8, 64, 1024, 4096, 8192), (True, False)
    ):
        title = f"{dtype}, batch {batch}, {kept} of {tokens}, {channels} channels, batch first {first}"
        shaped = lambda n: empty(*((batch, n) if first else (n, batch)), channels, dtype=dtype)
        x = shaped(tokens)
        case(f"gather: {title}", op.token_gather, x, indices(batch, kept), first)
        case(f"gather transposed: {title}", op.token_gather, x.transpose(0, 1), indices(batch, kept), not first)
        case(f"scatter: {title}", op.token_scatter_, x, shaped(kept), indices(batch, kept), first)
    for dtype, layers, batch, short, long in itertools.product((F32, F16), (1, 5), (1, 4), (1, 33, 128), (128, 500)):
        mask, title = empty(batch, 1, long, long, dtype=dtype), f"{dtype}, {layers} layers, batch {batch}, {short} of {long}"
        case(f"mask of BERT: {title}", op.mask_gather_bert, mask, indices(layers, batch, short))
        case(f"mask of GPT: {title}", op.mask_gather_gpt, mask, short)
        case(f"half a mask of GPT: {title}", op.mask_gather_gpt, mask[:, :, ::2], short)
    forms = {
        "64 bits": empty(1, 2, 3, dtype=torch.int64),
        "on the CPU": indices(1, 2, 3, device="cpu"),
        "two dimensions": indices(2, 3),
        "None": None,
        "a view": indices(4, 2, 3)[2:],
    }
    for name, wrong in forms.items():
        case(f"sort: {name}", op.token_sort_, wrong, 512)
    on_streams_and_devices("sort", op.token_sort_, lambda device: [indices(1, 2, 3, device=device), 512])
    on_streams_and_devices(
        "gather", op.token_gather, lambda device: [torch.nn.Parameter(empty(2, 16, 64, device=device)), indices(2, 4, device=device), True]
    )
