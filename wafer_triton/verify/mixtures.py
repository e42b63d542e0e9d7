"""Plain computations of blocks of experts, with intents whose routings reach every expert, region and pass.

A router's choice depends on values, so its schedules are judged by values alone. `verify.routing_draws` draws the
tokens and expert ids of these intents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from wafer_triton.schedule import block as blocks
from wafer_triton.schedule import expert_regions, experts
from wafer_triton.schedule.block import Block, SubLayer
from wafer_triton.shape.moe import Experts
from wafer_triton.verify.intent import Intent
from wafer_triton.verify.plain import fed, joined, normed, plain_intent, straight
from wafer_triton.verify.routing_draws import (
    PADDED,
    drawn_ids,
    drawn_tokens,
    experts_of,
    regions_of,
    routing_runs,
)
from wafer_triton.verify.specs import Tiles

if TYPE_CHECKING:
    from torch import Tensor

CLOSE = 1e-9  # of the largest logit: experts whose logits differ by less may be chosen the other way round


class TokenRouting(NamedTuple):
    """The experts of all tokens: ids and shares [tokens, per_token], slots and ranks [tokens, k], and the demand [1].

    All is NaN where rounding may decide.
    """

    expert_ids: Tensor
    shares: Tensor
    slots: Tensor
    ranks: Tensor
    demand: Tensor


def _decode_experts(block: Block) -> Intent:
    given = {"x": "m (y d)", "norm": "(y d)", "router": "(y d) e", "wgu": "s (y d) (x w)", "wdown": "s (x f) (y d)"}
    return _mixed(block, block.batch, given, {"x": "m (y d)", "expert_ids": "m k"})


def _prefill_experts(block: Block, tokens: int, past: int) -> Intent:
    given = {"x": "(y m) (x d)", "norm": "(x d)", "router": "(x d) e", "wgu": "s (y d) (x w)", "wdown": "s (y f) (x d)"}
    return _mixed(block, tokens, given, {"x": "(y m) (x d)", "expert_ids": "(y m) k"}, ("wgu", "wdown"))


def _mixed(
    block: Block, tokens: int, given: Mapping[str, str], results: Mapping[str, str], skewed: tuple[str, ...] = ()
) -> Intent:
    """Return the intent of experts that are cut over all cores."""

    def compute(x: Tensor, norm: Tensor, router: Tensor, wgu: Tensor, wdown: Tensor) -> tuple[Tensor, Tensor]:
        e, h = experts_of(block), normed(block, x, norm)
        expert_ids, shares, close = _choice(e, h @ router)
        every = [(shares * (expert_ids == number)).sum(-1) for number in range(e.tiles)]
        f = block.share(e.width, "x")
        y = sum(share[:, None] * (fed(h @ up, f) @ down) for share, up, down in zip(every, wgu, wdown, strict=True))
        return (x + y).masked_fill(close, float("nan")), expert_ids.masked_fill(close, float("nan"))

    intent = plain_intent(block, given, results, compute, skewed)
    runs = -(-experts_of(block).count // experts_of(block).top_k)
    return replace(intent, draw=drawn_tokens(block, tokens, given), runs=runs)


def _prefill_routing(block: Block, tokens: int, past: int) -> Intent:
    given = _routing_given(block)

    def compute(x: Tensor, norm: Tensor, router: Tensor, real: Tensor, *shared: Tensor) -> tuple[Tensor, ...]:
        h = normed(block, x, norm)
        routing = _routing(block, h @ router, real)
        return _with_shared(block, x, h, routing, *shared), h, *routing

    queues = dict.fromkeys(("expert_ids", "shares", "slots", "ranks"), "(y m) k")
    results = {"x": given["x"], "h": given["x"], **queues, "demand": "n"}
    return _with_routings(block, tokens, given, plain_intent(block, given, results, compute, _shared(block)))


def _prefill_pass(block: Block, tokens: int, past: int, number: int) -> Intent:
    given = dict.fromkeys(("x", "h"), "(y m) (x d)") | dict.fromkeys(("shares", "slots", "ranks"), "(y m) k")
    regions, e = regions_of(block), experts_of(block)
    first = number * regions.capacity

    def compute(x: Tensor, h: Tensor, *rest: Tensor) -> Tensor:
        return x + _taken(block, range(first, first + regions.capacity), h, *rest)

    intent = plain_intent(block, given | {"wgu": "", "wdown": ""}, {"x": given["x"]}, compute)
    filled = -(-regions.count * regions.capacity // (tokens * e.top_k))
    draw = drawn_ids(block, tokens, {name: given[name] for name in ("slots", "ranks")}, first)
    return replace(intent, draw=draw, runs=filled + -(-filled // (PADDED - 1)))


def _experts_in_regions(block: Block, tokens: int, past: int, passes: int) -> Intent:
    given = _routing_given(block) | {"wgu": "", "wdown": ""}
    capacity, shared = regions_of(block).capacity, _shared(block)
    results = {"x": given["x"], "expert_ids": "(y m) k", "demand": "n"}

    def intent(left_out: int | None = None) -> Intent:
        """Return the intent of all passes, or of all but one; there are as many passes as rows need."""

        def compute(x: Tensor, norm: Tensor, router: Tensor, real: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
            h = normed(block, x, norm)
            routing = _routing(block, h @ router, real)
            y = _with_shared(block, x, h, routing, *weights[:-2])
            for number in range(-(-tokens * experts_of(block).top_k // capacity)):
                if number != left_out:
                    own = range(number * capacity, (number + 1) * capacity)
                    y = y + _taken(block, own, h, *routing[1:4], *weights[-2:])
            return y, routing.expert_ids, routing.demand

        return plain_intent(block, given, results, compute, shared)

    def pieces() -> dict[str, Callable[[Tiles], Tiles]]:
        built = blocks.schedule(expert_regions.prefill_experts_in_regions, block, tokens, past, passes)
        starts = [n for n, round_ in enumerate(built.rounds) if any(op.op == "dispatch" for op in round_.locals)]
        ends, found = [*starts[1:], len(built.rounds)], {}
        for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
            reference = intent(number).reference
            assert reference is not None
            found[f"pass {number + 1} of {passes}, rounds {start} to {end - 1} as built"] = reference
        return found

    return replace(_with_routings(block, tokens, given, intent()), pieces=pieces)


# --- plain computations ---


def _shared(block: Block) -> tuple[str, ...]:
    """Return the names of the shared expert's weights, if the model has one."""
    return ("wgu.shared", "wdown.shared") if experts_of(block).shared else ()


def _routing_given(block: Block) -> dict[str, str]:
    given = {"x": "(y m) (x d)", "norm": "(x d)", "router": "(x d) e", "real": "(y m)"}
    return given | dict(zip(_shared(block), ("(y d) (x w)", "(y f) (x d)"), strict=False))


def _choice(e: Experts, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a token's experts and shares, both [tokens, per_token], and whether rounding may decide, [tokens, 1]."""
    ranked = logits[:, : e.count].sort(-1, True)
    own = ranked.indices[:, : e.top_k].sort(-1).values
    shares = logits[:, : e.count].softmax(-1).gather(-1, own)
    if e.normalized:
        shares = shares / shares.sum(-1, True)
    if e.shared:
        own = joined([own, own.new_tensor([range(e.count, e.tiles)]).expand(len(own), -1)], 1)
        shares = joined([shares, logits[:, -1:].sigmoid().expand(-1, e.shared)], 1)
    values = ranked.values
    edges = values[:, e.top_k - 1] - values[:, e.top_k] if e.top_k < e.count else values.new_ones(len(values))
    return own.to(logits.dtype), shares, (edges <= CLOSE * values.abs().amax(-1))[:, None]


def _routing(block: Block, logits: Tensor, real: Tensor) -> TokenRouting:
    """Return the routing of tokens whose `real` is above 0; others go nowhere."""
    e, regions = experts_of(block), regions_of(block)
    expert_ids, shares, close = _choice(e, logits)
    own = expert_ids[:, : e.top_k]
    slots, ranks, most = own.new_full(own.shape, -1.0), own.new_zeros(own.shape), 0
    held, tokens = regions.held(e), len(own) // block.mesh.shape[0]
    for row in range(block.mesh.shape[0]):
        queued = [0] * regions.count
        for token in range(row * tokens, (row + 1) * tokens):
            for choice, expert in enumerate(map(int, own[token].tolist()) if real[token] > 0 else ()):
                place, region = divmod(expert, regions.count)
                slots[token, choice], ranks[token, choice] = region * held + place, queued[region]
                queued[region] += 1
        most = max(most, *queued)
    routing = TokenRouting(expert_ids, shares, slots, ranks, own.new_tensor([most]))
    return TokenRouting(*(each * float("nan") for each in routing)) if bool(close.any()) else routing


def _with_shared(block: Block, x: Tensor, h: Tensor, routing: TokenRouting, *weights: Tensor) -> Tensor:
    """Return x plus the product of the shared expert's output and the token's share of it."""
    if not weights:
        return x
    e, (up, down) = experts_of(block), weights
    return x + routing.shares[:, e.top_k, None] * (fed(h @ up, block.share(e.shared_width, "x")) @ down)


def _taken(
    block: Block, own: range, h: Tensor, shares: Tensor, slots: Tensor, ranks: Tensor, wgu: Tensor, wdown: Tensor
) -> Tensor:
    """Return the experts' outputs times their shares, for the expert ids whose ranks are in a range."""
    held, size = regions_of(block).held(experts_of(block)), block.mesh.shape[0] // regions_of(block).side
    ups, downs = _living(block, wgu), _living(block, wdown)
    y = h.new_zeros(h.shape)
    for token, choice in ((slots >= 0) & (ranks >= own.start) & (ranks < own.stop)).nonzero().tolist():
        region, place = divmod(int(slots[token, choice]), held)
        up, down = ups[region, place], downs[region, place]
        y[token] += shares[token, choice] * (fed(h[token][None] @ up, len(down) // size) @ down)[0]
    # a routing in which rounding may decide is NaN throughout
    return y + slots.sum() * float("nan") if bool(slots.isnan().any()) else y


def _living(block: Block, tiles: Tensor) -> Tensor:
    """Return [regions, held, rows, columns] of the weights' tiles, which alignment has moved."""
    side, regions = block.mesh.shape[0], regions_of(block)
    size = side // regions.side
    lying = straight(tiles.reshape(side, side, *tiles.shape[-3:]), block.mesh, size)
    cut = lying.unflatten(1, (regions.side, size)).unflatten(0, (regions.side, size))
    return cut.permute(0, 2, 4, 1, 5, 3, 6).flatten(5).flatten(3, 4).flatten(0, 1)


def _with_routings(block: Block, tokens: int, given: Mapping[str, str], intent: Intent) -> Intent:
    """Return the intent with tokens that reach every region and row."""
    return replace(intent, draw=drawn_tokens(block, tokens, given), runs=routing_runs(block))


INTENTS: dict[SubLayer, Callable[..., Any]] = {
    experts.decode_experts: _decode_experts,
    experts.prefill_experts: _prefill_experts,
    expert_regions.prefill_routing: _prefill_routing,
    expert_regions.prefill_pass: _prefill_pass,
    expert_regions.prefill_experts_in_regions: _experts_in_regions,
}
