"""What a device holds: the tokens of a KV cache beside a model, the smallest mesh for a model, the most layers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from wafer_triton.algorithms.product import tile_sizes
from wafer_triton.cost import layers
from wafer_triton.cost.constants import Constants, constants
from wafer_triton.cost.inference import decode_placed, layout_of, request_placed
from wafer_triton.cost.results import Capacity
from wafer_triton.decoder import decode
from wafer_triton.decoder.block import draft
from wafer_triton.device import DeviceLike
from wafer_triton.device import device as find_device
from wafer_triton.device.dtype import BYTES, DtypeLike
from wafer_triton.device.mesh import Mesh, MeshLike, as_mesh
from wafer_triton.errors import MeshError, ShapeError, SramError, check_counts
from wafer_triton.place.layouts import region_count
from wafer_triton.place.need import decode_need
from wafer_triton.place.regions import FullError
from wafer_triton.schedule import sram
from wafer_triton.shape.decoder import DecoderShape
from wafer_triton.shape.read import Model, shape_of
from wafer_triton.text.quantity import numbered, unit
from wafer_triton.text.table import Result


def full(mesh: Mesh, shape: DecoderShape, c: Constants, program: str, head_groups: int | None) -> Capacity:
    """Return the capacity at which decode just fits; SramError or MeshError if one token a row does not fit.

    `head_groups` None takes the number that decode takes with a full cache.
    """

    def place(entries: int) -> layers.Block:
        return decode_placed(mesh, shape, entries * mesh.shape[0], c, None, program, head_groups)[0]

    def holds(entries: int) -> bool:
        try:
            place(entries)
        except (SramError, FullError):
            return False
        return True

    place(1)
    tokens = most(holds)
    block, own = place(tokens), layout_of(program)
    needs = [decode_need(block, kind) for kind in ("attention", layers.feed_forward(block)[-1])]
    held = {buffer.name for sub_layer, args in decode.sub_layers_of(block, "attention")
            for buffer in draft(sub_layer, block, *args).buffers.values() if buffer.role == "cache"}  # fmt: skip
    cached = sum(size for name, size in needs[0].resident.items() if name in held)
    weights = sum(sum(need.resident.values()) for need in needs) - cached
    workspace = max(sum(decode_need(block, kind).workspace.values()) for kind in shape.layers_of)
    each = min((mesh.device.sram_bytes - workspace) // (weights + cached), shape.num_hidden_layers)
    caches = max(each, 1)
    if each == 0:  # each layer takes two regions, and the region of attention has the cache
        weights = sum(needs[0].resident.values()) - cached
    return Capacity(
        tokens, tokens * mesh.shape[0], each or 0.5, region_count(mesh, own), caches * weights,
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
    weights, entry = _evenly_cut(shape, mesh)
    regions = max(1, region_count(mesh, "area"))
    each = -(-shape.num_hidden_layers // regions)
    what = f"{shape.name}, {numbered(each, 'layers')} on each of {numbered(regions, 'regions')}"
    sram.demand(what, mesh, {name: size * each for name, size in weights.items()})
    weight_bytes = each * sum(weights.values())
    tokens = (mesh.device.sram_bytes - weight_bytes) // (entry * each)
    return Capacity(tokens, tokens * mesh.shape[0], each, regions, weight_bytes, entry * each, 1, "area")


def _evenly_cut(shape: DecoderShape, mesh: Mesh) -> tuple[dict[str, int], int]:
    """Return bytes on a core of one layer's weights, by buffer, and of its share of one token's keys and values."""
    rows, cols = mesh.shape
    (d,), (q, kv_width, f) = (
        tile_sizes(rows, shape.hidden_size),
        tile_sizes(cols, shape.q_width, shape.kv_width, shape.intermediate_size),
    )
    elements = {
        "query": d * q,
        "key and value": 2 * d * kv_width,
        "output": q * d,
        "gate and up": 2 * d * f,
        "down": f * d,
    }
    return {name: BYTES[shape.weights or "fp16"] * size for name, size in elements.items()}, 2 * 2 * kv_width


@dataclass(frozen=True, repr=False)
class Fit(Result):
    """How much of a model a mesh holds in decode: the most of its `layers`, and the most `tokens` of the whole model.

    Both count the embedding and the head. `tokens` is 0 where the device does not hold the whole model.
    """

    heading = "counted"

    layers: int = field(metadata=unit("layers"))
    tokens: int = field(metadata=unit("tokens", "tokens of the whole model"))


def what_fits(
    model: Model, *, device: DeviceLike = "wse2", mesh: MeshLike, context: int = 1, dtype: DtypeLike | None = None
) -> Fit:
    """Return how many layers of a model a device holds with `context` tokens of cache, and how many tokens with all.

    Regions are as large as `mesh`; `dtype` is the storage of the weights, as in `estimate.decode`. Each number of
    layers is placed in turn, the largest first. Raises ConfigError, DeviceError, MeshError or ShapeError for wrong
    arguments; a model that does not fit is no error.
    """
    on, shape = as_mesh(mesh, find_device(device)), shape_of(model, dtype)
    (context,), c = check_counts(context=context), constants(on.device)
    layers, tokens = 0, 0
    for count in range(shape.num_hidden_layers, 0, -1):
        with suppress(SramError, FullError):
            decode_placed(on, replace(shape, num_hidden_layers=count), context, c)
            layers = count
            break
    with suppress(SramError, FullError):
        tokens = full(on, shape, c, "full", None).shift_tokens
    return Fit(layers, tokens)


def smallest_mesh(
    model: Model, *, device: DeviceLike = "wse2", context: int, prompt: int = 0, dtype: DtypeLike | None = None
) -> Mesh:
    """Return the smallest square mesh whose regions hold a model for decode with `context` tokens of cache.

    With a `prompt` they also hold its prefill, on the same mesh; the answer then has the other tokens of `context`.
    `dtype` is the storage of the weights, as in `estimate.decode`. Every side is placed in turn, the smallest first,
    which takes some seconds. Raises MeshError if no square mesh of the device holds the model, ShapeError for a prompt
    that is as long as the context.
    """
    chip, shape = find_device(device), shape_of(model, dtype)
    (context,), c = check_counts(context=context), constants(chip)
    if prompt >= context:
        raise ShapeError(f"prompt = {prompt:,} leaves no token of context = {context:,} for an answer; give less")
    weights, room = shape.parameters * BYTES[shape.weights or "fp16"], chip.cores * chip.sram_bytes
    sides = range(1, min(chip.rows, chip.cols) + 1) if weights <= room else ()
    for side in sides:
        mesh = Mesh(side, side, chip)
        with suppress(SramError, MeshError):
            if prompt:
                request_placed(mesh, mesh, shape, prompt, context - prompt, c)
            else:
                decode_placed(mesh, shape, context, c)
            return mesh
    raise MeshError(
        f"no square mesh of {chip.name} holds {shape.name} with {context:,} tokens of cache: its weights take "
        f"{weights:,} B, all cores hold {room:,} B; what_fits(...) has the layers that fit"
    )
