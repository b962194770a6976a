"""Compare what the ops of an installed DeepSpeed compute with torch: on the first GPU or, where torch
finds none, on the CPU, if the op has code for it. compute_ops.py runs it on nodes. It is also a command,
which prints JSON and fails where a result is further from torch's than its tolerance.

usage: compute.py OP             compare an op, on a GPU in a new stream
       compute.py --list         the ops, and whether each needs a GPU
       compute.py --references   what torch computes: it needs neither GPU nor DeepSpeed

A distance is relative to the largest number of torch's result, and so is its tolerance. An op computes in half
precision where it has no other kernel."""
import contextlib
import hashlib
import importlib
import json
import math
import os
import re
import sys

import torch
import torch.nn.functional as F

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# Tolerances, each with its source.
EXACT = 0.0, "it copies, and computes nothing"
FLOAT = 160 * 2.0**-24, "float32 rounds by 2^-24, up to 32 times in each of 5 steps"
SUM = 1600 * 2.0**-24, "float32 rounds by 2^-24, and sums of thousands of numbers are added in any order"
FAST = 2.0**-10, "the kernels call CUDA's fast functions, which promise 10 of float32's 24 bits"
HALF = 20 * 2.0**-11, "float16 rounds by 2^-11, up to 20 times"


class Uncompared(Exception):
    """Why an op cannot be compared here."""


class NoGPU(Uncompared):
    """It needs a GPU."""


def load(op):
    from deepspeed.ops.op_builder.all_ops import ALL_OPS

    return ALL_OPS[op].load()


def randn(*size, dtype=torch.float32, scale=1.0):
    return (torch.randn(*size) * scale).to(DEVICE, dtype)


def gradients(params, steps=5):
    return [[torch.randn(p.shape).to(p.device) for p in params] for _ in range(steps)]


def trained(optimizer, params, grads):
    """The parameters after a step for each list of gradients."""
    for some in grads:
        for p, g in zip(params, some):
            p.grad = g.clone()
        optimizer.step()
    return [p.detach() for p in params]


def parameters(device=DEVICE):
    """Parameters of several sizes: with a rest after whole vectors, and larger than a chunk of the fused optimizers."""
    return [torch.nn.Parameter(torch.randn(n).to(device)) for n in (1, 7, 1000, 2048 * 64 + 5)]


def copies(params):
    return [torch.nn.Parameter(p.detach().clone()) for p in params]


# Each function below yields the comparisons of an op: a name, what the op computes, what torch
# computes (both lists of tensors), and the tolerance.


def optimizer(module, name):
    """A class in deepspeed.ops, which is imported when it is called: what torch computes needs no DeepSpeed."""
    return lambda *args, **options: getattr(importlib.import_module("deepspeed.ops." + module), name)(*args, **options)


def fused_adam():
    yield optimized("AdamW", optimizer("adam", "FusedAdam"), torch.optim.AdamW, parameters())


def cpu_adam():
    yield optimized("AdamW", optimizer("adam", "DeepSpeedCPUAdam"), torch.optim.AdamW, parameters("cpu"))


def cpu_adagrad():
    """Without weight decay: the numerator of a step lacks it in the releases before 0.19.8."""
    yield optimized("Adagrad", optimizer("adagrad", "DeepSpeedCPUAdagrad"), torch.optim.Adagrad, parameters("cpu"), decay=0)


def cpu_lion():
    def right(*args, **options):
        import deepspeed

        if [int(n) for n in re.findall(r"\d+", deepspeed.__version__)[:3]] < [0, 19, 8]:
            raise Uncompared("before 0.19.8 the steps of DeepSpeed's CPU Lion have wrong sizes")
        return optimizer("lion", "DeepSpeedCPULion")(*args, **options)

    yield lion(right, parameters("cpu"))


def optimized(name, ours, of_torch, params, decay=0.1):
    grads = gradients(params)

    def after(kind):
        mine = copies(params)
        return trained(kind(mine, lr=1e-2, weight_decay=decay), mine, grads)

    return name + ", 5 steps", lambda: after(ours), lambda: after(of_torch), FLOAT


def fused_lamb():
    params = [torch.nn.Parameter(randn(n)) for n in (1000, 4096 * 33)]
    grads = gradients(params, steps=1)
    lr, beta1, beta2, eps, decay = 1e-2, 0.9, 0.999, 1e-8, 0.01

    def ours():
        from deepspeed.ops.lamb import FusedLamb

        mine = copies(params)
        return trained(FusedLamb(mine, lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=decay), mine, grads)

    def reference():
        found = []
        for p, g in zip(params, grads[0]):
            p = p.detach()
            update = (1 - beta1) * g / (((1 - beta2) * g * g).sqrt() + eps) + decay * p
            trust = (p.norm() / update.norm()).clamp(0.01, 10.0)
            found.append(p - lr * math.sqrt(1 - beta2) / (1 - beta1) * trust * update)
        return found

    yield "one step", ours, reference, SUM


def fused_lion():
    yield lion(optimizer("lion", "FusedLion"), parameters())


def lion(kind, params):
    """Algorithm 2 of arXiv 2302.06675: torch has no Lion."""
    grads, (lr, beta1, beta2, decay) = gradients(params), (1e-2, 0.9, 0.99, 0.1)

    def directions(i):
        momentum = torch.zeros_like(params[i], dtype=torch.float64)
        for some in grads:
            yield beta1 * momentum + (1 - beta1) * some[i].double()
            momentum = beta2 * momentum + (1 - beta2) * some[i].double()

    # A step depends on the sign of a sum: where one is so small that rounding may change its sign, all gradients are 1.
    for i in range(len(params)):
        unsure = torch.stack([d.abs() < 1e-6 for d in directions(i)]).any(0)
        for some in grads:
            some[i][unsure] = 1

    def ours():
        mine = copies(params)
        return trained(kind(mine, lr=lr, betas=(beta1, beta2), weight_decay=decay), mine, grads)

    def reference():
        found = []
        for i, p in enumerate(params):
            p = p.detach().clone()
            for direction in directions(i):
                p = p * (1 - lr * decay) - lr * direction.sign().float()
            found.append(p)
        return found

    return "5 steps", ours, reference, FLOAT


def quantizer():
    groups, values = 16, randn(64, 1024, dtype=torch.float16)

    for bits in (8, 4):

        def ours(bits=bits):
            op = load("quantizer")
            packed, scales = op.quantize(values, groups, bits, op.Symmetric)
            return [op.dequantize(packed, scales, groups, bits, op.Symmetric)]

        def reference(bits=bits):
            of_groups = values.float().reshape(groups, -1)
            scale = 2**bits / (2 * of_groups.abs().amax(-1, keepdim=True))
            whole = (of_groups * scale).round().clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
            return [(whole / scale).half().reshape(values.shape)]

        most = 1.02 / 2 ** (bits - 1), f"a number in the middle of two of {bits} bits goes to either"
        yield f"{bits} bits, symmetric", ours, reference, most


def fp_quantizer():
    group, values = 128, randn(32, 1024, dtype=torch.bfloat16)

    def ours():
        from deepspeed.linear import QuantizationConfig
        from deepspeed.ops.fp_quantizer import FP_Quantize

        quantize = FP_Quantize(QuantizationConfig(group_size=group))
        return [quantize.dequantize(quantize.quantize(values.clone(), q_bits=8), q_bits=8)]

    def reference():
        return [values]

    yield "8 bits, against the numbers themselves", ours, reference, (1 / 16, "half of the last of 3 bits of mantissa")


def random_ltd():
    tokens, kept, batch = 64, 24, 3
    indices = torch.stack([torch.randperm(tokens)[:kept] for _ in range(2 * batch)]).reshape(2, batch, kept).to(DEVICE, torch.int32)

    yield "token_sort_", lambda: [load("random_ltd").token_sort_(indices.clone(), tokens)], lambda: [indices.sort(-1).values], EXACT
    chosen = indices[0].sort(-1).values.contiguous()
    for dtype in (torch.float32, torch.float16):
        for first in (True, False):
            all_tokens, some = randn(batch, tokens, 64, dtype=dtype), randn(batch, kept, 64, dtype=dtype)
            if not first:
                all_tokens, some = all_tokens.transpose(0, 1).contiguous(), some.transpose(0, 1).contiguous()
            place = (chosen if first else chosen.t()).long().unsqueeze(-1).expand_as(some)

            def gathered(a=all_tokens, first=first):
                return [load("random_ltd").token_gather(a, chosen, first)]

            def scattered(a=all_tokens, s=some, first=first):
                return [load("random_ltd").token_scatter_(a.clone(), s, chosen, first)]

            name = f"{dtype}, batch first {first}"
            yield "token_gather " + name, gathered, lambda a=all_tokens, p=place, d=int(first): [a.gather(d, p)], EXACT
            yield "token_scatter_ " + name, scattered, lambda a=all_tokens, p=place, s=some, d=int(first): [a.scatter(d, p, s)], EXACT
    mask = randn(batch, 1, tokens, tokens)
    yield "mask_gather_gpt", lambda: [load("random_ltd").mask_gather_gpt(mask, 32)], lambda: [mask[:, :, :32, :32].contiguous()], EXACT


def transformer(stochastic=False):
    batch, length, hidden, heads = 2, 32, 128, 4
    shapes = {
        "attn_qkvw": (3 * hidden, hidden), "attn_qkvb": (3 * hidden,), "attn_ow": (hidden, hidden), "attn_ob": (hidden,),
        "attn_nw": (hidden,), "attn_nb": (hidden,), "inter_w": (4 * hidden, hidden), "inter_b": (4 * hidden,),
        "output_w": (hidden, 4 * hidden), "output_b": (hidden,), "norm_w": (hidden,), "norm_b": (hidden,),
    }
    weights = {name: randn(*shape, scale=0.1) for name, shape in shapes.items()}
    given, mask = randn(batch, length, hidden), torch.zeros(batch, 1, 1, length, device=DEVICE)

    def ours(half, before):
        from deepspeed import DeepSpeedTransformerConfig, DeepSpeedTransformerLayer

        dtype = torch.float16 if half else torch.float32
        layer = DeepSpeedTransformerLayer(DeepSpeedTransformerConfig(
            batch_size=batch, hidden_size=hidden, intermediate_size=4 * hidden, heads=heads, attn_dropout_ratio=0.0, hidden_dropout_ratio=0.0,
            num_hidden_layers=1, initializer_range=0.02, seed=1, fp16=half, pre_layer_norm=before, stochastic_mode=stochastic))
        for name, value in weights.items():
            getattr(layer, name).data.copy_(value)
        layer = layer.to(DEVICE, dtype)
        x = given.to(dtype).requires_grad_()
        out = layer(x, mask.to(dtype))
        out.sum().backward()
        return [out.detach().float(), *([] if half else [layer.output_w.grad.float()])]

    def reference(half, before):
        w = {name: value.clone().requires_grad_() for name, value in weights.items()}

        def normalized(x, name):
            return F.layer_norm(x, (hidden,), w[name + "_w"] if name == "norm" else w["attn_nw"], w[name + "_b"] if name == "norm" else w["attn_nb"], 1e-12)

        def attention(x):
            q, k, v = F.linear(x, w["attn_qkvw"], w["attn_qkvb"]).reshape(batch, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
            context = (q @ k.transpose(-1, -2) / math.sqrt(hidden // heads)).softmax(-1) @ v
            return F.linear(context.transpose(1, 2).reshape(batch, length, hidden), w["attn_ow"], w["attn_ob"])

        def feed_forward(x):
            return F.linear(F.gelu(F.linear(x, w["inter_w"], w["inter_b"]), approximate="tanh"), w["output_w"], w["output_b"])

        # The layer's names: norm_w belongs to the first step, attn_nw to the second.
        if before:
            x = given + attention(normalized(given, "norm"))
            out = x + feed_forward(normalized(x, "attn"))
        else:
            x = normalized(given + attention(given), "attn")
            out = normalized(x + feed_forward(x), "norm")
        out.sum().backward()
        return [out.detach(), *([] if half else [w["output_w"].grad])]

    for half in (False, True):
        for before in (True, False):
            name = f"a layer, half {half}, normalized before {before}"
            yield name, lambda h=half, b=before: ours(h, b), lambda h=half, b=before: reference(h, b), HALF


def stochastic_transformer():
    yield from transformer(stochastic=True)


def evoformer_attn():
    q, k, v = (randn(1, 4, 64, 4, 32, dtype=torch.float16) for _ in range(3))
    grad = randn(1, 4, 64, 4, 32, dtype=torch.float16)
    mask = torch.where(randn(1, 4, 1, 1, 64) > 1, -1e4, 0.0).half()
    bias = randn(1, 1, 4, 64, 64, dtype=torch.float16)

    def leaves(dtype):
        return [t.detach().to(dtype).requires_grad_() for t in (q, k, v)]

    def ours():
        from deepspeed.ops.deepspeed4science import DS4Sci_EvoformerAttention

        mine = leaves(torch.float16)
        out = DS4Sci_EvoformerAttention(*mine, [mask, bias])
        out.backward(grad)
        return [out.detach(), *(t.grad for t in mine)]

    def reference():
        mine = leaves(torch.float32)
        a, b, c = (t.transpose(-2, -3) for t in mine)
        out = ((a @ b.transpose(-1, -2) / math.sqrt(32) + mask.float() + bias.float()).softmax(-1) @ c).transpose(-2, -3)
        out.backward(grad.float())
        return [out.detach(), *(t.grad for t in mine)]

    yield "attention with two biases, forward and backward", ours, reference, HALF


def spatial_inference():
    image, other = (randn(2, 64, 16, 16, dtype=torch.float16).to(memory_format=torch.channels_last) for _ in range(2))
    bias, more = randn(64, dtype=torch.float16), randn(64, dtype=torch.float16)
    wide = lambda b: b.reshape(1, -1, 1, 1).float()

    yield "nhwc_bias_add", lambda: [load("spatial_inference").nhwc_bias_add(image, bias)], lambda: [image.float() + wide(bias)], HALF
    yield "nhwc_bias_add_add", lambda: [load("spatial_inference").nhwc_bias_add_add(image, bias, other)], lambda: [image.float() + wide(bias) + other.float()], HALF
    yield (
        "nhwc_bias_add_bias_add", lambda: [load("spatial_inference").nhwc_bias_add_bias_add(image, bias, other, more)],
        lambda: [image.float() + wide(bias) + other.float() + wide(more)], HALF,
    )


def transformer_inference():
    for dtype, name, most in ((torch.float32, "fp32", FAST), (torch.float16, "fp16", HALF)):
        x, gamma, beta = randn(2, 16, 1024, dtype=dtype), randn(1024, dtype=dtype), randn(1024, dtype=dtype)
        wide = lambda x=x, gamma=gamma, beta=beta: (x.float(), gamma.float(), beta.float())

        def normalized(wide=wide):
            a, g, b = wide()
            return [F.layer_norm(a, (1024,), g, b, 1e-5)]

        def scaled(wide=wide):
            a, g, _ = wide()
            return [a * torch.rsqrt(a.pow(2).mean(-1, keepdim=True) + 1e-5) * g]

        def activated(function, wide=wide):
            a, _, b = wide()
            return [function(a + b)]

        # These write over what they are given.
        def called(kind, x=x, beta=beta, name=name):
            return [getattr(load("transformer_inference"), f"{kind}_{name}")(x.clone(), beta)]

        yield "layer_norm " + name, lambda x=x, g=gamma, b=beta: [load("transformer_inference").layer_norm(x, g, b, 1e-5)], normalized, most
        yield "rms_norm " + name, lambda x=x, g=gamma: [load("transformer_inference").rms_norm(x, g, 1e-5)], scaled, most
        yield "bias_gelu " + name, lambda c=called: c("bias_gelu"), lambda a=activated: a(lambda v: F.gelu(v, approximate="tanh")), most
        yield "bias_relu " + name, lambda c=called: c("bias_relu"), lambda a=activated: a(F.relu), most
        yield "bias_add " + name, lambda c=called: c("bias_add"), lambda a=activated: a(lambda v: v), most


def inference_core_ops():
    x, gamma, beta = randn(32, 1024, dtype=torch.float16), randn(1024, dtype=torch.float16), randn(1024, dtype=torch.float16)
    weight = randn(512, 1024, dtype=torch.float16, scale=0.1)

    def kernels():
        from deepspeed.inference.v2 import inference_utils
        from deepspeed.inference.v2.kernels import core_ops

        return core_ops, inference_utils

    def normalized():
        core, _ = kernels()
        return [core.CUDAFPLN(1024, torch.float16)(torch.empty_like(x), x, gamma, beta)]

    def scaled():
        core, _ = kernels()
        return [core.CUDARMSNorm(1024, torch.float16)(torch.empty_like(x), x, gamma)]

    def biased(bias):
        core, words = kernels()
        out = x.clone()
        core.CUDABiasActivation(1024, words.DtypeEnum.fp16, words.ActivationType.SILU)(out, bias)
        return [out]

    def gated():
        core, words = kernels()
        out = torch.empty(32, 512, device=DEVICE, dtype=torch.float16)
        core.CUDAGatedActivation(1024, torch.float16, words.ActivationType.SiGLU)(out, x)
        return [out]

    def multiplied():
        core, words = kernels()
        return [core.BlasLibLinear(words.DtypeEnum.fp16)(torch.empty(32, 512, device=DEVICE, dtype=torch.float16), x, weight)]

    a, g, b = x.float(), gamma.float(), beta.float()
    yield "layer_norm", normalized, lambda: [F.layer_norm(a, (1024,), g, b, 1e-5)], HALF
    yield "rms_norm", scaled, lambda: [a * torch.rsqrt(a.pow(2).mean(-1, keepdim=True) + 1e-5) * g], HALF
    yield "bias_activation", lambda: biased(beta), lambda: [F.silu(a + b)], HALF
    yield "bias_activation without a bias", lambda: biased(None), lambda: [F.silu(a)], HALF
    yield "gated_activation", gated, lambda: [F.silu(a[:, ::2]) * a[:, 1::2]], HALF
    yield "blas_linear", multiplied, lambda: [a @ weight.float().t()], HALF


def ragged_ops():
    def mirrored():
        tensor = torch.arange(1000, device=DEVICE, dtype=torch.int32)
        host = load("ragged_ops").allocate_fast_host_buffer(tensor)
        host.copy_(tensor)
        back = torch.empty_like(tensor)
        back.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        return [back, torch.tensor([host.numel()], device=DEVICE)]

    def viewed():
        buffer = torch.zeros(64, device=DEVICE, dtype=torch.uint8)
        load("ragged_ops").allocate_view_like((2, 3), (3, 1), torch.empty(0, device=DEVICE), buffer, 8).copy_(torch.ones(2, 3))
        return [buffer.view(torch.float32)]

    yield "allocate_fast_host_buffer", mirrored, lambda: [torch.arange(1000, dtype=torch.int32), torch.tensor([1000])], EXACT
    yield "allocate_view_like", viewed, lambda: [torch.tensor([0.0] * 2 + [1.0] * 6 + [0.0] * 8)], EXACT


def ragged_device_ops():
    tokens, experts = 100, 16
    logits = randn(tokens, experts)

    def ours():
        counts, scores = torch.zeros(experts, device=DEVICE, dtype=torch.int32), torch.empty(tokens, 1, device=DEVICE)
        assignments, offsets = (torch.empty(tokens, 1, device=DEVICE, dtype=torch.int32) for _ in range(2))
        described = torch.tensor([tokens, 1, 0, 0], device=DEVICE, dtype=torch.int32)  # RaggedBatchDescriptor
        load("ragged_device_ops").top_k_gating(counts, scores, assignments, offsets, logits, described)
        # The place of a token among those of its expert is any, each once.
        places = torch.cat([offsets[assignments == e].sort().values for e in range(experts)])
        return [counts, scores, assignments, places]

    def reference():
        scores, assignments = logits.softmax(-1).max(-1, keepdim=True)
        counts = assignments.flatten().bincount(minlength=experts)
        return [counts, scores, assignments, torch.cat([torch.arange(c) for c in counts])]

    yield "top_k_gating", ours, reference, SUM


def cutlass_ops():
    x, weights, biases = randn(256, 256, dtype=torch.float16), randn(2, 256, 512, dtype=torch.float16, scale=0.1), randn(2, 512, dtype=torch.float16)
    ends = torch.tensor([100, 256], device=DEVICE)  # of the rows of each expert

    def ours():
        from deepspeed.inference.v2.inference_utils import ActivationType, DtypeEnum
        from deepspeed.inference.v2.kernels.cutlass_ops import MoEGEMM

        return [MoEGEMM(DtypeEnum.fp16, ActivationType.IDENTITY)(torch.empty(256, 512, device=DEVICE, dtype=torch.float16), x, weights, ends, biases)]

    def reference():
        return [torch.cat([x[:100].float() @ weights[0].float() + biases[0].float(), x[100:].float() @ weights[1].float() + biases[1].float()])]

    yield "moe_gemm of two experts", ours, reference, HALF


def utils():
    given = [randn(33, dtype=torch.float16), randn(4, 5)]

    def ours():
        op = load("utils")
        if hasattr(op, "flatten"):  # of older releases
            return [t.flatten().view(torch.uint8) for t in op.unflatten(op.flatten(given), given)]
        return [t.flatten() for t in op.cast_to_byte_tensor(given)]

    yield "bytes of tensors", ours, lambda: [t.flatten().view(torch.uint8) for t in given], EXACT


def pin_memory():
    given = torch.randn(4096)

    def ours():
        handle = load("pin_memory").pin_handle()
        locked = handle.new_cpu_locked_tensor(given.numel(), torch.empty(0))
        locked.copy_(given)
        found = [locked.clone(), torch.tensor([handle.is_pinned(locked), handle.is_pinned(locked[7:9]), handle.is_pinned(given)])]
        return found + [torch.tensor([handle.free_cpu_locked_tensor(locked), handle.free_cpu_locked_tensor(given)])]

    yield "a buffer locked, found and freed", ours, lambda: [given, torch.tensor([True, True, False]), torch.tensor([True, False])], EXACT


def async_io():
    given = randn(1 << 14)

    def ours():
        read, block = torch.zeros_like(given), 1 << 12
        handle = load("async_io").aio_handle(block, 8, False, True, 1)
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        with unnamed_file(os.environ.get("TMPDIR", "/tmp")) as file:
            handle.sync_pwrite(given, file)
            handle.sync_pread(read, file)
        return [read]

    yield "a file written and read", ours, lambda: [given], EXACT


@contextlib.contextmanager
def unnamed_file(folder):
    """A file that is in no folder, so that not even a crash leaves it behind. async_io opens it again, and reads and
    writes around the page cache, which not every file system can."""
    try:
        file = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError as e:
        raise Uncompared("cannot create a file without a name in %s: %s" % (folder, e.strerror))
    try:
        name = "/proc/self/fd/%d" % file
        try:
            os.close(os.open(name, os.O_RDWR | os.O_DIRECT))
        except OSError as e:
            raise Uncompared("cannot open a file in %s for direct I/O: %s" % (folder, e.strerror))
        yield name
    finally:
        os.close(file)


ON_CPU = {f.__name__: f for f in (cpu_adam, cpu_adagrad, cpu_lion, utils, pin_memory, async_io)}
ON_GPU = {f.__name__: f for f in (
    fused_adam, fused_lamb, fused_lion, quantizer, fp_quantizer, random_ltd, transformer, stochastic_transformer, evoformer_attn, spatial_inference,
    transformer_inference, inference_core_ops, ragged_ops, ragged_device_ops, cutlass_ops,
)}


def distance(ours, reference):
    """How far results are from torch's, relative to the largest of torch's numbers."""
    if len(ours) != len(reference) or not reference:
        return math.inf
    worst = 0.0
    for a, b in zip(ours, reference):
        a, b = a.double().cpu(), b.double().cpu()
        if a.shape != b.shape or not a.numel() or not (torch.isfinite(a) & torch.isfinite(b)).all():
            return math.inf
        worst = max(worst, (a - b).abs().max().item() / max(b.abs().max().item(), 1e-30))
    return worst


def device(op):
    """Where an op computes. The CPU ops of optimizers do so on any node."""
    return "CPU" if DEVICE == "cpu" or op.startswith("cpu_") or op == "pin_memory" else torch.cuda.get_device_name()


def compared(op):
    """The comparisons of an op, and a digest of what it computed."""
    if op not in ON_CPU and op not in ON_GPU:
        raise Uncompared("no comparison exists")
    if op not in ON_CPU and DEVICE == "cpu":
        raise NoGPU("torch finds no GPU")
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    found, digest = [], hashlib.sha256()
    with torch.cuda.stream(torch.cuda.Stream()) if DEVICE == "cuda" else contextlib.nullcontext():
        for name, ours, reference, (most, why) in (ON_CPU.get(op) or ON_GPU[op])():
            results = ours()
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            for t in results:
                digest.update(t.detach().contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes())
            found.append({"name": name, "worst": distance(results, reference()), "most": most, "why": why})
    return found, digest.hexdigest()


def wrong(found):
    """What is wrong with comparisons, or nothing."""
    return "; ".join(
        "%(name)s: off by %(worst).1e of torch's largest number, allowed %(most).1e (%(why)s)" % c
        for c in found if not c["worst"] <= c["most"])


def main(op):
    os.environ.setdefault("DS_ACCELERATOR", "cuda")  # DeepSpeed finds all ops only with this
    try:
        found, digest = compared(op)
    except Uncompared as e:
        sys.exit("error: %s: not compared: %s" % (op, e))
    print(json.dumps({
        "op": op, "file": os.path.realpath(load(op).__file__), "device": device(op),
        "torch": torch.__version__, "cuda": torch.version.cuda or "", "digest": digest,
        "compared": [dict(c, worst=c["worst"] if math.isfinite(c["worst"]) else None) for c in found],
    }))
    if wrong(found):
        sys.exit("error: %s: %s" % (op, wrong(found)))


if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        print(json.dumps(dict({op: False for op in ON_CPU}, **{op: True for op in ON_GPU})))
    elif sys.argv[1:] == ["--references"]:
        print(json.dumps({
            op: {name: [list(t.shape) for t in reference()] for name, _, reference, _ in cases()} for op, cases in dict(ON_CPU, **ON_GPU).items()
        }))
    else:
        main(sys.argv[1])
