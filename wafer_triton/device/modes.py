"""Torch's modes around a run: autocast changes the dtype of products, and inference mode makes tensors of its own kind.

Outside of inference mode nothing may write to a tensor that was made within it, so memory that is kept is made outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

UNCHANGED = nullcontext()
_KINDS = ("cpu", "cuda")  # of torch devices


@contextmanager
def plain() -> Iterator[None]:
    """Compute in the dtypes of the operands and without gradients, whatever modes surround the `with` block."""
    import torch

    with ExitStack() as modes:
        modes.enter_context(torch.inference_mode(False))
        modes.enter_context(torch.no_grad())
        for kind in filter(torch.is_autocast_enabled, _KINDS):
            modes.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextmanager
def _plain_on(device: str) -> Iterator[None]:
    with plain(), current(device):
        yield


def current(device: str) -> AbstractContextManager[object]:
    """Return a context in which a GPU that is given by number is the current one, on which Triton launches."""
    import torch

    on = torch.device(device)
    return torch.cuda.device(on) if on.type == "cuda" and on.index is not None else UNCHANGED


def as_planned(device: str) -> AbstractContextManager[object]:
    """Return the context of plans and runs: `plain` where a mode is on, and `current`."""
    import torch

    modes = torch.is_inference_mode_enabled() or any(map(torch.is_autocast_enabled, _KINDS))
    return _plain_on(device) if modes else current(device)
