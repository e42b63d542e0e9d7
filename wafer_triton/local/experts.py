"""Mixtures of experts on one core: the choice of a token's experts, and products with the tiles of those chosen.

A core holds a tile of every expert and all router logits of its tokens, so the choice needs no message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wafer_triton.local.gemm import multiply_add
from wafer_triton.local.registry import MATRIX, cut, local_op

if TYPE_CHECKING:
    from torch import Tensor

# 16 bits hold few whole numbers, and a router decides in fp32 for any dtype of tiles
_FP32 = {"expert_ids": ("fp32",), "shares": ("fp32",), "logits": ("fp32",)}


def _choice(*, m: int, experts: int, k: int, shared: int, **_: Any) -> tuple[tuple[int, ...], ...]:
    return (m, k + shared), (m, k + shared), (m, experts + min(shared, 1))


@local_op(
    tiles=_choice, work=lambda *, m, experts, k, **_: (0, m * experts * (k + 5)), outs=2,
    dtypes=_FP32,
)  # fmt: skip
def top_k_torch(
    expert_ids: Tensor, shares: Tensor, logits: Tensor, *, m: int, experts: int, k: int, shared: int, normalized: bool
) -> None:
    """Set expert_ids [m, k + shared] to the k experts of the largest logits, ascending, and shares to their softmax.

    The softmax is over all experts. Of equal logits the lower expert's comes first. If `normalized`, the k shares add
    up to 1. Every token chooses the `shared` experts after the others too, each with the sigmoid of the logit after the
    experts' own.
    """
    every = cut(logits, m, experts + min(shared, 1))
    own = every[..., :experts]
    number = own.new_ones(experts).cumsum(-1) - 1
    ahead = own[..., None, :] > own[..., :, None]
    ahead = ahead | ((own[..., None, :] == own[..., :, None]) & (number[None, :] < number[:, None]))
    best = number.where(ahead.sum(-1) < k, experts).sort(-1).values[..., :k]
    share = own.softmax(-1).gather(-1, best.long())
    if normalized:
        share = share / share.sum(-1, True)
    cut(expert_ids, m, k + shared)[..., :k] = best
    cut(shares, m, k + shared)[..., :k] = share
    if shared:
        cut(expert_ids, m, k + shared)[..., k:] = number.new_tensor(range(experts, experts + shared))
        cut(shares, m, k + shared)[..., k:] = every[..., experts:].sigmoid()


def _product(*, m: int, per_token: int, experts: int, k: int, n: int, **_: Any) -> tuple[int, int, int, int]:
    """Return one product for each expert, if tokens take as many as they can, evenly: the most that a core reads."""
    taken = min(m * per_token, experts)
    return -(-m * per_token // taken), k, n, taken


def _work(*, m: int, per_token: int, k: int, n: int, **_: Any) -> tuple[int, int]:
    return m * per_token * k * n, 0


def _read(*, m: int, per_token: int, experts: int, k: int, n: int, **_: Any) -> int:
    return min(m * per_token, experts) * k * n


def _tiles(*, m: int, per_token: int, experts: int, k: int, n: int, **_: Any) -> tuple[tuple[int, ...], ...]:
    return (m, per_token, n), (m, k), (experts, k, n), (m, per_token)


@local_op(tiles=_tiles, work=_work, product=_product, reads={"w": _read}, dtypes=_FP32 | {"w": MATRIX})
def expert_gemm_torch(
    c: Tensor, a: Tensor, w: Tensor, expert_ids: Tensor, *, m: int, per_token: int, experts: int, k: int, n: int,
    add: bool = False, accumulate: str = "fp32",
) -> None:  # fmt: skip
    """c [m, per_token, n] (+)= a [m, k] @ w[expert_ids], for w [experts, k, n] and expert_ids [m, per_token]."""
    own = _of_ids(w, expert_ids, m, per_token, experts, k, n)
    multiply_add(cut(c, m, per_token, 1, n), cut(a, m, 1, 1, k), own, add, accumulate)


def _summed(*, m: int, per_token: int, experts: int, k: int, n: int, **_: Any) -> tuple[tuple[int, ...], ...]:
    return (m, n), (m, per_token, k), (experts, k, n), (m, per_token), (m, per_token)


@local_op(tiles=_summed, work=_work, product=_product, reads={"w": _read}, dtypes=_FP32 | {"w": MATRIX})
def expert_sum_torch(
    c: Tensor, a: Tensor, w: Tensor, expert_ids: Tensor, shares: Tensor, *, m: int, per_token: int, experts: int,
    k: int, n: int, add: bool = False, accumulate: str = "fp32",
) -> None:  # fmt: skip
    """c [m, n] (+)= sum over experts of shares * (a @ w[expert_ids]), for a [m, per_token, k], w [experts, k, n]."""
    own = _of_ids(w, expert_ids, m, per_token, experts, k, n).flatten(-3, -2)
    weighted = (cut(a, m, per_token, k) * cut(shares, m, per_token, 1)).flatten(-2).unsqueeze(-2)
    multiply_add(cut(c, m, 1, n), weighted, own, add, accumulate)


def _of_ids(w: Tensor, expert_ids: Tensor, m: int, per_token: int, experts: int, k: int, n: int) -> Tensor:
    """[..., m, per_token, k, n]: the tiles of the chosen experts."""
    index = cut(expert_ids, m * per_token, 1, 1).long().expand(*w.shape[:-1], m * per_token, k, n)
    return cut(cut(w, experts, k, n).gather(-3, index).flatten(-3), m, per_token, k, n)
