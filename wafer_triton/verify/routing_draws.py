"""Drawn tokens and expert ids whose routings reach every expert, every region and every row of a pass.

Random tokens seldom fill a pass to experts in regions. So tokens are drawn whose logits rank the experts by a chosen
routing, and expert ids that fill every row of a pass. A run is one draw of an intent; routings differ from run to run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wafer_triton.decoder.block import Block
from wafer_triton.shape.moe import Experts
from wafer_triton.verify.plain import Formula
from wafer_triton.verify.specs import Tiles

if TYPE_CHECKING:
    from torch import Tensor

PADDED = 4  # one of this many runs has tokens of padding


def _is_padded(run: int) -> bool:
    return run % PADDED == 1


def _full_runs_before(run: int) -> int:
    """Return the number of earlier runs without padding."""
    return run - (run + PADDED - 2) // PADDED


def with_padded(runs: int) -> int:
    """Return the number of runs of which so many are without padding."""
    return runs + -(-runs // (PADDED - 1))


def routing_runs(block: Block) -> int:
    """Return how many runs it takes until each mesh row has filled each region, also padded, and had all the tokens."""
    return with_padded(block.experts_in_regions[1].count) + block.mesh.shape[0]


def token_draw(block: Block, tokens: int) -> Formula:
    """Return a function that draws tokens with the experts of `_wanted_experts`; one of `PADDED` runs has padding.

    In the last of the `routing_runs` all tokens but those of one mesh row, another one in each run, are padding: the
    demand, a maximum over rows, is then that row's.
    """

    def draw(run: int, /, x: Tensor, norm: Tensor, router: Tensor, real: Tensor | None = None) -> Tiles:
        new = {"x": _steer(block.experts, x, norm, router, _wanted_experts(block, len(x), tokens, run))}
        if real is None:
            return new
        row = run % (runs := routing_runs(block)) - (runs - block.mesh.shape[0])
        if row >= 0:
            real = -real.abs()
            real[row * tokens : (row + 1) * tokens] *= -1
        elif not _is_padded(run):
            real = real.abs()
        return new | {"real": real}

    return draw


def _wanted_experts(block: Block, count: int, tokens: int, run: int) -> list[list[int]]:
    """Return the experts of `count` tokens, `tokens` a row of cores, that differ from run to run.

    With regions a row prefers the experts of one region, another one in each run. Else the tokens take all in turn.
    """
    e, regions, wanted = block.experts, block.expert_regions, []
    for token in range(count):
        if regions is None:
            order = np.roll(range(e.count), -(run * count + token) * e.top_k).tolist()
        else:
            row, place = divmod(token, tokens)
            living, first = regions.living(e), (row + _full_runs_before(run)) % regions.count
            in_turn = (*living[first:], *living[:first])
            order = [expert for own in in_turn for expert in np.roll(own, -place * e.top_k).tolist()]
        wanted.append(order[: e.top_k])
    return wanted


def _steer(e: Experts, x: Tensor, norm: Tensor, router: Tensor, wanted: list[list[int]]) -> Tensor:
    """Return the tokens nearest to x [tokens, width] whose logits rank the experts in `wanted` first, in even steps.

    The pseudo-inverse of the router gives them; a router mostly has fewer experts than the model is wide.
    """
    through = norm[:, None] * router[:, : e.count]
    logits, size = x @ through, x.square().mean(-1, True).sqrt()  # a norm divides by the latter
    order = logits.argsort(-1, True)
    rank = order.argsort(-1).to(x.dtype) / e.count
    first = rank.new_zeros(rank.shape).scatter(-1, order.new_tensor(wanted), 1.0)
    return x + (logits.mean(-1, True) + size * (2 * first - rank) - logits) @ through.pinverse()


def id_draw(block: Block, tokens: int, first: int) -> Formula:
    """Return a function that draws expert ids of ranks from `first` on to fill a pass; some runs add ids of others."""
    e, regions = block.experts_in_regions
    held, wanted, own = regions.held(e), tokens * e.top_k, regions.living(e)
    rows = [(region, rank) for rank in range(regions.capacity) for region in range(regions.count) if own[region]]

    def choice(row: int, number: int, run: int) -> tuple[float, float]:
        """Return the slot and the rank of one of a row's expert ids."""
        place = number + _full_runs_before(run) * wanted + row
        region, rank = rows[place % len(rows)]
        slot, rank = region * held + (place + run) % len(own[region]), first + rank
        if number >= len(rows):
            return slot, first + regions.capacity + number
        if not _is_padded(run) or number % 2:
            return slot, rank
        if number % 4:
            return -1.0, 0.0
        return slot, rank - regions.capacity if first and number % 8 else rank + regions.capacity

    def draw(run: int, /, slots: Tensor, ranks: Tensor) -> Tiles:
        every = [[choice(row, number, run) for number in range(wanted)] for row in range(block.mesh.shape[0])]
        drawn = slots.new_tensor(every).reshape(*slots.shape, 2)
        return {"slots": drawn[..., 0], "ranks": drawn[..., 1]}

    return draw
