"""Operations on each element by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wafer_triton.local.registry import MATRIX, cut, local_op

if TYPE_CHECKING:
    from torch import Tensor


@local_op(tiles=lambda *, size: ((size,),) * 3, work=lambda *, size: (0, size), elementwise=True)
def add_torch(out: Tensor, a: Tensor, b: Tensor, *, size: int) -> None:
    """out [size] = a + b."""
    out.copy_(a + b)


@local_op(tiles=lambda *, size: ((size,),) * 3, work=lambda *, size: (0, size), elementwise=True)
def maximum_torch(out: Tensor, a: Tensor, b: Tensor, *, size: int) -> None:
    """out [size] = max(a, b)."""
    out.copy_(a.maximum(b))


@local_op(
    tiles=lambda *, size: ((size,),) * 2, work=lambda *, size: (0, size), elementwise=True, partial=True,
    dtypes={"out": MATRIX, "a": MATRIX},
)  # fmt: skip
def copy_torch(out: Tensor, a: Tensor, *, size: int) -> None:
    """Copy the first `size` elements of a to out; either may be longer."""
    out[..., :size] = a[..., :size]


@local_op(tiles=lambda *, size, limit: ((size,),) * 2, work=lambda *, size, limit: (0, size), elementwise=True)
def clip_torch(out: Tensor, a: Tensor, *, size: int, limit: float) -> None:
    """out [size] = a, no further from 0 than `limit`."""
    out.copy_(a.clamp(-limit, limit))


@local_op(
    tiles=lambda *, rows, cols, size: ((cols, rows, size), (rows, cols, size)),
    work=lambda *, rows, cols, size: (0, rows * cols * size),
    dtypes={"out": MATRIX, "a": MATRIX},
)
def swap_torch(out: Tensor, a: Tensor, *, rows: int, cols: int, size: int) -> None:
    """out [cols, rows, size] = a [rows, cols, size] with both dimensions exchanged."""
    cut(out, cols, rows, size).copy_(cut(a, rows, cols, size).transpose(-3, -2))


@local_op(tiles=lambda *, m, n: ((m, n), (m, 2, n)), work=lambda *, m, n: (0, 5 * m * n))
def silu_mul_torch(out: Tensor, gate_up: Tensor, *, m: int, n: int) -> None:
    """out [m, n] = silu(gate) * up, gate_up [m, 2, n]: by exp, whose bits are the same for all strides of a tensor."""
    gate, up = cut(gate_up, m, 2, n).unbind(-2)
    cut(out, m, n).copy_(gate / (1 + gate.neg().exp()) * up)
