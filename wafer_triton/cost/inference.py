"""The phases of a decoder, and a request, on meshes that are chosen: what `wafer_triton.estimate` prices of a model."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import lru_cache

from wafer_triton.cost import layers, padding
from wafer_triton.cost import trim as trims
from wafer_triton.cost.bands import basis_of_all, layer_basis
from wafer_triton.cost.constants import Constants
from wafer_triton.cost.placement import Placement, placed, where
from wafer_triton.cost.price import Cost
from wafer_triton.cost.residence import FullError, decode_residence, prefill_residence, regions_of
from wafer_triton.cost.results import Layered, Request
from wafer_triton.cost.trees import Groups
from wafer_triton.errors import SramError
from wafer_triton.mesh import Mesh
from wafer_triton.shapes import DecoderShape

MOST_STEPS = 1000  # of a growing cache that a request prices one by one; of a longer answer as many, evenly


def decode_on(
    mesh: Mesh, shape: DecoderShape, context: int, c: Constants, groups: Groups = None, program: str = "true",
    head_groups: int | None = None,
) -> Layered:  # fmt: skip
    """See `decode`; the error of a mesh that does not hold the model names none that does."""
    block = layers.decode_block(shape, mesh, context, c, groups, program, head_groups)
    decode_residence(block, c)
    steps = layers.decode_steps(block, context, c)
    whole = _layered("decode", block, steps, _ends(block, 1, c), context, c, program)
    return replace(whole, head_groups=block.head_groups, padding=padding.of_layer(block, context))


def prefill_blocks(
    mesh: Mesh, shape: DecoderShape, tokens: int, c: Constants, program: str, head_groups: int | None,
    trim: bool, experts: Placement = None,
) -> tuple[layers.Block, int, layers.Block]:  # fmt: skip
    """The block of prefill, the tokens that a row takes at once, and the block of the head, which takes the last alone.

    With `trim` they are those of the whole mesh where its part does not hold the model. Raises SramError or MeshError
    if they do not fit.
    """

    def on(part: Mesh) -> layers.Block:
        return layers.prefill_block(shape, part, c, program)

    def resident(part: Mesh, *first: layers.Block) -> tuple[layers.Block, int, layers.Block]:
        last, block = layers.decode_block(shape, part, 1, c, None, program, 1), on(part)
        rows = -(-tokens // block.mesh.shape[0])
        choices = [*first, *layers.prefill_head_group_choices(block, rows, c, head_groups)]
        return *prefill_residence(placed(choices, rows, c, experts), last, tokens, c), last

    if trim:
        best = trims.prefill_block(on, mesh.square(), tokens, c, head_groups)
        with suppress(SramError, FullError):
            return resident(replace(best.mesh, fold=(1, 1)), best)
    return resident(mesh)


def prefill_on(
    mesh: Mesh, shape: DecoderShape, tokens: int, c: Constants, program: str = "true", head_groups: int | None = None,
    trim: bool = False, experts: Placement = None,
) -> Layered:  # fmt: skip
    """See `prefill`; the error of a mesh that does not hold the model names none that does."""
    block, at_once, last = prefill_blocks(mesh, shape, tokens, c, program, head_groups, trim, experts)
    steps = layers.prefill_steps(block, -(-tokens // block.mesh.shape[0]), c, at_once)
    whole = _layered("prefill", block, steps, _ends(last, tokens, c), tokens, c, program)
    padded = padding.of_prefill(block, tokens, at_once)
    return replace(whole, head_groups=block.head_groups, padding=padded, experts=where(block, tokens))


def _ends(block: layers.Block, tokens: int, c: Constants) -> tuple[Cost, Cost]:
    """The embedding of so many tokens, and the head of the last."""
    if not block.shape.vocab_size:
        return Cost(), Cost()
    return layers.total(layers.embedding_steps(block, tokens, c)), layers.total(layers.head_steps(block, 1, c))


def request_on(
    prefill_mesh: Mesh, decode_mesh: Mesh, shape: DecoderShape, prefilled: Layered, input: int, output: int,
    c: Constants, groups: Groups = None, program: str = "true", head_groups: int | None = None,
) -> Request:  # fmt: skip
    """See `request`, after a prefill that is priced already, on `prefill_mesh`."""
    last = input + output
    regions, cycles, over, held = _decoding(decode_mesh, shape, input, output, c, groups, program, head_groups)
    placing = _placing(shape, input, min(prefill_mesh.rows, decode_mesh.rows), prefill_mesh.cols + decode_mesh.cols, c)
    replacement, decoding = placing / decode_mesh.device.clock_hz, cycles / decode_mesh.device.clock_hz
    seconds = prefilled.seconds + replacement + decoding
    joules = seconds * decode_mesh.device.power_watts
    phases = {
        phase: layer_basis(phase, mesh, shape, tokens, program)
        for phase, mesh, tokens in (("prefill", prefill_mesh, input), ("decode", decode_mesh, last))
    }
    return Request(
        program=program,
        tokens_per_second=output / seconds,
        prefill_seconds=prefilled.seconds,
        experts=prefilled.experts,
        replacement_seconds=replacement,
        decode_seconds=decoding,
        seconds=seconds,
        joules=joules,
        joules_per_token=joules / output,
        decode_regions=regions,
        device_regions=regions_of(decode_mesh, c),
        fits=True,
        head_groups=held,
        relayed=prefilled.relayed or over,
        **basis_of_all(phases).fields(),
    )


@lru_cache(maxsize=256)
def _decoding(
    mesh: Mesh, shape: DecoderShape, input: int, output: int, c: Constants, groups: Groups, program: str,
    head_groups: int | None,
) -> tuple[int, float, bool, int]:  # fmt: skip
    """The regions, cycles and head groups of an answer, and whether it is relayed; the same after any prefill."""

    def block(context: int) -> layers.Block:
        return layers.decode_block(shape, mesh, context, c, groups, program, held)

    last, held = input + output, head_groups
    held = block(last).head_groups  # a request keeps its layout
    regions = decode_residence(block(last), c).regions
    ends = sum(_ends(block(last), 1, c), Cost())
    handing_on = (regions - 1) * (c.hop_cycles * mesh.shape[1] + c.stage_cycles)
    rows = mesh.shape[0]
    stride = rows * -(-output // (rows * MOST_STEPS))  # a cost that grows by equal steps is that of the middle
    cycles, context, over = 0.0, input, ends.relayed
    while context < last:  # a layer's cost changes when a row takes one more token; by then entries shift
        after = min(last, -(-context // stride) * stride + 1)
        priced = after - 1 if stride == rows else (context + after) // 2
        layer = layers.total(layers.decode_steps(block(priced), priced, c))
        cycles += (after - context) * (layer.cycles * shape.num_hidden_layers + ends.cycles + handing_on)
        context, over = after, over or layer.relayed
    return regions, cycles, over, held


def _placing(shape: DecoderShape, tokens: int, rows: int, hops: int, c: Constants) -> float:
    words = (shape.matrices + shape.num_hidden_layers * 2 * tokens * shape.kv_width) / 2
    return words / rows * c.word_cycles + hops * c.hop_cycles


def _layered(
    phase: str, block: layers.Block, steps: layers.Steps, ends: tuple[Cost, Cost], tokens: int, c: Constants,
    program: str,
) -> Layered:  # fmt: skip
    """A phase with `tokens` tokens in the cache or the prompt."""
    shape, mesh = block.shape, block.mesh
    layer, (embedding, head) = layers.total(steps), ends
    whole = embedding + layer * shape.num_hidden_layers + head
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
        **layer_basis(phase, mesh, shape, tokens, program).fields(),
    )
