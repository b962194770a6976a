import multi_tensor
from harness import load


def cases(wheel):
    op = load(wheel, "fused_lion")

    def call(flag, lists, chunk, lr=1e-3, beta1=0.9, beta2=0.999, eps=0, step=3, mode=1, bias=1, decay=0.01):
        return op.multi_tensor_lion(chunk, flag, lists, lr, beta1, beta2, step, decay)

    multi_tensor.cases("fused_lion", 3, call, wide=False)
