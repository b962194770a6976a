import multi_tensor
from harness import load


def cases(wheel):
    op = load(wheel, "fused_adam")

    def call(flag, lists, chunk, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, step=3, mode=1, bias=1, decay=0.01):
        return op.multi_tensor_adam(chunk, flag, lists, lr, beta1, beta2, eps, step, mode, bias, decay)

    multi_tensor.cases("fused_adam", 4, call, wide=True)
