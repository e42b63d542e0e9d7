"""The number of tokens that a KV cache holds beside a model on a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from wafer_triton.cost import layers
from wafer_triton.cost.constants import Constants
from wafer_triton.cost.inference import decode_placed, layout_of
from wafer_triton.cost.results import Capacity
from wafer_triton.device.dtype import BYTES
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import SramError
from wafer_triton.place.fitting import fitted
from wafer_triton.place.layouts import device_regions
from wafer_triton.place.need import decode_need
from wafer_triton.place.regions import FullError, decode_regions
from wafer_triton.schedule import decode, sram
from wafer_triton.schedule.block import drafted
from wafer_triton.schedule.product import tiles
from wafer_triton.shape.decoder import DecoderShape


def full(
    mesh: Mesh, shape: DecoderShape, c: Constants, program: str, head_groups: int | None, layout: str | None = None
) -> Capacity:
    """Return the capacity at which decode just fits; SramError or MeshError if one token a row does not fit."""

    def place(candidate: Mesh, own: DecoderShape = shape) -> layers.Block:
        return decode_placed(candidate, own, candidate.shape[0], c, None, program, head_groups, layout)[0]

    def holds(entries: int) -> bool:
        try:
            decode_regions(replace(block, entries=entries), own)
        except (SramError, FullError):
            return False
        return True

    fitted(place, mesh, None, shape)
    block, own = place(mesh), layout_of(layout, program)
    needs = [decode_need(block, kind) for kind in ("attention", layers.feed_forward(block)[-1])]
    held = {buffer.name for sub_layer, args in decode.sharing(block, "attention")
            for buffer in drafted(sub_layer, block, *args).buffers.values() if buffer.role == "cache"}  # fmt: skip
    cached = sum(size for name, size in needs[0].resident.items() if name in held)
    weights = sum(sum(need.resident.values()) for need in needs) - cached
    entry, limit = cached // block.slots, mesh.device.sram_bytes
    tokens = most(holds, limit // entry)
    grown = [decode_need(replace(block, entries=tokens), kind) for kind in shape.layers_of]
    workspace = max(sum(need.workspace.values()) for need in grown)
    each = max(1, (limit - workspace) // (weights + entry * replace(block, entries=tokens).slots))
    each = min(each, shape.num_hidden_layers)
    return Capacity(
        tokens, tokens * mesh.shape[0], each, device_regions(mesh, own), each * weights, each * entry, own
    )  # fmt: skip


def most(fits: Callable[[int], bool], count: int) -> int:
    """Return the largest of 0 to `count` that fits; every smaller one must fit, too."""
    low, high = 0, count
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def paper_benchmark(mesh: Mesh, shape: DecoderShape) -> Capacity:
    """Return the capacity as the paper counts it, see `estimate.kv`; SramError if regions do not hold the weights."""

    def check(candidate: Mesh) -> int:
        weights, _ = _evenly_cut(shape, candidate)
        regions = max(1, device_regions(candidate, "area"))
        each = -(-shape.num_hidden_layers // regions)
        what = f"{shape.name}, {each} layers on each of {regions} regions"
        sram.demand(what, candidate, {name: size * each for name, size in weights.items()})
        return each

    each = sram.fitting(check, mesh)
    weights, entry = _evenly_cut(shape, mesh)
    weight_bytes = each * sum(weights.values())
    tokens = (mesh.device.sram_bytes - weight_bytes) // (entry * each)
    return Capacity(
        tokens, tokens * mesh.shape[0], each, max(1, device_regions(mesh, "area")), weight_bytes, entry * each, "area"
    )


def _evenly_cut(shape: DecoderShape, mesh: Mesh) -> tuple[dict[str, int], int]:
    """Return bytes on a core of one layer's weights, by buffer, and of its share of one token's keys and values."""
    rows, cols = mesh.shape
    (d,), (q, kv_width, f) = (
        tiles(rows, shape.hidden_size),
        tiles(cols, shape.q_width, shape.kv_width, shape.intermediate_size),
    )
    elements = {
        "query": d * q,
        "key and value": 2 * d * kv_width,
        "output": q * d,
        "gate and up": 2 * d * f,
        "down": f * d,
    }
    return {name: BYTES[shape.weights or "fp16"] * size for name, size in elements.items()}, 2 * 2 * kv_width
