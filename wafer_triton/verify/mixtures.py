"""Plain computations of blocks of experts, with intents whose routings reach every expert, region and pass.

A router's choice depends on values, so its schedules are judged by values alone. `verify.routing_draws` draws the
tokens and expert ids of these intents.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wafer_triton.decoder import expert_regions, experts
from wafer_triton.decoder.block import Block, SubLayer
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.shape.moe import Experts
from wafer_triton.verify.intent import Intent
from wafer_triton.verify.plain import Formula, concat, on_tiles, rms_norm, swiglu
from wafer_triton.verify.routing_draws import id_draw, routing_runs, token_draw, with_padded
from wafer_triton.verify.specs import Tiles

if TYPE_CHECKING:
    from torch import Tensor

CLOSE = 1e-9  # of the largest logit: experts whose logits differ by less may be chosen the other way round


def with_routing_draws(intent: Intent, sub_layer: SubLayer, schedule: Schedule, block: Block, *args: int) -> Intent:
    """Return the intent of a sub-layer; one of experts draws tokens or ids that reach every expert, region and pass."""
    if sub_layer not in FORMULAS:
        return intent
    e, tokens = block.experts, args[0] if args else block.batch
    if sub_layer is expert_regions.prefill_pass:
        regions, (*_, number) = block.experts_in_regions[1], args
        filled = -(-regions.count * regions.capacity // (tokens * e.top_k))
        draw = id_draw(block, tokens, number * regions.capacity)
        return replace(intent, draw=on_tiles(schedule, draw), runs=with_padded(filled))
    runs = -(-e.count // e.top_k) if block.expert_regions is None else routing_runs(block)
    return replace(intent, draw=on_tiles(schedule, token_draw(block, tokens)), runs=runs)


def _experts_on_all_cores(
    block: Block, *_: int, x: Tensor, norm: Tensor, router: Tensor, wgu: Tensor, wdown: Tensor
) -> Tiles:  # fmt: skip
    """Return the results of experts that are cut over all cores."""
    h = rms_norm(block, x, norm)
    expert_ids, shares, close = _choose(block.experts, h @ router)
    y = _mixed(h, expert_ids, shares, wgu, wdown, block.mesh.shape[1])
    return {name: each.masked_fill(close, float("nan")) for name, each in (("x", x + y), ("expert_ids", expert_ids))}


def _prefill_routing(
    block: Block, tokens: int, past: int, /, x: Tensor, norm: Tensor, router: Tensor, real: Tensor, **shared: Tensor
) -> Tiles:
    """Return the routing of tokens whose `real` is above 0; others go nowhere.

    It has ids and shares [tokens, per_token], slots and ranks [tokens, k], and the demand [1], all of them NaN if
    rounding may decide a choice. x has the shared expert's output too.
    """
    (e, regions), h = block.experts_in_regions, rms_norm(block, x, norm)
    expert_ids, shares, close = _choose(e, h @ router)
    own, goes = expert_ids[:, : e.top_k], real[:, None] > 0
    region = own % regions.count
    slots = (region * regions.held(e) + own // regions.count).where(goes, -1)
    taken = ((region[..., None] == own.new_tensor(range(regions.count))) & goes[..., None]).to(own.dtype)
    queued = taken.reshape(block.mesh.shape[0], -1, regions.count).cumsum(1)  # in the order of tokens and choices
    ranks = ((queued.reshape(taken.shape) - 1) * taken).sum(-1)
    routing = {
        "expert_ids": expert_ids,
        "shares": shares,
        "slots": slots,
        "ranks": ranks,
        "demand": queued.amax()[None],
    }
    if close.any():
        routing = {name: each * float("nan") for name, each in routing.items()}
    if e.shared:
        output = swiglu(h, shared["wgu.shared"], shared["wdown.shared"], block.mesh.shape[1])
        x = x + routing["shares"][:, e.top_k, None] * output
    return {"x": x, "h": h, **routing}


def _prefill_pass(
    block: Block, tokens: int, past: int, number: int, /, x: Tensor, h: Tensor, shares: Tensor, slots: Tensor,
    ranks: Tensor, wgu: Tensor, wdown: Tensor, **_: Tensor,
) -> Tiles:  # fmt: skip
    """Return x with the experts' outputs times their shares, for the rows of tokens whose ranks pass `number` takes."""
    regions = block.experts_in_regions[1]
    ups, downs = (weights.reshape(-1, *weights.shape[-2:]) for weights in (wgu, wdown))  # [slots, rows, columns]
    passing = slots.where(ranks // regions.capacity == number, -1)
    columns = block.mesh.shape[1] // regions.side
    return {"x": x + _mixed(h, passing, shares[:, : slots.shape[1]], ups, downs, columns)}


def _experts_in_regions(
    block: Block, tokens: int, past: int, passes: int, /, x: Tensor, norm: Tensor, router: Tensor, real: Tensor,
    wgu: Tensor, wdown: Tensor, **shared: Tensor,
) -> Tiles:  # fmt: skip
    """Return the results of as many passes as rows need."""
    e, regions = block.experts_in_regions
    routed = {**_prefill_routing(block, tokens, past, x, norm, router, real, **shared)}
    for number in range(-(-tokens * e.top_k // regions.capacity)):
        routed |= _prefill_pass(block, tokens, past, number, wgu=wgu, wdown=wdown, **routed)
    return {name: routed[name] for name in ("x", "expert_ids", "demand")}


# --- plain computations ---


def _choose(e: Experts, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return expert ids and shares, both [tokens, per_token], and whether rounding may decide the ids, [tokens, 1]."""
    ranked = logits[:, : e.count].sort(-1, True)
    own = ranked.indices[:, : e.top_k].sort(-1).values
    shares = logits[:, : e.count].softmax(-1).gather(-1, own)
    if e.normalized:
        shares = shares / shares.sum(-1, True)
    if e.shared:
        own = concat([own, own.new_tensor([range(e.count, e.tiles)]).expand(len(own), -1)], 1)
        shares = concat([shares, logits[:, -1:].sigmoid().expand(-1, e.shared)], 1)
    values = ranked.values
    edges = values[:, e.top_k - 1] - values[:, e.top_k] if e.top_k < e.count else values.new_ones(len(values))
    return own.to(logits.dtype), shares, (edges <= CLOSE * values.abs().amax(-1))[:, None]


def _mixed(h: Tensor, numbers: Tensor, shares: Tensor, ups: Tensor, downs: Tensor, columns: int) -> Tensor:
    """Return the sum of experts' outputs for all tokens, each times its share; `numbers` and shares [tokens, k]."""
    y = h.new_zeros(h.shape)
    for number, (up, down) in enumerate(zip(ups, downs, strict=True)):
        y += (shares * (numbers == number)).sum(-1, True) * swiglu(h, up, down, columns)
    return y


FORMULAS: dict[SubLayer, Formula] = {
    experts.decode_experts: _experts_on_all_cores,
    experts.prefill_experts: _experts_on_all_cores,
    expert_regions.prefill_routing: _prefill_routing,
    expert_regions.prefill_pass: _prefill_pass,
    expert_regions.prefill_experts_in_regions: _experts_in_regions,
}
