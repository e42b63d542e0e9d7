"""RMS norm's two halves: the squares of a core's part of a row, and the scaling by the squares of the whole row.

Its gradients, for y = x r weight with r = 1 / sqrt(mean of x^2 + eps), need the row's sum of dy y besides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wafer_triton.local.registry import cut, local_op

if TYPE_CHECKING:
    from torch import Tensor


@local_op(tiles=lambda *, m, n: ((m,), (m, n)), work=lambda *, m, n: (0, m * n))
def sum_squares_torch(s: Tensor, x: Tensor, *, m: int, n: int) -> None:
    """s [m] = sum over n of x [m, n] squared."""
    s.copy_(cut(x, m, n).square().sum(-1))


@local_op(tiles=lambda *, m, n: ((m,), (m, n), (m, n)), work=lambda *, m, n: (0, m * n))
def sum_products_torch(s: Tensor, a: Tensor, b: Tensor, *, m: int, n: int) -> None:
    """s [m] = sum over n of a [m, n] times b [m, n]."""
    s.copy_((cut(a, m, n) * cut(b, m, n)).sum(-1))


@local_op(
    tiles=lambda *, m, n, **_: ((m, n), (m, n), (m, n), (n,), (m,), (m,)),
    work=lambda *, m, n, **_: (0, 4 * m * n),
    elementwise=True,
)
def rms_dx_torch(
    dx: Tensor,
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    squares: Tensor,
    products: Tensor,
    *,
    m: int,
    n: int,
    width: int,
    eps: float,
) -> None:
    """dx [m, n] = dy weight r - x r^2 mean of dy y; squares (of x) and products (dy y), [m], are sums of whole rows."""
    scale = (cut(squares, m, 1) / width + eps).rsqrt()
    along = cut(dy, m, n) * cut(weight, 1, n) * scale
    cut(dx, m, n).copy_(along - cut(x, m, n) * (cut(products, m, 1) / width * scale * scale))


@local_op(tiles=lambda *, m, n, **_: ((n,), (m, n), (m, n), (m,)), work=lambda *, m, n, **_: (0, 2 * m * n))
def rms_dw_torch(dw: Tensor, dy: Tensor, x: Tensor, squares: Tensor, *, m: int, n: int, width: int, eps: float) -> None:
    """dw [n] = sum over m of dy [m, n] x r; squares [m] are sums of whole rows. A row of zeros adds nothing."""
    total = cut(squares, m, 1)
    scale = (total / width + eps).rsqrt().where(total != 0, 0.0)
    dw.copy_((cut(dy, m, n) * (cut(x, m, n) * scale)).sum(-2))


@local_op(
    tiles=lambda *, m, n, heads, kv_heads, **_: ((m, 2), (m, heads + 2 * kv_heads, n)),
    work=lambda *, m, n, heads, kv_heads, **_: (0, m * (heads + kv_heads) * n),
)
def mean_squares_torch(
    s: Tensor, x: Tensor, *, m: int, n: int, heads: int, kv_heads: int, width: int, kv_width: int
) -> None:
    """s [m, 2] = squares of the query heads of x [m, heads + 2 kv_heads, n] over `width`, of the key heads over
    `kv_width`, added up: a core's part of their means.
    """
    squares = cut(x, m, heads + 2 * kv_heads, n).square().sum(-1)
    s, widths = cut(s, m, 2), (width, kv_width)
    for kind, held in enumerate(squares.split((heads, kv_heads, kv_heads), -1)[:2]):
        s[..., kind] = held.sum(-1) / widths[kind]


def _tiles(*, m: int, n: int, groups: int = 1, kept: int = 0, first: int = 0, **_: Any) -> tuple[tuple[int, ...], ...]:
    return (m, groups, n), (m, groups, n), (m, 2 if first else groups), (groups - kept, n)


def _work(*, m: int, n: int, groups: int = 1, **_: Any) -> tuple[int, int]:
    return 0, 2 * m * groups * n


@local_op(tiles=_tiles, work=_work, elementwise=True)
def rms_scale_torch(
    out: Tensor,
    x: Tensor,
    s: Tensor,
    weight: Tensor,
    *,
    m: int,
    n: int,
    width: int,
    eps: float,
    groups: int = 1,
    kept: int = 0,
    first: int = 0,
) -> None:
    """out [m, groups, n] = x / sqrt(s / width + eps) * weight, s [m, groups] the sums of squares of whole rows.

    weight [groups - kept, n]; the last `kept` groups stay as they are (values beside queries and keys). If some groups
    are `first`, s [m, 2] has one sum for these and one for the others.
    """
    x, out, scaled = cut(x, m, groups, n), cut(out, m, groups, n), groups - kept
    if first:
        s = cut(s, m, 2).repeat_interleave(s.new_tensor((first, groups - first)).long(), -1).flatten(-2)
    scale = (cut(s, m, groups, 1)[..., :scaled, :] / width + eps).rsqrt()
    out[..., :scaled, :] = x[..., :scaled, :] * scale * cut(weight, 1, scaled, n)
    out[..., scaled:, :] = x[..., scaled:, :]
