"""Definitions of local operations that compute each element of a tile alone, or only move it.

A definition is a few plain lines on the tiles of one core, as `local.registry` describes: `tiles` gives the shapes of
outputs and inputs, `work` the multiply-adds and the elements of the vector unit, both from the parameters. An
`elementwise` operation has one size for all its tiles. The kernels of these operations are in `kernels/elementwise.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wafer_triton.local.registry import MATRIX, cut, local_op

if TYPE_CHECKING:
    from torch import Tensor


@local_op(tiles=lambda *, size: ((size,),) * 3, work=lambda *, size: (0, size), elementwise=True)
def add_torch(out: Tensor, a: Tensor, b: Tensor, *, size: int) -> None:
    """Set out [size] to a + b."""
    out.copy_(a + b)


@local_op(tiles=lambda *, size: ((size,),) * 3, work=lambda *, size: (0, size), elementwise=True)
def maximum_torch(out: Tensor, a: Tensor, b: Tensor, *, size: int) -> None:
    """Set out [size] to max(a, b); NaN where a or b is NaN."""
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
    """Set out [size] to a, clipped to -limit and limit."""
    out.copy_(a.clamp(-limit, limit))


@local_op(
    tiles=lambda *, rows, cols, size: ((cols, rows, size), (rows, cols, size)),
    work=lambda *, rows, cols, size: (0, rows * cols * size),
    dtypes={"out": MATRIX, "a": MATRIX},
)
def swap_torch(out: Tensor, a: Tensor, *, rows: int, cols: int, size: int) -> None:
    """Set out [cols, rows, size] to a [rows, cols, size] with rows and columns exchanged."""
    cut(out, cols, rows, size).copy_(cut(a, rows, cols, size).transpose(-3, -2))


@local_op(tiles=lambda *, m, n: ((m, n), (m, 2, n)), work=lambda *, m, n: (0, 5 * m * n))
def silu_mul_torch(out: Tensor, gate_up: Tensor, *, m: int, n: int) -> None:
    """Set out [m, n] to silu(gate) * up, where gate_up [m, 2, n] holds gate and up side by side.

    silu is computed by exp, which gives the same bits for all strides of a tensor; torch's own does not.
    """
    gate, up = cut(gate_up, m, 2, n).unbind(-2)
    cut(out, m, n).copy_(gate / (1 + gate.neg().exp()) * up)
