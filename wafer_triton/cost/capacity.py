"""The number of tokens that a KV cache holds beside a model on a device."""

from __future__ import annotations

from collections.abc import Callable

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
from wafer_triton.place.regions import FullError
from wafer_triton.schedule import decode, sram
from wafer_triton.schedule.block import drafted
from wafer_triton.schedule.product import tiles
from wafer_triton.shape.decoder import DecoderShape


def full(mesh: Mesh, shape: DecoderShape, c: Constants, program: str, head_groups: int | None) -> Capacity:
    """Return the capacity at which decode just fits; SramError or MeshError if one token a row does not fit.

    `head_groups` None takes the number that decode takes with a full cache.
    """

    def place(candidate: Mesh, own: DecoderShape = shape, entries: int = 1) -> layers.Block:
        context = entries * candidate.shape[0]
        return decode_placed(candidate, own, context, c, None, program, head_groups)[0]

    def holds(entries: int) -> bool:
        try:
            place(mesh, shape, entries)
        except (SramError, FullError):
            return False
        return True

    fitted(place, mesh, None, shape)
    tokens = most(holds)
    block, own = place(mesh, shape, tokens), layout_of(program)
    needs = [decode_need(block, kind) for kind in ("attention", layers.feed_forward(block)[-1])]
    held = {buffer.name for sub_layer, args in decode.sharing(block, "attention")
            for buffer in drafted(sub_layer, block, *args).buffers.values() if buffer.role == "cache"}  # fmt: skip
    cached = sum(size for name, size in needs[0].resident.items() if name in held)
    weights = sum(sum(need.resident.values()) for need in needs) - cached
    workspace = max(sum(decode_need(block, kind).workspace.values()) for kind in shape.layers_of)
    each = min((mesh.device.sram_bytes - workspace) // (weights + cached), shape.num_hidden_layers)
    caches = max(each, 1)
    if each == 0:  # each layer takes two regions, and the region of attention has the cache
        weights = sum(needs[0].resident.values()) - cached
    return Capacity(
        tokens, tokens * mesh.shape[0], each or 0.5, device_regions(mesh, own), caches * weights,
        caches * cached // block.slots, block.head_groups, own,
    )  # fmt: skip


def most(fits: Callable[[int], bool]) -> int:
    """Return the largest number that fits; 1 must fit, and so must every number below one that fits."""
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
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
        tokens, tokens * mesh.shape[0], each, max(1, device_regions(mesh, "area")), weight_bytes, entry * each, 1,
        "area",
    )  # fmt: skip


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
