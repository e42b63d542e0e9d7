"""A request in time: predicted cycles of prefill, re-placement and decode, region by region and block by block.

Costs are the terms that `cost.inference` adds up, so the spans of a track add up to its price. Tokens of an answer
that cost the same are two spans: the first, whose blocks are spans of their regions, and all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from wafer_triton.cost import estimate, inference, layers
from wafer_triton.cost.constants import Constants, constants
from wafer_triton.cost.layers import Steps
from wafer_triton.cost.price import Cost, price
from wafer_triton.draw.source_lines import Sources, joined, of_ends, of_schedule, of_steps
from wafer_triton.errors import check_counts
from wafer_triton.place import moves
from wafer_triton.place.need import ENDS
from wafer_triton.place.regions import Placement, Region, Regions
from wafer_triton.schedule.block import Block

WHOLE = "request"  # the place of spans that belong to no region
PHASES, TOKENS, TRANSFERS, BLOCKS, STEPS = TRACKS = ("phases", "tokens", "transfers", "blocks", "steps")
HAND_OVER = "hand-over"


class Origin(NamedTuple):
    """The lines of code that made rounds, as of `source_lines`, and the number of cores that run them."""

    source: str
    cores: int


@dataclass(frozen=True)
class TrackSpan:
    """`times` equal runs in a row on a track of a place, from cycle `start` on; they cost `cost` together.

    Their rounds are of an `origin`.
    """

    place: str
    track: str
    name: str
    start: float
    cost: Cost
    origin: Origin
    times: int = 1
    context: int | None = None  # of tokens: how many the cache holds after the last run

    @property
    def end(self) -> float:
        """The cycle in which the last run ends."""
        return self.start + self.cost.cycles


@dataclass
class Timeline:
    """Spans, and the regions that are their places, by name; the next span starts in cycle `now`."""

    regions: dict[str, Region]
    spans: list[TrackSpan] = field(default_factory=list)
    now: float = 0.0

    def add(
        self, place: str, track: str, name: str, cost: Cost, origin: Origin, start: float | None = None, times: int = 1,
        context: int | None = None,
    ) -> Cost:  # fmt: skip
        """Add a span from `start` (None: now) on, and return its cost; now is its end."""
        begin = self.now if start is None else start
        self.spans.append(TrackSpan(place, track, name, begin, cost, origin, times, context))
        self.now = self.spans[-1].end
        return cost


def of_token(regions: Regions, block: Block, context: int) -> Timeline:
    """Return one token of decode through all regions, after which the cache holds `context` tokens."""
    c, line = constants(block.mesh.device), Timeline(_named("region", regions))
    kinds = layers.decode_kinds(block, context, c) | _ends(inference.ends(block, 1, c))
    sources = of_steps(block, layers.decode_sub_layers(block, context)) | of_ends(block, 1)
    cost = _pass(line, "region", regions, kinds, sources, _handing(regions, block, c), detailed=True)
    origin = Origin(_every(sources), _cores(regions))
    line.add(WHOLE, TOKENS, f"token with {context:,} tokens of cache", cost, origin, 0.0, context=context)
    return line


def request(*, input: int, output: int, program: str = "full", most: int = 1000, **given: Any) -> Timeline:
    """Return the time of `estimate.request`, whose options are `given`, by phase, region and block.

    Of the answer, `most` tokens at most are shown in blocks. Blocks have their steps in the first chunk of the prompt
    and in the first token of the answer. Raises as `estimate.request`.
    """
    check_counts(most=most)
    asked = {"input": input, "output": output, "program": program, **given}
    place, _ = estimate.request_place(**asked)
    c = constants(place.decode.mesh.device)
    before, after = ("prefill region", "decode region") if place.regions != place.prefill_regions else ("region",) * 2
    line = Timeline(_named(before, place.prefill_regions) | _named(after, place.regions))
    line.add(WHOLE, PHASES, "prefill", *_prefill(line, before, place, input, c, program), 0.0)
    start, moved, origins = line.now, Cost(), list[Origin]()
    for schedule, times in inference.replacement(place, input):
        origins.append(Origin(of_schedule(schedule), schedule.mesh.cores))
        moved += line.add(WHOLE, TRANSFERS, schedule.name, price(schedule, c) * times, origins[-1], times=times)
    widest = max((origin.cores for origin in origins), default=0)
    line.add(WHOLE, PHASES, "re-placement", moved, Origin(joined(origin.source for origin in origins), widest), start)
    start = line.now
    line.add(WHOLE, PHASES, "decode", *_decode(line, after, place, input, output, c, most), start, output)
    return line


def _named(name: str, regions: Regions) -> dict[str, Region]:
    return {f"{name} {number}": region for number, region in enumerate(regions)}


def _ends(steps: tuple[Steps, Steps]) -> dict[str, Steps]:
    return {end: own for end, own in zip(ENDS, steps, strict=True) if own}


def _every(sources: Sources) -> str:
    return joined(source for steps in sources.values() for source in steps.values())


def _cores(regions: Regions) -> int:
    return sum(region.mesh.cores for region in regions)


def _handing(regions: Regions, block: Block, c: Constants) -> list[tuple[Cost, Origin]]:
    return [
        (price(schedule, c), Origin(of_schedule(schedule), schedule.mesh.cores))
        for schedule in moves.hand_overs([region.mesh for region in regions], block)
    ]


def _prefill(
    line: Timeline, name: str, place: Placement, input: int, c: Constants, program: str
) -> tuple[Cost, Origin]:
    """Add the spans of a prompt, chunk by chunk through all layers; return their cost and origin."""
    block, last, whole, every = place.prefill, inference.last_block(place.prefill, c, program), Cost(), list[str]()
    ends, end_sources = _ends(inference.ends(last, input, c)), of_ends(last, input)
    rows = -(-input // block.mesh.shape[0])
    for past in range(0, rows, place.at_once):
        tokens = min(place.at_once, rows - past)
        due = [end for end, now in zip(ENDS, (past == 0, past + tokens == rows), strict=True) if now and end in ends]
        kinds = layers.chunk_kinds(block, tokens, past, c) | {end: ends[end] for end in due}
        sources = of_steps(block, layers.chunk_sub_layers(block, tokens, past)) | end_sources
        every.append(_every(sources))
        whole += _pass(line, name, place.prefill_regions, kinds, sources, (), detailed=past == 0)
    return whole, Origin(joined(every), _cores(place.prefill_regions))


def _decode(
    line: Timeline, name: str, place: Placement, input: int, output: int, c: Constants, most: int
) -> tuple[Cost, Origin]:
    """Add the spans of an answer; return their cost and origin."""
    block, regions, whole, every = place.decode, place.regions, Cost(), list[str]()
    handing, ends, end_sources = _handing(regions, block, c), _ends(inference.ends(block, 1, c)), of_ends(block, 1)
    for number, (past, count, own, context) in enumerate(inference.alike(block, input, output)):
        start, kinds = line.now, layers.decode_kinds(own, context, c) | ends
        shown = line if number < most else Timeline({})
        sources = of_steps(own, layers.decode_sub_layers(own, context)) | end_sources
        every.append(_every(sources))
        cost = _pass(shown, name, regions, kinds, sources, handing, detailed=number == 0)
        origin = Origin(every[-1], _cores(regions))
        whole += line.add(WHOLE, TOKENS, f"token {past}", cost, origin, start, context=input + past)
        if count > 1:
            last = past + count - 1
            named, more = f"tokens {past + 1} to {last}", cost * (count - 1)
            whole += line.add(WHOLE, TOKENS, named, more, origin, None, count - 1, input + last)
    return whole, Origin(joined(every), _cores(regions))


def _pass(
    line: Timeline, name: str, regions: Regions, kinds: dict[str, Steps], sources: Sources,
    handing: Sequence[tuple[Cost, Origin]], detailed: bool,
) -> Cost:  # fmt: skip
    """Add the blocks of `kinds` in the order of the regions, and the ways between regions; return their cost.

    The embedding of a tied model lies with the head in the last region, from which its result goes to the first.
    """
    whole, ways = Cost(), list(handing)

    def block(region: int, called: str) -> Cost:
        kind, place, start = called.split()[-1], f"{name} {region}", line.now
        cores = regions[region].mesh.cores
        for step, cost in kinds[kind].items() if detailed else ():
            line.add(place, STEPS, step, cost, Origin(sources[kind][step], cores))
        origin = Origin(joined(sources[kind].values()), cores)
        return line.add(place, BLOCKS, called, layers.total(kinds[kind]), origin, start)

    def hand_over(region: int) -> Cost:
        return line.add(f"{name} {region}", BLOCKS, HAND_OVER, *ways.pop(0)) if ways else Cost()

    if ENDS[0] in kinds and not any(ENDS[0] in region.blocks for region in regions):
        whole += block(len(regions) - 1, ENDS[0]) + hand_over(len(regions) - 1)
    for number, region in enumerate(regions):
        for called in region.blocks:
            whole += block(number, called) if called.split()[-1] in kinds else Cost()
        whole += hand_over(number)
    return whole


def plain(line: Timeline, regions: Regions) -> dict[str, Any]:
    """Return a timeline for a page of `regions`: its rows, and its views, [name, from, to].

    A track of the whole request is a row; a region is a row with a lane of blocks and a lane of steps. A lane is a
    list of [start, end, name, runs].
    """
    homes = {id(region): number for number, region in enumerate(regions)}
    rows: list[dict[str, Any]] = []
    for track in TRACKS:
        if lane := _lane(line, WHOLE, track):
            rows.append({"name": track, "region": None, "lanes": [lane]})
    for name, region in line.regions.items():
        lanes = [_lane(line, name, track) for track in (BLOCKS, STEPS)]
        rows.append({"name": name, "region": homes.get(id(region)), "lanes": lanes})
    return {"rows": rows, "views": [[name, round(start, 3), round(end, 3)] for name, start, end in _views(line)]}


def _lane(line: Timeline, place: str, track: str) -> list[list[Any]]:
    spans = [span for span in line.spans if (span.place, span.track) == (place, track)]
    return [[round(span.start, 3), round(span.end, 3), span.name, span.times] for span in spans]


def _views(line: Timeline) -> Iterator[tuple[str, float, float]]:
    """Yield the whole time, the first token, and the first layer of every phase."""
    outer = [span for span in line.spans if span.place == WHOLE]
    yield "whole", 0.0, max(span.end for span in outer)
    phases = [span for span in outer if span.track == PHASES]
    if phases:
        first = next(span for span in outer if span.track == TOKENS)
        yield "a token", first.start, first.end
    for phase in phases or outer:
        layer = [
            span for span in line.spans
            if span.track == BLOCKS and phase.start <= span.start < phase.end and span.name.startswith("layer 0 ")
        ]  # fmt: skip
        if layer:
            name = f"a layer of {phase.name}" if phases else "a layer"
            yield name, layer[0].start, layer[len({span.name for span in layer}) - 1].end
