"""Gradients of mesh operations: mesh operations of the same recipes, whose movement is counted as that of forward.

Of C = A B they are dA = dC B^T and dB = A^T dC, three schedules none of which transposes on the host. A GEMV's are a
GEMV along the other axis and an outer product of what the cores hold; an all-reduce's is itself. Norm and softmax take
one more sum of each row. Operands are saved as they were given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from wafer_triton.errors import DtypeError

Options = dict[str, Any]
Product = tuple[str, list[Tensor], Options]  # the operation that computes a gradient, its operands and its options


def gradients(
    name: str, saved: Sequence[Tensor], dy: Tensor, options: Options, needed: Sequence[bool]
) -> list[Product | None]:
    """Return how the gradient of each operand is computed; DtypeError if the operation has none.

    `saved` is what `to_save` chose, `needed` says which operands require a gradient.
    """
    if name not in _RULES or options.get("op") == "maximum":
        of = f"{name}: the gradient of " + ("op 'maximum'" if name == "all_reduce" else "a gradient")
        raise DtypeError(f"{of} is not computed here; give operand.detach(), or call it under torch.no_grad()")
    found = _RULES[name](*saved, dy, **options)
    return [product if wanted else None for product, wanted in zip(found, needed, strict=True)]


def to_save(name: str, operands: Sequence[Tensor], result: Tensor) -> tuple[Tensor, ...]:
    """Return what the gradients of an operation read."""
    if name == "softmax":
        return (result,)
    if name == "rms_norm":
        return (*operands, result)
    return tuple(operands) if name in ("gemm", "gemv", "outer") else ()


def _of_gemm(a: Tensor, b: Tensor, dc: Tensor, transposed: str = "", **options: Any) -> list[Product]:
    products = {
        "": (("b", dc, b), ("a", a, dc)),
        "a": (("b", b, dc), ("", a, dc)),
        "b": (("", dc, b), ("a", dc, a)),
    }
    return [("gemm", [one, other], {**options, "transposed": by}) for by, one, other in products[transposed]]


def _of_gemv(
    x: Tensor, w: Tensor, dy: Tensor, axis: str, accumulate: str, transposed: str = "", **tree: Any
) -> list[Product]:
    across, turned = "x" if axis == "y" else "y", "" if transposed else "b"
    dx = _gemv(dy, w, across, turned, accumulate)
    first, second, along = (dy, x, across) if transposed else (x, dy, axis)
    return [dx, ("outer", [first, second], {"axis": along, "accumulate": accumulate})]


def _of_outer(x: Tensor, y: Tensor, dw: Tensor, axis: str, accumulate: str) -> list[Product]:
    across = "x" if axis == "y" else "y"
    return [_gemv(y, dw, across, "b", accumulate), _gemv(x, dw, axis, "", accumulate)]


def _gemv(x: Tensor, w: Tensor, axis: str, transposed: str, accumulate: str) -> Product:
    """Return a GEMV by the usual tree of its own axis, as groups of another axis may not fit."""
    return "gemv", [x, w], {"axis": axis, "accumulate": accumulate, "transposed": transposed}


def _of_all_reduce(dy: Tensor, **options: Any) -> list[Product]:
    return [("all_reduce", [dy], options)]


def _of_rms_norm(x: Tensor, weight: Tensor, y: Tensor, dy: Tensor, eps: float) -> list[Product]:
    return [("rms_norm_dx", [x, weight, y, dy], {"eps": eps}), ("rms_norm_dw", [x, dy], {"eps": eps})]


def _of_softmax(y: Tensor, dy: Tensor, scale: float) -> list[Product]:
    return [("softmax_dx", [y, dy], {"scale": scale})]


_RULES: dict[str, Callable[..., list[Product]]] = {
    "gemm": _of_gemm,
    "gemv": _of_gemv,
    "outer": _of_outer,
    "all_reduce": _of_all_reduce,
    "rms_norm": _of_rms_norm,
    "softmax": _of_softmax,
}
