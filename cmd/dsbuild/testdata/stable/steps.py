"""The digest of what an installed DeepSpeed's cpu_adam and utils compute, and the file of the op."""
import hashlib
import json
import os

os.environ["DS_ACCELERATOR"] = "cuda"
import torch  # noqa: E402
from deepspeed.ops.op_builder.all_ops import ALL_OPS  # noqa: E402

adam, utils, results = ALL_OPS["cpu_adam"].load(), ALL_OPS["utils"].load(), hashlib.sha256()
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    for size in (1, 7, 64, 100003):  # with and without a rest after whole vectors
        torch.manual_seed(size)
        p, m, v = torch.randn(size).to(dtype), torch.zeros(size), torch.zeros(size)
        adam.create_adam(1, 1e-3, 0.9, 0.999, 1e-8, 0.01, True, False)
        for step in range(1, 6):
            adam.adam_update(1, step, 1e-3, 0.9, 0.999, 1e-8, 0.01, True, p, torch.randn(size).to(dtype), m, v)
        adam.destroy_adam(1)
        for t in utils.cast_to_byte_tensor([p, m, v]):
            results.update(t.numpy().tobytes())
print(json.dumps({"results": results.hexdigest(), "file": os.path.basename(adam.__file__)}))
