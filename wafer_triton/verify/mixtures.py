"""Plain computations of blocks of experts, and routings that reach every expert, every region and every pass.

A router's choice depends on values, so its schedules are judged by values alone. Random values seldom fill a pass. The
intents of this module therefore draw tokens whose logits rank the experts by a routing. They also draw expert ids that
fill every row of a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from wafer_triton.schedule import block as blocks
from wafer_triton.schedule import expert_regions, experts
from wafer_triton.schedule.block import Block, SubLayer
from wafer_triton.schedule.expert_places import ExpertRegions
from wafer_triton.shape.moe import Experts
from wafer_triton.verify.plain import fed, joined, normed, plain_intent, straight
from wafer_triton.verify.provenance import Intent
from wafer_triton.verify.specs import Tiles, tiled, whole

if TYPE_CHECKING:
    from torch import Tensor

CLOSE = 1e-9  # of the largest logit: experts whose logits differ by less may be chosen the other way round
PADDED = 4  # one of this many runs has tokens of padding


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
    """Return the intent of experts that every core has a tile of."""

    def compute(x: Tensor, norm: Tensor, router: Tensor, wgu: Tensor, wdown: Tensor) -> tuple[Tensor, Tensor]:
        e, h = _experts(block), normed(block, x, norm)
        expert_ids, shares, close = _choice(e, h @ router)
        every = [(shares * (expert_ids == number)).sum(-1) for number in range(e.tiles)]
        f = block.share(e.width, "x")
        y = sum(share[:, None] * (fed(h @ up, f) @ down) for share, up, down in zip(every, wgu, wdown, strict=True))
        return (x + y).masked_fill(close, float("nan")), expert_ids.masked_fill(close, float("nan"))

    intent = plain_intent(block, given, results, compute, skewed)
    runs = -(-_experts(block).count // _experts(block).top_k)
    return replace(intent, draw=_tokens(block, tokens, given), runs=runs)


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
    regions, e = _regions(block), _experts(block)
    first = number * regions.capacity

    def compute(x: Tensor, h: Tensor, *rest: Tensor) -> Tensor:
        return x + _taken(block, range(first, first + regions.capacity), h, *rest)

    intent = plain_intent(block, given | {"wgu": "", "wdown": ""}, {"x": given["x"]}, compute)
    filled = -(-regions.count * regions.capacity // (tokens * e.top_k))
    draw = _drawn_ids(block, tokens, {name: given[name] for name in ("slots", "ranks")}, first)
    return replace(intent, draw=draw, runs=filled + -(-filled // (PADDED - 1)))


def _experts_in_regions(block: Block, tokens: int, past: int, passes: int) -> Intent:
    given = _routing_given(block) | {"wgu": "", "wdown": ""}
    capacity, shared = _regions(block).capacity, _shared(block)
    results = {"x": given["x"], "expert_ids": "(y m) k", "demand": "n"}

    def intent(left_out: int | None = None) -> Intent:
        """Return the intent of all passes, or of all but one; there are as many passes as rows need."""

        def compute(x: Tensor, norm: Tensor, router: Tensor, real: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
            h = normed(block, x, norm)
            routing = _routing(block, h @ router, real)
            y = _with_shared(block, x, h, routing, *weights[:-2])
            for number in range(-(-tokens * _experts(block).top_k // capacity)):
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


def _experts(block: Block) -> Experts:
    assert block.shape.experts is not None, "a block of experts is one of a model that has some"
    return block.shape.experts


def _regions(block: Block) -> ExpertRegions:
    assert block.expert_regions is not None, "a block whose experts have regions"
    return block.expert_regions


def _shared(block: Block) -> tuple[str, ...]:
    """Return the names of the shared expert's weights, if the model has one."""
    return ("wgu.shared", "wdown.shared") if _experts(block).shared else ()


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
    """Return the routing of tokens whose `real` is above 0; others go nowhere.

    The tokens of each row of cores that choose an expert with copies take its homes in turn.
    """
    e, regions = _experts(block), _regions(block)
    expert_ids, shares, close = _choice(e, logits)
    own = expert_ids[:, : e.top_k]
    slots, ranks, most = own.new_full(own.shape, -1.0), own.new_zeros(own.shape), 0
    homes, held, tokens = _homes(e, regions), regions.held(e), len(own) // block.mesh.shape[0]
    for row in range(block.mesh.shape[0]):
        seen, queued = [0] * e.count, [0] * regions.count
        for token in range(row * tokens, (row + 1) * tokens):
            for choice, expert in enumerate(map(int, own[token].tolist()) if real[token] > 0 else ()):
                region, place = homes[expert][seen[expert] % len(homes[expert])]
                slots[token, choice], ranks[token, choice] = region * held + place, queued[region]
                seen[expert], queued[region] = seen[expert] + 1, queued[region] + 1
        most = max(most, *queued)
    routing = TokenRouting(expert_ids, shares, slots, ranks, own.new_tensor([most]))
    return TokenRouting(*(each * float("nan") for each in routing)) if bool(close.any()) else routing


def _homes(e: Experts, regions: ExpertRegions) -> list[list[tuple[int, int]]]:
    """Return, for every expert, its region and its place there, and then the regions and places of its copies."""
    homes = [[(expert % regions.count, expert // regions.count)] for expert in range(e.count)]
    for region, living in enumerate(regions.living(e)):
        for place, expert in enumerate(living):
            if (region, place) not in homes[expert]:
                homes[expert].append((region, place))
    return homes


def _with_shared(block: Block, x: Tensor, h: Tensor, routing: TokenRouting, *weights: Tensor) -> Tensor:
    """Return x plus the shared expert's output, times the token's share of it."""
    if not weights:
        return x
    e, (up, down) = _experts(block), weights
    return x + routing.shares[:, e.top_k, None] * (fed(h @ up, block.share(e.shared_width, "x")) @ down)


def _taken(
    block: Block, own: range, h: Tensor, shares: Tensor, slots: Tensor, ranks: Tensor, wgu: Tensor, wdown: Tensor
) -> Tensor:
    """Return the experts' outputs times their shares, for the expert ids whose ranks are in a range."""
    held, size = _regions(block).held(_experts(block)), block.mesh.shape[0] // _regions(block).side
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
    side, regions = block.mesh.shape[0], _regions(block)
    size = side // regions.side
    lying = straight(tiles.reshape(side, side, *tiles.shape[-3:]), block.mesh, size)
    cut = lying.unflatten(1, (regions.side, size)).unflatten(0, (regions.side, size))
    return cut.permute(0, 2, 4, 1, 5, 3, 6).flatten(5).flatten(3, 4).flatten(0, 1)


# --- drawn tokens ---


def _with_routings(block: Block, tokens: int, given: Mapping[str, str], intent: Intent) -> Intent:
    """Return the intent with a run for each region to which a mesh row sends all it can, and runs with padding."""
    count = _regions(block).count
    return replace(intent, draw=_tokens(block, tokens, given), runs=count + -(-count // (PADDED - 1)))


def _is_padded(run: int) -> bool:
    return run % PADDED == 1


def _full(run: int) -> int:
    """Return how many runs without padding came before."""
    return run - (run + PADDED - 2) // PADDED


def _tokens(block: Block, tokens: int, given: Mapping[str, str]) -> Callable[[Tiles, int], Tiles]:
    """Return a function that draws tokens which choose the experts of `_wanted`; only some runs have padding."""

    def draw(tiles: Tiles, run: int) -> Tiles:
        x, norm, router = (whole(tiles[name], given[name]) for name in ("x", "norm", "router"))
        turned = _steered(_experts(block), x, norm, router, _wanted(block, len(x), tokens, run))
        new = {"x": tiled(turned, block.mesh, given["x"])}
        return new if "real" not in given or _is_padded(run) else new | {"real": tiles["real"].abs()}

    return draw


def _wanted(block: Block, count: int, tokens: int, run: int) -> list[list[int]]:
    """Return the experts of `count` tokens, `tokens` a row of cores, that differ from run to run.

    With regions a row prefers the experts of one region, another one in each run. Else the tokens take all in turn.
    """
    e, regions, wanted = _experts(block), block.expert_regions, []
    for token in range(count):
        if regions is None:
            start = (run * count + token) * e.top_k
            wanted.append([(start + choice) % e.count for choice in range(e.top_k)])
            continue
        row, place = divmod(token, tokens)
        order: list[int] = []
        for region in range(regions.count):
            living = regions.living(e)[(row + _full(run) + region) % regions.count]
            first = place * e.top_k % max(1, len(living))
            order += [*living[first:], *living[:first]]
        wanted.append(list(dict.fromkeys(order))[: e.top_k])
    return wanted


def _steered(e: Experts, x: Tensor, norm: Tensor, router: Tensor, wanted: list[list[int]]) -> Tensor:
    """Return tokens near x [tokens, width] whose logits rank the `wanted` experts first, none far above another.

    It is as near as the router allows, whose experts are mostly fewer than the model is wide.
    """
    through = norm[:, None] * router[:, : e.count]
    logits, size = x @ through, x.square().mean(-1, True).sqrt()  # a norm divides by the latter
    order = logits.argsort(-1, True)
    rank = order.argsort(-1).to(x.dtype) / e.count
    first = rank.new_zeros(rank.shape).scatter(-1, order.new_tensor(wanted), 1.0)
    return x + (logits.mean(-1, True) + size * (2 * first - rank) - logits) @ through.pinverse()


def _drawn_ids(block: Block, tokens: int, given: Mapping[str, str], first: int) -> Callable[[Tiles, int], Tiles]:
    """Return a function that draws expert ids which fill the rows of a pass; some runs have ids of other passes."""
    e, regions = _experts(block), _regions(block)
    held, wanted, own = regions.held(e), tokens * e.top_k, regions.living(e)
    rows = [(region, rank) for rank in range(regions.capacity) for region in range(regions.count) if own[region]]

    def choice(row: int, number: int, run: int) -> tuple[float, float]:
        """Return the slot and the rank of one of a row's expert ids."""
        place = number + _full(run) * wanted + row
        region, rank = rows[place % len(rows)]
        slot, rank = region * held + (place + run) % len(own[region]), first + rank
        if number >= len(rows):
            return slot, first + regions.capacity + number
        if not _is_padded(run) or number % 2:
            return slot, rank
        if number % 4:
            return -1.0, 0.0
        return slot, rank - regions.capacity if first and number % 8 else rank + regions.capacity

    def draw(tiles: Tiles, run: int) -> Tiles:
        every = [[choice(row, number, run) for number in range(wanted)] for row in range(block.mesh.shape[0])]
        numbers = tiles["slots"].new_tensor(every)  # [rows, per_token, slot and rank]
        return {
            name: tiled(numbers[..., which].reshape(-1, e.top_k), block.mesh, pattern)
            for which, (name, pattern) in enumerate(given.items())
        }

    return draw


INTENTS: dict[SubLayer, Callable[..., Any]] = {
    experts.decode_experts: _decode_experts,
    experts.prefill_experts: _prefill_experts,
    expert_regions.prefill_routing: _prefill_routing,
    expert_regions.prefill_pass: _prefill_pass,
    expert_regions.prefill_experts_in_regions: _experts_in_regions,
}
