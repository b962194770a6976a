"""Loads ops as a training job would, and only from the wheel. Changes nothing."""
import os

from dsbuild_node.controller import emit
from dsbuild_node.import_check import Failed, plain


def without_compiler(do):
    """Call do, which loads ops, with a compiler that always fails. Fail if an op was compiled."""
    import shutil

    # A folder that does not exist, and that only a compilation would create: if an op kills
    # this process with an illegal instruction, nothing is left. (tempfile would write a file
    # to test the folder.)
    scratch = os.path.join(os.environ.get("TMPDIR", "/tmp"), "dsbuild-verify-" + os.urandom(16).hex())
    os.environ["TORCH_EXTENSIONS_DIR"] = scratch
    os.environ["CC"] = os.environ["CXX"] = "/bin/false"
    try:
        result = do()
        if os.path.exists(scratch):
            raise Failed("loading the ops compiled files: %s" % ", ".join(sorted(os.listdir(scratch))[:5]))
        return result
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def load_op(op, place):
    """Load one op, and only from the wheel."""
    from deepspeed.git_version_info import installed_ops
    from deepspeed.ops.op_builder.all_ops import ALL_OPS

    if not installed_ops.get(op):
        raise Failed("op %s is not in the installed wheel" % op)
    builder = ALL_OPS.get(op)
    if builder is None:
        raise Failed("op %s: DeepSpeed has no such builder for this accelerator" % op, "accelerator")

    def never(*_, **__):
        raise Failed("op %s would be compiled on this node instead of loaded" % op, "torch-differs")

    builder.jit_load = never
    try:
        module = builder.load()
    except Failed:
        raise
    except Exception as e:
        raise Failed("cannot load op %s: %s: %s" % (op, type(e).__name__, e))
    found = os.path.realpath(getattr(module, "__file__", None) or "")
    if not found.startswith(place + os.sep):
        raise Failed("op %s was loaded from %s" % (op, found or "nowhere"))


def check_ops(place, request, check=load_op):
    """Every op must load from the wheel, and nothing may be compiled."""

    def load_all():
        import torch
        import deepspeed

        if plain(deepspeed.__version__) != plain(request["version"]):
            raise Failed("deepspeed.__version__ is %s, not %s" % (deepspeed.__version__, request["version"]))
        for op in request["ops"]:
            emit({"op": op})
            check(op, place)
        return {"torch": torch.__version__.split("+")[0], "cuda": torch.version.cuda or ""}

    return without_compiler(load_all)
