"""Predicted costs of a decoder's phases and of a request, on given meshes, for `wafer_triton.estimate`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import TypeVar

from wafer_triton import local
from wafer_triton.cost import layers, padding, placement
from wafer_triton.cost.bands import basis_of_all, layer_basis
from wafer_triton.cost.constants import Constants
from wafer_triton.cost.placement import ExpertPlacement
from wafer_triton.cost.price import Cost, Groups, Reading, read
from wafer_triton.cost.results import Layered, RequestCost
from wafer_triton.device import ANY
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import WaferError
from wafer_triton.place import moves
from wafer_triton.place.layouts import LAYOUTS, region_count
from wafer_triton.place.regions import Placement, PrefillPlacement, Regions, decode_regions, place_model, place_prefill
from wafer_triton.shape.decoder import DecoderShape

T = TypeVar("T")
NOTHING = Cost()
MOST_STEPS = 1000  # steps of a growing cache that a request prices; of a longer answer as many, evenly spaced


def decode_placed(
    mesh: Mesh, shape: DecoderShape, context: int, c: Constants, groups: Groups = None, program: str = "full",
    head_groups: int | None = None,
) -> tuple[layers.Block, Regions]:  # fmt: skip
    """Return the first of `layers.decode_blocks` that the device holds, and its regions.

    Raises SramError or FullError if none fits.
    """
    return first(
        lambda block: (block, decode_regions(block, layout_of(program))),
        layers.decode_blocks(shape, mesh, context, c, groups, program, head_groups),
    )


def batch_placed(blocks: Sequence[layers.Block], batch: int) -> layers.Block:
    """Return the first of some blocks of decode whose regions hold `batch` of its caches, as `decode_placed`."""
    return first(lambda block: (decode_regions(block), block)[1], [replace(block, batch=batch) for block in blocks])


def layout_of(program: str) -> str:
    """Return the layout of regions: "area" for the paper-benchmark program, "rectangles" for "full"."""
    return "area" if layers.is_paper_benchmark(program) else LAYOUTS[0]


def first(place: Callable[[layers.Block], T], choices: Sequence[layers.Block]) -> T:
    """Return the result of `place` for the first choice that fits; raise the first choice's error if none does."""
    reason: WaferError | None = None
    for choice in choices:
        try:
            return place(choice)
        except WaferError as error:
            reason = reason or error
    assert reason is not None, "there is a choice"
    raise reason


def decode_on(
    mesh: Mesh, shape: DecoderShape, context: int, c: Constants, groups: Groups = None, program: str = "full",
    head_groups: int | None = None,
) -> Layered:  # fmt: skip
    """Return the cost of `decode`, and raise as `decode_placed`."""
    block, regions = decode_placed(mesh, shape, context, c, groups, program, head_groups)
    steps, between = layers.decode_steps(block, context, c), between_regions(block, regions, c)
    # the constants of the paper-benchmark program are fitted without the ways between regions
    timed = NOTHING if layers.is_paper_benchmark(program) else between
    whole = _layered("decode", block, steps, ends(block, 1, c), context, c, program, timed)
    return replace(
        whole, between_regions_cycles=between.cycles, head_groups=block.head_groups, regions=len(regions),
        padding=padding.decode_ratio(block, context), layout=layout_of(program),
        sram_peak_bytes=max(region.sram_peak_bytes for region in regions),
    )  # fmt: skip


def prefill_choices(
    mesh: Mesh, shape: DecoderShape, tokens: int, c: Constants, program: str, head_groups: int | None,
    experts: ExpertPlacement = None,
) -> list[layers.Block]:  # fmt: skip
    """Return candidate blocks of prefill; MeshError for head groups or regions of experts that do not fit."""
    block = layers.prefill_block(shape, mesh, c, program)
    rows = -(-tokens // block.mesh.shape[0])
    return placement.placed(layers.prefill_head_group_choices(block, rows, c, head_groups), rows, c, experts)


def prefill_placed(
    mesh: Mesh, shape: DecoderShape, tokens: int, c: Constants, program: str, head_groups: int | None,
    experts: ExpertPlacement = None,
) -> PrefillPlacement:  # fmt: skip
    """Return prefill on cores of its own; SramError or FullError if it does not fit."""
    choices = prefill_choices(mesh, shape, tokens, c, program, head_groups, experts)
    last = last_block(choices[0], c, program)
    return place_prefill(choices, last, tokens, layers.prefill_price(c), layout_of(program))


def prefill_on(
    mesh: Mesh, shape: DecoderShape, tokens: int, c: Constants, program: str = "full", head_groups: int | None = None,
    experts: ExpertPlacement = None,
) -> Layered:  # fmt: skip
    """Return the cost of `prefill`, and raise as `prefill_placed`."""
    own = prefill_placed(mesh, shape, tokens, c, program, head_groups, experts)
    whole = prefill_priced(own.block, own.chunk_tokens, tokens, c, program)
    peak = max(region.sram_peak_bytes for region in own.regions)
    return replace(whole, regions=len(own.regions), layout=layout_of(program), sram_peak_bytes=peak)


def prefill_priced(block: layers.Block, at_once: int, tokens: int, c: Constants, program: str) -> Layered:
    """Return the cost of prefill in chunks of `at_once` tokens a row."""
    rows = -(-tokens // block.mesh.shape[0])  # tokens of a mesh row
    steps = layers.prefill_steps(block, rows, c, at_once)
    whole = _layered("prefill", block, steps, ends(last_block(block, c, program), tokens, c), tokens, c, program)
    padded = padding.prefill_ratio(block, tokens, at_once)
    return replace(
        whole, head_groups=block.head_groups, padding=padded, chunks=-(-rows // at_once),
        experts=placement.where(block, tokens),
    )  # fmt: skip


def between_regions(block: layers.Block, regions: Regions, c: Constants) -> Cost:
    """Return the cost of the ways of a token of decode from region to region; none where one region holds all."""
    return sum(costs_of_ways([region.mesh for region in regions], block, c), NOTHING)


def costs_of_ways(meshes: Iterable[Mesh], block: layers.Block, c: Constants) -> list[Cost]:
    """Return the cost of each of `moves.ways`."""
    ways = moves.ways([replace(mesh, device=ANY) for mesh in meshes], block)
    moved = block.shape.hidden_size, block.batch, block.dtype
    return [_read(*way, *moved).cost(block.mesh.device, c) for way in ways]


@lru_cache(maxsize=256)
def _read(source: Mesh, target: Mesh, width: int, tokens: int, dtype: str) -> Reading:
    """Return the reading of the schedule of a way, which devices, caches and head groups share."""
    return read(moves.hand_over(source, target, width, tokens, dtype))


def ends(block: layers.Block, tokens: int, c: Constants, last: int = 1) -> tuple[layers.Costs, layers.Costs]:
    """Return the steps of the embedding of `tokens` tokens and of the head of `last`; none without a vocabulary."""
    if not block.shape.vocab_size:
        return {}, {}
    return layers.embedding_steps(block, tokens, c), layers.head_steps(block, last, c)


def last_block(prefill: layers.Block, c: Constants, program: str) -> layers.Block:
    """Return the block of prefill's embedding and head; the head takes the last token alone."""
    return layers.decode_block(prefill.shape, replace(prefill.mesh, fold=(1, 1)), 1, c, None, program, 1)


def request_placed(
    prefill_mesh: Mesh, decode_mesh: Mesh, shape: DecoderShape, input: int, output: int, c: Constants,
    groups: Groups = None, program: str = "full", head_groups: int | None = None, experts: ExpertPlacement = None,
) -> Placement:  # fmt: skip
    """Return the placement of a request, as in `generate` for the same meshes.

    Raises SramError or FullError.
    """
    choices = prefill_choices(prefill_mesh, shape, input, c, program, head_groups, experts)
    return first(
        lambda block: place_model(block, choices, input, layers.prefill_price(c), layout_of(program)),
        layers.decode_blocks(shape, decode_mesh, input + output, c, groups, program, head_groups),
    )


def request_on(place: Placement, input: int, output: int, c: Constants, program: str = "full") -> RequestCost:
    """Return the cost of `request` for a placed model."""
    decode, prefill, device = place.decode, place.prefill, place.decode.mesh.device
    shape, last = decode.shape, input + output
    prefilled = prefill_priced(prefill, place.chunk_tokens, input, c, program)
    handing_on = between_regions(decode, place.regions, c).cycles
    cycles, over = decoding_cycles(decode, input, output, c, handing_on)
    replacing = replacement_cycles(place, input, c) if answer_steps(output) else 0.0
    replacement, decoding = replacing / device.clock_hz, cycles / device.clock_hz
    seconds = prefilled.seconds + replacement + decoding
    joules = seconds * device.power_watts
    phases = {
        phase: layer_basis(phase, replace(mesh, fold=(1, 1)), shape, tokens, program)
        for phase, mesh, tokens in (("prefill", prefill.mesh, input), ("decode", decode.mesh, last))
    }
    return RequestCost(
        program=program, tokens_per_second=output / seconds, chunks=prefilled.chunks, experts=prefilled.experts,
        layout=place.layout,
        prefill_seconds=prefilled.seconds, replacement_seconds=replacement, decode_seconds=decoding, seconds=seconds,
        joules=joules, joules_per_token=joules / output, decode_regions=len(place.regions),
        device_regions=region_count(decode.mesh, place.layout), head_groups=decode.head_groups,
        relayed=prefilled.relayed or over, **basis_of_all(phases).fields(),
    )  # fmt: skip


def replacement_cycles(place: Placement, input: int, c: Constants) -> float:
    """Return cycles of the moves of all weights and a prompt's keys and values from prefill's cores to decode's."""
    device = place.decode.mesh.device
    if place.decode.shape.variant is None:  # whose parts may read their device
        place = place.on(replace(ANY, sram_bytes=device.sram_bytes))
    moved = _replacement(local.definitions(), place, input)
    return sum((reading.cost(device, c) * times for reading, times in moved), NOTHING).cycles


@lru_cache(maxsize=8)  # bounds of a request price one placement by eight sets of constants: 5.5 CPU s without, 1.1 with
def _replacement(definitions: int, place: Placement, input: int) -> list[tuple[Reading, int]]:
    """Return the readings of a re-placement's schedules, each with its number of runs."""
    schedules = chain(moves.weights_between_phases(place), moves.prompt_schedules(place, input))
    return [(read(schedule), times) for schedule, times in schedules]


def answer_steps(output: int) -> int:
    """Return the decode steps of an answer of `output` tokens: prefill makes the first token, a step each other.

    Step i reads the prompt and i tokens of the answer; the last token is in no cache.
    """
    return output - 1


def decoding_cycles(
    block: layers.Block, input: int, output: int, c: Constants, handing_on: float
) -> tuple[float, bool]:
    """Return the cycles of an answer's decode steps, and whether one is relayed.

    `handing_on` is a step's cycles between regions.
    """
    outer = sum(map(layers.total, ends(block, 1, c)), Cost())
    cycles, over = 0.0, False
    for count, own, context in alike(block, input, output):
        layer = layers.total(layers.decode_steps(own, context, c))
        cycles += count * (layer.cycles * block.shape.num_hidden_layers + outer.cycles + handing_on)
        over = over or layer.relayed or outer.relayed
    return cycles, over


def alike(block: layers.Block, input: int, output: int) -> Iterator[tuple[int, layers.Block, int]]:
    """Yield runs of decode steps of an answer with equal cost: their number, block and context.

    The price of all steps of a run is for the block with a cache of this context.
    """
    rows, context, steps = block.mesh.shape[0], input + 1, answer_steps(output)
    last = context + steps
    stride = rows * -(-steps // (rows * MOST_STEPS))  # if a cost grows by equal steps, the middle one is the mean
    while context < last:  # a layer's cost changes when a row takes one more token; by then entries shift
        after = min(last, -(-context // stride) * stride + 1)
        priced = after - 1 if stride == rows else (context + after) // 2
        # a request keeps its head groups
        yield after - context, replace(block, entries=-(-priced // rows)), priced
        context = after


def _layered(
    phase: str, block: layers.Block, steps: layers.Costs, ends: tuple[layers.Costs, layers.Costs], tokens: int,
    c: Constants, program: str, between: Cost = NOTHING,
) -> Layered:  # fmt: skip
    """Return a phase with `tokens` tokens in the cache or the prompt; `between` is the cost between its regions."""
    shape, mesh = block.shape, block.mesh
    layer, embedding, head = map(layers.total, (steps, *ends))
    whole = embedding + layer * shape.num_hidden_layers + head + between
    seconds, count = whole.cycles / mesh.device.clock_hz, tokens if phase == "prefill" else 1
    return Layered(
        program=program,
        cores=str(mesh),
        tokens_per_second=count / seconds,
        cycles_per_layer=layer.cycles,
        compute_cycles_per_layer=layer.compute_cycles,
        communication_cycles_per_layer=layer.communication_cycles,
        seconds=seconds,
        layers=shape.num_hidden_layers,
        mac_utilisation=whole.macs / (whole.cycles * mesh.device.macs_per_cycle_fp16),
        sram_bandwidth_utilisation=whole.sram_bytes / (whole.cycles * c.sram_bytes_per_cycle),
        joules_per_token=seconds * mesh.device.power_watts / count,
        embedding_cycles=embedding.cycles,
        head_cycles=head.cycles,
        steps={name: cost.cycles for name, cost in steps.items()},
        relayed=whole.relayed,
        latency_cycles=whole.latency_cycles,
        link_cycles=whole.link_cycles,
        **layer_basis(phase, mesh, shape, tokens, program).fields(),
    )
