"""Products of a core's tiles, all heads of an operand at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wafer_triton.local.registry import MATRIX, cut, local_op

if TYPE_CHECKING:
    from torch import Tensor


def _work(*, m: int, k: int, n: int, heads: int = 1, **_: Any) -> tuple[int, int]:
    return heads * m * k * n, 0


def _product(*, m: int, k: int, n: int, heads: int = 1, **_: Any) -> tuple[int, int, int, int]:
    return m, k, n, heads


def _tiles(*, m: int, k: int, n: int, heads: int = 1, kv_heads: int = 1, **_: Any) -> tuple[tuple[int, ...], ...]:
    return (m, heads, n), (heads, m, k), (k, kv_heads, n)


@local_op(tiles=_tiles, work=_work, product=_product, dtypes={"b": MATRIX})
def gemm_torch(
    c: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    m: int,
    k: int,
    n: int,
    heads: int = 1,
    kv_heads: int = 1,
    add: bool = False,
    accumulate: str = "fp32",
) -> None:
    """c [m, heads, n] (+)= a [heads, m, k] @ b [k, kv_heads, n]; heads share b in groups of heads / kv_heads."""
    a, c = cut(a, heads, m, k), cut(c, m, heads, n).transpose(-3, -2)
    b = cut(b, k, kv_heads, n).transpose(-3, -2).repeat_interleave(heads // kv_heads, -3)
    multiply_add(c, a, b, add, accumulate)


def _tiles_t(*, m: int, k: int, n: int, heads: int = 1, kv_heads: int = 1, **_: Any) -> tuple[tuple[int, ...], ...]:
    return (heads, m, n), (m, heads, k), (n, kv_heads, k)


@local_op(tiles=_tiles_t, work=_work, product=_product, dtypes={"b": MATRIX})
def gemm_t_torch(
    c: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    m: int,
    k: int,
    n: int,
    heads: int = 1,
    kv_heads: int = 1,
    add: bool = False,
    accumulate: str = "fp32",
) -> None:
    """c [heads, m, n] (+)= a [m, heads, k] @ b [n, kv_heads, k]^T; heads share b in groups of heads / kv_heads."""
    a, c = cut(a, m, heads, k).transpose(-3, -2), cut(c, heads, m, n)
    b = cut(b, n, kv_heads, k).transpose(-3, -2).repeat_interleave(heads // kv_heads, -3).mT
    multiply_add(c, a, b, add, accumulate)


def _tiles_tn(*, m: int, k: int, n: int, **_: Any) -> tuple[tuple[int, ...], ...]:
    return (m, n), (k, m), (k, n)


@local_op(tiles=_tiles_tn, work=_work, product=_product, dtypes={"b": MATRIX})
def gemm_tn_torch(
    c: Tensor, a: Tensor, b: Tensor, *, m: int, k: int, n: int, add: bool = False, accumulate: str = "fp32"
) -> None:
    """c [m, n] (+)= a [k, m]^T @ b [k, n]."""
    multiply_add(cut(c, m, n), cut(a, k, m).mT, cut(b, k, n), add, accumulate)


def multiply_add(c: Tensor, a: Tensor, b: Tensor, add: bool, accumulate: str) -> None:
    """c [..., m, n] (+)= a [..., m, k] @ b [..., k, n]; fp16 accumulation rounds after every k."""
    total = c if add else c.new_zeros(c.shape)
    if accumulate == "fp32":
        total = total + a @ b
    else:
        for k in range(a.shape[-1]):
            total = (total + a[..., :, k, None] * b[..., k, None, :]).half().to(c.dtype)
    c.copy_(total)
