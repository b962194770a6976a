"""The layer of BERT: create, forward, backward, with every combination of its switches."""

import itertools

import torch
from harness import F16, F32, case, empty, load

NAMES = "output inp_norm qkv soft ctx attn_o add_res ff1 gelu ff2 m1 m2 m3 v1 v2 v3 v4".split()
PRECISIONS = {"fp16": F16, "fp32": F32}
SWITCHES = ("pre", "attn", "invertible", "gelu", "stochastic", "training")


class Layer:
    """A layer of an op, with its weights."""

    def __init__(
        self,
        op,
        name,
        number,
        precision,
        batch,
        hidden,
        heads,
        *,
        pre=True,
        attn=False,
        invertible=False,
        gelu=False,
        stochastic=False,
        training=True,
        parameters=False,
    ):
        self.op, self.name, self.number, self.precision = op, name, number, precision
        self.batch, self.hidden, self.dtype = batch, hidden, PRECISIONS[precision]
        self.pre, self.attn, self.invertible, self.gelu, self.training = pre, attn, invertible, gelu, training
        wide = 4 * hidden
        self.weights = [
            self.made(*shape)
            for shape in (
                (3 * hidden, hidden),
                (3 * hidden,),
                (hidden, hidden),
                (hidden,),
                (hidden,),
                (hidden,),
                (wide, hidden),
                (wide,),
                (hidden, wide),
                (hidden,),
                (hidden,),
                (hidden,),
            )
        ]
        if parameters:
            self.weights = [torch.nn.Parameter(w) for w in self.weights]
        case(
            f"{name}: create {number}",
            self.of("create_transformer_layer"),
            number,
            batch,
            hidden,
            heads,
            wide,
            0.1,
            0.2,
            1e-12,
            1234 + number,
            pre,
            False,
            attn,
            invertible,
            gelu,
            stochastic,
        )

    def of(self, function):
        return getattr(self.op, f"{function}_{self.precision}")

    def made(self, *shape):
        return empty(*shape, dtype=self.dtype)

    def forward(self, title, x, mask):
        flags = (self.training, self.pre, self.attn, self.invertible, self.gelu)

        def forward(*arguments):
            # Over the C++ interface the op marks the tensors for backward as wanting a gradient. Nobody reads the mark.
            return [result.detach() for result in self.of("forward")(*arguments)]

        return case(f"{self.name}: forward {title}", forward, self.number, x, mask, *self.weights, *flags)

    def forward_and_backward(self, title, length, transposed=False):
        x, mask = self.made(self.batch, length, self.hidden), self.made(self.batch, 1, 1, length)
        with torch.no_grad():
            results = self.forward(title, x, mask)
            if results is None:
                return
            r = dict(zip(NAMES, results))
            gradient = (
                self.made(self.batch, self.hidden, length).transpose(1, 2) if transposed else self.made(self.batch, length, self.hidden)
            )
            normalized = self.pre and self.invertible
            case(
                f"{self.name}: backward {title}",
                self.of("backward"),
                self.number,
                gradient,
                r["inp_norm"] if normalized else r["output"],
                r["inp_norm"] if self.pre or not self.invertible else x,
                r["qkv"],
                r["soft"],
                r["soft"] if self.attn else r["ctx"],
                r["attn_o"],
                r["ff1"] if self.invertible else r["add_res"],
                r["ff1"],
                r["ff2"] if self.gelu else r["gelu"],
                r["ff2"],
                *(r[n] for n in NAMES[10:]),
                r["inp_norm"] if normalized else x,
                mask,
                *self.weights,
            )


def cases(wheel, name="transformer"):
    op, numbers = load(wheel, name), itertools.count()
    for precision, *values in itertools.product(PRECISIONS, *[(True, False)] * len(SWITCHES)):
        switches = dict(zip(SWITCHES, values))
        for batch, length, hidden, heads in ((2, 128, 128, 4), (1, 16, 64, 2), (3, 96, 256, 4), (2, 512, 1024, 16)):
            if batch != 2 and (switches["stochastic"] or switches["gelu"]):
                continue
            number = next(numbers)
            layer = Layer(op, name, number, precision, batch, hidden, heads, parameters=number % 3 == 0, **switches)
            layer.forward_and_backward(f"{precision} {batch} {length} {hidden} {heads} {switches}", length, transposed=number % 2 == 1)
    for precision in PRECISIONS:
        layer = Layer(op, name, 0, precision, 1, 64, 2)
        for length in (
            4,
            8,
            16,
            24,
            32,
            48,
            64,
            100,
            128,
            200,
            256,
            320,
            384,
            500,
            512,
            700,
            768,
            1000,
            1024,
            1500,
            2048,
            3000,
            4096,
            5000,
            8192,
            9000,
            40000,
        ):
            layer.forward_and_backward(f"{precision} of length {length}", length)
            torch.cuda.empty_cache()
    layer = Layer(op, name, 0, "fp16", 1, 64, 2)
    x, mask, flags = layer.made(1, 16, 64), layer.made(1, 1, 1, 16), (True, True, False, False, False)
    for i, argument in enumerate((x, mask, *layer.weights)):
        for how, changed in {"on the CPU": argument.cpu(), "strided": layer.made(*argument.shape, 2)[..., 0]}.items():
            arguments = [x, mask, *layer.weights]
            arguments[i] = changed
            case(f"{name}: argument {i} {how}", op.forward_fp16, 0, *arguments, *flags)
    with torch.cuda.stream(torch.cuda.Stream()):
        layer.forward("on a stream", x, mask)
        made_on_stream = Layer(op, name, 1, "fp16", 1, 64, 2)
        made_on_stream.forward("created and called on a stream", x, mask)
    made_on_stream.forward("created on a stream", x, mask)
