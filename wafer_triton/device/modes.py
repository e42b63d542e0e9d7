"""Torch's modes around a run: autocast changes the dtype of products, and inference mode makes tensors of its own kind.

Outside of inference mode nothing may write to a tensor that was made within it, so memory that is kept is made outside.
Transforms such as vmap, and modes that trace, are refused: a run in them would be wrong, or leave wrong memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from wafer_triton.errors import BackendError

if TYPE_CHECKING:
    import torch

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


def host() -> AbstractContextManager[object]:
    """Return a context in which tensors are made in the CPU's memory, whatever torch's default device is."""
    import torch

    return UNCHANGED if torch.get_default_device().type == "cpu" else torch.device("cpu")


WITHOUT_VALUES = "on the meta device, without values; make it outside of torch.device('meta')"  # of a tensor
_TRACERS = {"FakeTensorMode": "FakeTensorMode", "ProxyTorchDispatchMode": "make_fx"}  # modes and their names


def transforming() -> bool:
    """Return whether the call is within a transform of torch, by vmap or forward-mode differentiation."""
    import torch

    inside = torch._C._functorch.peek_interpreter_stack() is not None or torch.autograd.forward_ad._current_level >= 0
    return inside and not torch.compiler.is_compiling()


def untransformed(tensor: torch.Tensor) -> str:
    """Return the reason why an operation does not take a tensor within a transform of torch; "" if it takes it."""
    import torch

    if torch._C._functorch.is_batchedtensor(tensor):
        return "is batched by torch.vmap, which has no rule here; give all rows in one operand, or call it in a loop"
    forward_ad = torch.autograd.forward_ad  # which takes twice as long to import by its name
    if forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None:
        return "has a tangent of forward-mode differentiation, which is not computed here; give operand.detach()"
    if torch._C._functorch.is_gradtrackingtensor(tensor):
        return "is tracked by torch.func, whose gradients pass no mesh; use torch.autograd.grad or loss.backward()"
    return ""


def eager() -> bool:
    """Return whether torch runs its calls as they come: nothing traces, transforms or watches them."""
    import torch

    return not (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._len_torch_dispatch_stack()
        or torch._ops._len_torch_dispatch_stack_pre_dispatch()
    )


def untraced(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Return the result of a function that torch.compile met: the graph breaks, and the function runs as it is."""
    from torch import _dynamo

    _dynamo.graph_break(f"{function.__qualname__}: no graph follows a run on a mesh; leave out fullgraph=True")
    return _dynamo.disable(function)(*args, **options)


def check_eager(name: str) -> None:
    """Raise BackendError where torch traces or transforms in place of running: memory that is kept would be no memory.

    A plain operation on tensors needs no check, as torch traces it as one operator.
    """
    import torch
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    around = [_TRACERS.get(type(mode).__name__, "") for mode in _get_current_dispatch_mode_stack()]
    around.append("torch.jit.trace" * torch.jit.is_tracing())
    around.append("a transform of torch.func" * (torch._C._functorch.peek_interpreter_stack() is not None))
    for mode in filter(None, around):
        raise BackendError(
            f"{name}: {mode} does not follow a run; call it outside, or call an operation on tensors alone, without "
            f"record and executor"
        )
