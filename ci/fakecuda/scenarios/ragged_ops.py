"""Buffers of pinned memory and views of buffers. The op has no kernel: what it asks of CUDA is memory."""

import itertools

import torch
from harness import BF16, F16, F32, F64, case, empty, load, on_streams_and_devices


def cases(wheel):
    op = load(wheel, "ragged_ops")
    for dtype, shape in itertools.product((F16, BF16, F32, F64, torch.int32, torch.int64), ((1,), (768,), (17, 4), (2, 3, 5), (0, 3))):
        case(f"host buffer: {dtype}, {shape}", op.allocate_fast_host_buffer, empty(*shape, dtype=dtype))
        case(f"host buffer of a transposed one: {dtype}, {shape}", op.allocate_fast_host_buffer, empty(*shape, dtype=dtype).T)
    for dtype, device, offset in itertools.product((F16, F32, torch.int32), ("cuda", "cpu"), (0, 64, 4096)):
        buffer, tensor = empty(1 << 16, dtype=torch.int8, device=device), empty(16, 8, dtype=dtype)
        title = f"{dtype} on {device} from {offset}"
        case(f"view on: {title}", op.allocate_view_on, tensor, buffer, offset)
        case(f"view on, transposed: {title}", op.allocate_view_on, tensor.T, buffer, offset)
        case(f"view like: {title}", op.allocate_view_like, (4, 2), (2, 1), tensor, buffer, offset)
    buffer = empty(1 << 16, dtype=torch.int8)
    for name, wrong in {"None": None, "a number": 3, "a list": [1.0]}.items():
        case(f"host buffer: {name}", op.allocate_fast_host_buffer, wrong)
        case(f"view on: {name}", op.allocate_view_on, wrong, buffer, 0)
        case(f"view like: shape {name}", op.allocate_view_like, wrong, (1,), buffer, buffer, 0)
    on_streams_and_devices("host buffer", op.allocate_fast_host_buffer, lambda device: [empty(768, device=device)])
