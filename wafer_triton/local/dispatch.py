"""Experts in regions of cores, on one core: the rows that go to each region, and the rows that return.

The tokens of a mesh row queue for regions. A message to a region has `capacity` rows. Each row ends with the number of
its expert there. Rows that are not taken are zeros, and the experts' results for them are not read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wafer_triton.local.registry import cut, local_op

if TYPE_CHECKING:
    from torch import Tensor

_FP32 = dict.fromkeys(("slots", "ranks", "demand", "expert_ids", "real", "shares", "ids"), ("fp32",))


def _queued(*, m: int, k: int, per_token: int, **_: Any) -> tuple[tuple[int, ...], ...]:
    return (m, k), (m, k), (1,), (m, per_token), (m,)


@local_op(tiles=_queued, work=lambda *, m, k, **_: (0, 8 * m * k), outs=3, dtypes=_FP32)
def enqueue_torch(
    slots: Tensor, ranks: Tensor, demand: Tensor, expert_ids: Tensor, real: Tensor, *, m: int, k: int, per_token: int,
    regions: int, held: int,
) -> None:  # fmt: skip
    """Set slots [m, k] to the places of the first k of a token's chosen experts, and ranks [m, k] to their rows there.

    Expert e has place e // regions of the `held` slots of region e % regions. demand [1] is the most rows for a region.
    Tokens whose `real` is not above 0 go nowhere: their slots are -1.
    """
    expert = cut(expert_ids, m, per_token)[..., :k].flatten(-2)
    taken = (cut(real, m, 1) > 0).expand(*real.shape[:-1], m, k).flatten(-2)
    slot = expert % regions * held + (expert / regions).floor()
    rank = _before((slot / held).floor(), taken)
    cut(slots, m * k).copy_(slot.where(taken, -1.0))
    cut(ranks, m * k).copy_(rank.where(taken, 0.0))
    demand.copy_((rank + 1).where(taken, 0.0).amax(-1, True))


def _before(kind: Tensor, taken: Tensor) -> Tensor:
    """Return [..., n]: the number of earlier elements of the same kind, among taken ones."""
    same = (kind[..., :, None] == kind[..., None, :]) & taken[..., None, :]
    return same.tril(-1).sum(-1).to(kind.dtype)


def _sent(*, m: int, k: int, n: int, regions: int, capacity: int, **_: Any) -> tuple[tuple[int, ...], ...]:
    return (regions, capacity, n + 1), (m, n), (m, k), (m, k)


@local_op(
    tiles=_sent, work=lambda *, n, regions, capacity, **_: (0, regions * capacity * (n + 1)), dtypes=_FP32,
    reads={"h": lambda *, n, regions, capacity, **_: regions * capacity * n},
)  # fmt: skip
def dispatch_torch(
    out: Tensor, h: Tensor, slots: Tensor, ranks: Tensor, *, m: int, k: int, n: int, regions: int, held: int,
    capacity: int, first: int,
) -> None:  # fmt: skip
    """Set out [regions, capacity, n + 1] to the rows of h [m, n] with ranks from `first` on, each with its expert.

    The last element of a row is the number of its slot in the region.
    """
    row = _row(slots, ranks, m * k, held, capacity, first, regions)
    slot = cut(slots, m * k, 1)
    rows = _followed(cut(h, m, 1, n).expand(*h.shape[:-1], m, k, n).flatten(-3, -2), slot % held)
    # rows for none go after all others, into a row that is cut off
    whole = h.new_zeros(*h.shape[:-1], regions * capacity + 1, n + 1)
    whole.scatter_(-2, row[..., None].expand_as(rows), rows)
    cut(out, regions * capacity, n + 1).copy_(whole[..., :-1, :])


def _followed(rows: Tensor, last: Tensor) -> Tensor:
    """Return rows [..., n, width] with one more column."""
    whole = rows.new_empty(*rows.shape[:-1], rows.shape[-1] + 1)
    whole[..., :-1], whole[..., -1:] = rows, last
    return whole


def _row(slots: Tensor, ranks: Tensor, size: int, held: int, capacity: int, first: int, regions: int) -> Tensor:
    """Return the row [..., size] of all messages, region by region, of each expert id; one after the last for none."""
    slot, rank = cut(slots, size), cut(ranks, size) - first
    inside = (slot >= 0) & (rank >= 0) & (rank < capacity)
    return ((slot / held).floor() * capacity + rank).where(inside, regions * capacity).long()


def _arrived(*, sources: int, capacity: int, n: int, **_: Any) -> tuple[tuple[int, ...], ...]:
    rows = sources * capacity
    return (rows, sources * n), (rows,), (sources, sources, capacity, n + 1)


@local_op(
    tiles=_arrived, work=lambda *, sources, capacity, n: (0, sources * capacity * (sources * n + 1)), outs=2,
    dtypes=_FP32,
)  # fmt: skip
def permute_torch(a: Tensor, ids: Tensor, arrived: Tensor, *, sources: int, capacity: int, n: int) -> None:
    """Set a [sources * capacity, sources * n] to the arrived rows of [sources rows, sources columns], side by side.

    ids [sources * capacity] are the expert ids at the end of these rows.
    """
    rows = cut(arrived, sources, sources, capacity, n + 1)
    cut(a, sources, capacity, sources, n).copy_(rows[..., :n].transpose(-3, -2))
    cut(ids, sources, capacity).copy_(rows[..., 0, :, n])


@local_op(
    tiles=lambda *, sources, capacity, n: ((sources, sources, capacity, n), (sources, capacity, sources, n)),
    work=lambda *, sources, capacity, n: (0, sources * capacity * sources * n),
)
def unpermute_torch(out: Tensor, y: Tensor, *, sources: int, capacity: int, n: int) -> None:
    """out [sources rows, sources columns, capacity, n] = the rows y for the cores that they came from."""
    rows = cut(y, sources, capacity, sources, n).transpose(-3, -2)
    cut(out, sources, sources, capacity, n).copy_(rows)


def _combined(*, m: int, k: int, n: int, per_token: int, regions: int, capacity: int, **_: Any) -> Any:
    return (m, n), (regions, capacity, n), (m, k), (m, k), (m, per_token)


@local_op(
    tiles=_combined, work=lambda *, m, k, n, **_: (0, 2 * m * k * n), dtypes=_FP32,
    reads={"back": lambda *, m, k, n, **_: m * k * n},
)  # fmt: skip
def combine_torch(
    y: Tensor, back: Tensor, slots: Tensor, ranks: Tensor, shares: Tensor, *, m: int, k: int, n: int, per_token: int,
    regions: int, held: int, capacity: int, first: int,
) -> None:  # fmt: skip
    """y [m, n] = sum over the first k experts of a token of shares [m, per_token] times their rows that came back.

    Rows with other ranks than `dispatch` took count nothing.
    """
    row = _row(slots, ranks, m * k, held, capacity, first, regions)
    whole = back.new_zeros(*back.shape[:-1], regions * capacity + 1, n)
    whole[..., :-1, :] = cut(back, regions * capacity, n)
    rows = whole.gather(-2, row[..., None].expand(*row.shape, n))
    cut(y, m, n).copy_((cut(rows.flatten(-2), m, k, n) * cut(shares, m, per_token)[..., :k, None]).sum(-2))


@local_op(
    tiles=lambda *, m, n, per_token, column: ((m, n), (m, n), (m, per_token)),
    work=lambda *, m, n, **_: (0, m * n),
    dtypes=_FP32,
)
def scale_rows_torch(out: Tensor, a: Tensor, shares: Tensor, *, m: int, n: int, per_token: int, column: int) -> None:
    """out [m, n] = every row of a times the share of one of its token's experts, in `column`."""
    cut(out, m, n).copy_(cut(a, m, n) * cut(shares, m, per_token)[..., column, None])
