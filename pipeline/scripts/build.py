"""Runs DeepSpeed's setup.py with what it gets wrong when several ops are asked
for: each op is compiled for its own archs, and an op that DeepSpeed would leave
out silently is an error that says why.

usage: build.py SETUP-ARGUMENT... <ENVIRONMENT

ENVIRONMENT is that of setup.py, as env -0 prints it. It comes when the tree of DeepSpeed
lies in DSBUILD_SRC, and torch is imported until then.

DSBUILD_OPS names the ops, joined by spaces: NAME, or NAME=ARCHS where it is to be
compiled for others than those of TORCH_CUDA_ARCH_LIST.
"""
import contextlib
import gc
import os
import runpy
import stat
import sys

import jobs
import nogpu

ARCHS = "TORCH_CUDA_ARCH_LIST"


def asked():
    """The ops asked for: their archs by name, "" for those of all."""
    ops = {}
    for word in os.environ["DSBUILD_OPS"].split():
        name, _, archs = word.partition("=")
        ops[name] = archs
    return ops


@contextlib.contextmanager
def variable(name, value):
    """The environment with another value of a variable, "" for the same, put
    back afterwards as it was."""
    before = os.environ.get(name)
    if value:
        os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before


def keep_archs(builder_class, ops):
    """Makes builder() of a class of DeepSpeed's work on the op's own archs. It
    writes those it has left over to the environment, where every later op would
    take them for what was asked."""
    original = builder_class.builder

    def builder(self):
        with variable(ARCHS, ops.get(self.name, "")):
            return original(self)

    builder_class.builder = builder


def why_not(builder):
    """Why DeepSpeed would leave an op out, "" if it would not."""
    try:
        if builder.is_compatible(verbose=True):
            return ""
    except Exception as e:  # whatever it is, setup.py would end with it
        return f"{type(e).__name__}: {e}"
    return getattr(builder, "error_log", None) or "DeepSpeed does not say why"


def left_out(ops, builders):
    """What speaks against the ops asked for, one line for each."""
    for name in ops:
        if name not in builders:
            yield f"op {name}: this DeepSpeed has none of that name for CUDA (it has {', '.join(sorted(builders))})"
        elif why := why_not(builders[name]):
            yield f"op {name} cannot be compiled here: {why}"


def cpu_of_the_wheel():
    """Makes py-cpuinfo say what counts here, the machine of the wheel. DeepSpeed asks it twice for each
    op of the CPU, a second each time, what this machine has, and cxx puts what the wheel
    is for in the place of what comes of it."""
    try:
        import cpuinfo
    except ImportError:
        return
    arch = "ARM_8" if os.environ["DSBUILD_CPU"].startswith("arm") else "X86_64"
    cpuinfo.get_cpu_info = lambda: {"arch": arch, "flags": []}


def enter(environment):
    """Goes where the tree is, as python setup.py would be started there."""
    variables = [word.partition("=") for word in os.fsdecode(environment).split("\0") if word]
    if not variables:
        sys.exit("error: no environment on standard input")
    os.environ.clear()
    os.environ.update((name, value) for name, _, value in variables)
    os.chdir(os.environ["DSBUILD_SRC"])
    sys.path[0] = os.getcwd()  # and not where this file lies


def link_instead_of_copying(command):
    """Makes setuptools' commands (command is their class) link what they would copy, which
    is all of DeepSpeed twice, where a copy would have the same mode."""
    files = command.copy_file.__globals__["file_util"]
    original, umask = files._copy_file_contents, os.umask(0o022)
    os.umask(umask)

    def copy(src, dst, *how, **more):
        here = os.lstat(src).st_mode
        if stat.S_ISREG(here) and stat.S_IMODE(here) == 0o666 & ~umask:
            with contextlib.suppress(OSError):
                if os.path.lexists(dst):
                    os.unlink(dst)
                os.link(src, dst)
                return
        original(src, dst, *how, **more)

    files._copy_file_contents = copy


def main():
    gc.disable()  # what is imported stays: to look for garbage in it takes a fifth of the time
    import torch  # most of what op_builder imports

    stable = None
    if os.environ.get("DSBUILD_ABI") == "stable":
        import stable

    enter(sys.stdin.buffer.read())
    ops = asked()
    cpu_of_the_wheel()
    with nogpu.answered():
        from op_builder import builder
        from op_builder.all_ops import ALL_OPS

    gc.freeze()
    gc.enable()

    bad = list(left_out(ops, ALL_OPS))
    if bad:
        sys.exit("\n".join("error: " + line for line in bad))
    for name in ("OpBuilder", "CUDAOpBuilder"):
        if "builder" in vars(getattr(builder, name, object)):
            keep_archs(getattr(builder, name), ops)
    from setuptools import Command
    from torch.utils import cpp_extension

    link_instead_of_copying(Command)
    jobs.pool(cpp_extension, stable and stable.refuse_headers)
    if stable:
        stable.use(cpp_extension)
    sys.argv[0] = "setup.py"
    runpy.run_path("setup.py", run_name="__main__")


if __name__ == "__main__":
    main()
