"""Softmax in three steps, with a reduction along the row's cores after the first and the second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wafer_triton.local.registry import cut, local_op

if TYPE_CHECKING:
    from torch import Tensor

LOWEST = -3e38  # stands for a maximum of -inf, from which nothing can be subtracted


@local_op(
    tiles=lambda *, heads, m, n, scale: ((heads, m), (heads, m, n), (m, n)),
    work=lambda *, heads, m, n, scale: (0, 2 * heads * m * n),
)
def row_max_torch(top: Tensor, s: Tensor, bias: Tensor, *, heads: int, m: int, n: int, scale: float) -> None:
    """top [heads, m] = max over n of scale * s [heads, m, n] + bias [m, n]; a masked entry has bias -inf."""
    cut(top, heads, m).copy_((cut(s, heads, m, n) * scale + cut(bias, 1, m, n)).amax(-1))


@local_op(
    tiles=lambda *, heads, m, n, scale: ((heads, m, n), (heads, m), (heads, m, n), (m, n), (heads, m)),
    work=lambda *, heads, m, n, scale: (0, 4 * heads * m * n),
    outs=2,
    elementwise=True,
)
def exp_sum_torch(
    p: Tensor, z: Tensor, s: Tensor, bias: Tensor, top: Tensor, *, heads: int, m: int, n: int, scale: float
) -> None:
    """p [heads, m, n] = exp(scale * s + bias - top) and z [heads, m] = its sum over n; top [heads, m].

    A row that is masked everywhere (top = -inf) gives zeros, not NaN. p may lie where s does.
    """
    scores = cut(s, heads, m, n) * scale + cut(bias, 1, m, n)
    powers = (scores - cut(top, heads, m, 1).clamp_min(LOWEST)).exp()
    cut(p, heads, m, n).copy_(powers)
    cut(z, heads, m).copy_(powers.sum(-1))


@local_op(
    tiles=lambda *, m, n, scale: ((m, n), (m, n), (m, n), (m,)),
    work=lambda *, m, n, scale: (0, 3 * m * n),
    elementwise=True,
)
def softmax_dx_torch(dx: Tensor, y: Tensor, dy: Tensor, products: Tensor, *, m: int, n: int, scale: float) -> None:
    """dx [m, n] = scale y (dy - products), the gradient of softmax(scale x); products [m] are rows' sums of dy y."""
    cut(dx, m, n).copy_(cut(y, m, n) * (cut(dy, m, n) - cut(products, m, 1)) * scale)


@local_op(
    tiles=lambda *, m, heads, n: ((m, heads, n), (m, heads, n), (heads, m)),
    work=lambda *, m, heads, n: (0, m * heads * n),
    elementwise=True,
)
def normalize_torch(out: Tensor, o: Tensor, z: Tensor, *, m: int, heads: int, n: int) -> None:
    """out [m, heads, n] = o / z with z [heads, m]."""
    cut(out, m, heads, n).copy_(cut(o, m, heads, n) / cut(z, heads, m, 1).transpose(-3, -2))
