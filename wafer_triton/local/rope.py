"""Rotary position embedding of the queries and keys that a core holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wafer_triton.local.registry import cut, local_op

if TYPE_CHECKING:
    from torch import Tensor


def _tiles(*, m: int, heads: int, kv_heads: int, n: int) -> tuple[tuple[int, ...], ...]:
    keys, angles = (m, kv_heads, n), (m, n // 2)
    return (m, heads, n), keys, keys, (m, heads + 2 * kv_heads, n), angles, angles


@local_op(tiles=_tiles, work=lambda *, m, heads, kv_heads, n: (0, 2 * m * (heads + kv_heads) * n), outs=3)
def rope_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    m: int,
    heads: int,
    kv_heads: int,
    n: int,
) -> None:
    """Split qkv [m, heads + 2 kv_heads, n] and rotate q and k: the core's first n/2 dims pair with its last n/2.

    q [m, heads, n], k and v [m, kv_heads, n]; cos and sin [m, n/2], of the pairs that this core holds.
    """
    q, k, v = cut(q, m, heads, n), cut(k, m, kv_heads, n), cut(v, m, kv_heads, n)
    queries, keys, values = cut(qkv, m, heads + 2 * kv_heads, n).split((heads, kv_heads, kv_heads), -2)
    cos, sin = cut(cos, m, 1, n // 2), cut(sin, m, 1, n // 2)
    for out, x in ((q, queries), (k, keys)):
        low, high = x[..., : n // 2], x[..., n // 2 :]
        out[..., : n // 2], out[..., n // 2 :] = low * cos - high * sin, high * cos + low * sin
    v.copy_(values)
