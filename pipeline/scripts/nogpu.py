"""What releases of DeepSpeed from 0.16.4 to 0.17.4 ask a GPU as they are imported,
answered where there is none."""
import contextlib


@contextlib.contextmanager
def answered():
    """The capability that decides whether Triton works: (0, 0), so it does not. Later torch
    answers by itself."""
    import torch

    ask = torch.cuda.get_device_capability
    if not torch.cuda.is_available():
        torch.cuda.get_device_capability = lambda *_: (0, 0)
    try:
        yield
    finally:
        torch.cuda.get_device_capability = ask
