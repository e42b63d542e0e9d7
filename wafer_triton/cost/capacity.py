"""Tokens that a KV cache holds beside a model on a device; nothing here takes time."""

from __future__ import annotations

from wafer_triton.cost import layers
from wafer_triton.cost.constants import Constants
from wafer_triton.cost.residence import (
    FullError,
    Residence,
    decode_need,
    decode_residence,
    fitted,
    most,
    regions_of,
)
from wafer_triton.cost.results import Capacity
from wafer_triton.errors import SramError
from wafer_triton.mesh import Mesh
from wafer_triton.schedule import sram
from wafer_triton.schedule.product import tiles
from wafer_triton.shapes import DecoderShape


def true(mesh: Mesh, shape: DecoderShape, c: Constants, program: str, head_groups: int | None) -> Capacity:
    """The capacity at which decode just fits; SramError or MeshError where it does not with one token a row."""

    head_groups = layers.decode_block(shape, mesh, 1, c, None, program, head_groups).head_groups

    def place(candidate: Mesh, counted: Constants, entries: int = 1) -> Residence:
        context = entries * candidate.shape[0]
        count = head_groups if candidate == mesh else None
        block = layers.decode_block(shape, candidate, context, counted, None, program, count)
        return decode_residence(block, counted)

    def holds(entries: int) -> bool:
        try:
            place(mesh, c, entries)
        except (SramError, FullError):
            return False
        return True

    fitted(place, mesh, c, as_if=None)
    block = layers.decode_block(shape, mesh, 1, c, None, program, head_groups)
    stays = decode_need(block).stays
    weights = sum(size for name, size in stays.items() if not name.endswith("_cache"))
    entry = (sum(stays.values()) - weights) // block.slots
    tokens = most(holds, mesh.device.sram_bytes // entry)
    each = min(place(mesh, c, tokens).layers_per_region, shape.num_hidden_layers)
    return Capacity(tokens, tokens * mesh.shape[0], each, regions_of(mesh, c), each * weights, each * entry)


def measured(mesh: Mesh, shape: DecoderShape, c: Constants) -> Capacity:
    """The capacity as the paper counts it, see `estimate.kv`; SramError where the regions do not hold the weights."""

    def check(candidate: Mesh) -> int:
        weights, _ = _evenly_cut(shape, candidate)
        regions = max(1, regions_of(candidate, c))
        each = -(-shape.num_hidden_layers // regions)
        what = f"{shape.name}, {each} layers on each of {regions} regions"
        sram.demand(what, candidate, {name: size * each for name, size in weights.items()})
        return each

    each = sram.fitting(check, mesh)
    weights, entry = _evenly_cut(shape, mesh)
    weight_bytes = each * sum(weights.values())
    tokens = (mesh.device.sram_bytes - weight_bytes) // (entry * each)
    return Capacity(tokens, tokens * mesh.shape[0], each, max(1, regions_of(mesh, c)), weight_bytes, entry * each)


def _evenly_cut(shape: DecoderShape, mesh: Mesh) -> tuple[dict[str, int], int]:
    """Bytes on a core of one layer's weights, by buffer, and of its share of one token's keys and values."""
    rows, cols = mesh.shape
    (d,), (q, kv_width, f) = (
        tiles(rows, shape.hidden_size),
        tiles(cols, shape.q_width, shape.kv_width, shape.intermediate_size),
    )
    elements = {"wq": d * q, "wkv": 2 * d * kv_width, "wo": q * d, "wgu": 2 * d * f, "wdown": f * d}
    return {name: 2 * size for name, size in elements.items()}, 2 * 2 * kv_width
