"""The memory that a core needs for the sub-layers of a decoder, and its weights by kind of block. No torch."""

from __future__ import annotations

from dataclasses import replace

from wafer_triton.decoder import decode, prefill
from wafer_triton.decoder.block import Block, SubLayer, SubLayers, cached_across_devices, draft, resolve_variant
from wafer_triton.device import PRESETS
from wafer_triton.device.layout import MESH_AXES, dimensions
from wafer_triton.device.layout import sharding as plan_of
from wafer_triton.device.mesh import Mesh
from wafer_triton.schedule import sram
from wafer_triton.schedule.rounds import Buffer, Parameter
from wafer_triton.shape.decoder import DecoderShape

ENDS = ("embedding", "head")  # kinds on a mesh of their own, and at rest; a tied model uses one matrix for both


@cached_across_devices(32)
def weights_of(block: Block, kind: str, phase: str) -> dict[str, Buffer]:
    """Return the weight buffers of a kind of block in a phase, as its schedules declare them."""
    sub_layers = decode.sub_layers_of(block, kind) if phase == "decode" else prefill.sub_layers_of(block, kind, 1, 0)
    return {
        name: buffer
        for sub_layer, args in sub_layers
        for name, buffer in draft(sub_layer, block, *args).buffers.items()
        if buffer.role == "weight"
    }


def decode_need(block: Block, kind: str) -> sram.Need:
    """Return the bytes that a kind of block needs on a core in decode: resident buffers and the largest workspace."""
    return _need(block, decode.sub_layers_of(block, kind))


def prefill_need(block: Block, kind: str, tokens: int, past: int, keep: bool = False) -> sram.Need:
    """Return the need of a core for a block of a kind in prefill on a square mesh, with new and past tokens a row.

    With `keep` the keys and values are resident until all layers are done; then decode takes them to its own mesh.
    """
    return _need(block, prefill.sub_layers_of(block, kind, tokens, past), prefill.PAST if keep else ())


def _need(block: Block, sub_layers: SubLayers, keep: tuple[str, ...] = ()) -> sram.Need:
    """Return the need of a core for sub-layers in turn; buffers called `keep` stay as a cache does."""
    resolved = ((*resolve_variant(sub_layer, block), args) for sub_layer, args in sub_layers)
    return sram.in_turn(_need_of(own, sub_layer, args, keep) for sub_layer, own, args in resolved)


@cached_across_devices(4096)
def _need_of(block: Block, sub_layer: SubLayer, args: tuple[int, ...], keep: tuple[str, ...]) -> sram.Need:
    schedule = draft(sub_layer, block, *args)
    buffers = {
        name: replace(buffer, role="cache") if name in keep else buffer for name, buffer in schedule.buffers.items()
    }
    return sram.need(replace(schedule, buffers=buffers))


def block_names(shape: DecoderShape) -> list[str]:
    """Return the blocks of all layers in order, such as "layer 0 attention"."""
    return [f"layer {layer} {kind}" for layer in range(shape.num_hidden_layers) for kind in shape.kinds(layer)]


def param_shapes(shape: DecoderShape) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter of a model by its Hugging Face name, from the buffers of decode."""
    block = Block(shape, Mesh(1, 1, PRESETS["wse2"].unbounded()))
    kinds = {kind: weights_of(block, kind, "decode") for kind in shape.layers_of}
    held = [(0, weights_of(block, "embedding", "decode"))]
    held += [(layer, kinds[kind]) for layer in range(shape.num_hidden_layers) for kind in shape.kinds(layer)]
    held.append((0, weights_of(block, "head", "decode")))
    return {cut.of(layer): cut.shape for layer, buffers in held for buffer in buffers.values() for cut in buffer.holds}


def tile_shape(cut: Parameter, mesh: Mesh) -> tuple[int, ...]:
    """Return the shape of a core's tile of a parameter."""
    return plan_of(cut.pattern, cut.cut_shape, mesh.shape, tuple(cut.sizes.items())).tile


def cut_along(cut: Parameter) -> dict[str, int]:
    """Return {mesh axis: the dimension of the parameter that it cuts}."""
    groups = dimensions(cut.pattern.partition("->")[0])
    return {axis: dim for dim, group in enumerate(groups) for axis in group if axis in MESH_AXES}


def needs_transpose(source: Buffer, target: Buffer) -> bool:
    """Return whether the mesh axes cut other dimensions of the same parameters in one buffer than in the other."""
    before, after = cut_along(source.holds[0]), cut_along(target.holds[0])
    return any(after.get(axis, dim) != dim for axis, dim in before.items()) or before.keys() != after.keys()
