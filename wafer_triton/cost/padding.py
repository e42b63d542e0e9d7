"""Padding: what a mesh computes, and what it keeps in decode, that is not the model's, as tiles are whole."""

from __future__ import annotations

from dataclasses import dataclass

from wafer_triton.cost import layers
from wafer_triton.dtype import BYTES
from wafer_triton.place.need import decode_need
from wafer_triton.schedule.block import Block


@dataclass(frozen=True)
class Padding:
    """Multiply-adds of one token, and bytes that stay on the cores, of a block on its mesh and of the model's own."""

    macs: int
    model_macs: int
    bytes: int
    model_bytes: int

    @property
    def ratio(self) -> float:
        """Multiply-adds of the mesh over those of the model."""
        return self.macs / self.model_macs


def padding(block: Block, context: int) -> dict[str, Padding]:
    """The padding of each kind of block, of layers whose cache holds `context` tokens.

    A number that lies on many cores, such as a norm's weight on all columns, counts on each. So do keys and values that
    are repeated, and free slots of the cache.
    """
    macs, model = _decode_macs(block, context), block.shape.decode_macs(context)
    needs = _decode_stays(block)
    own = {kind: numbers * BYTES[block.dtype] for kind, numbers in block.shape.decode_elements(context).items()}
    return {kind: Padding(macs[kind], model[kind], needs[kind], own[kind]) for kind in model}


def of_layer(block: Block, context: int) -> float:
    """Multiply-adds of a layer on the mesh over those of the model."""
    kinds = padding(block, context)
    return _of_all(block, {kind: each.macs for kind, each in kinds.items()}) / _of_all(
        block, {kind: each.model_macs for kind, each in kinds.items()}
    )


def of_prefill(block: Block, tokens: int, at_once: int) -> float:
    """Multiply-adds of a layer on the mesh over those of the model, for a prompt of which a row takes some at once.

    The model's are all products of queries and keys, masked or not.
    """
    rows = -(-tokens // block.mesh.shape[0])
    own = tokens * _of_all(block, block.shape.decode_macs(tokens))
    return _of_all(block, _prefill_macs(block, rows, at_once)) / own


def _of_all(block: Block, numbers: dict[str, int]) -> int:
    """Numbers of kinds of block, of all layers that have them."""
    return sum(number * block.shape.layers_of[kind] for kind, number in numbers.items())


def _decode_stays(block: layers.Block) -> dict[str, int]:
    """Bytes on the whole mesh that stay for each kind of block of decode layers: weights and cache."""
    cores = block.mesh.rows * block.mesh.cols
    return {kind: sum(decode_need(block, kind).stays.values()) * cores for kind in block.shape.layers_of}


def _decode_macs(block: layers.Block, context: int) -> dict[str, int]:
    """Multiply-adds on the whole mesh of one token through each kind of block of decode layers."""
    return _macs(block, layers.decode_phases(block, context))


def _prefill_macs(block: layers.Block, tokens: int, at_once: int | None = None) -> dict[str, int]:
    """Multiply-adds on the whole mesh of a prompt through each kind of block of prefill layers, as `prefill_steps`."""
    return _macs(block, layers.prefill_phases(block, tokens, at_once))


def _macs(block: layers.Block, phases_: layers.PhasesOf) -> dict[str, int]:
    return {kind: block.mesh.cores * sum(one.macs * one.times for one in each) for kind, each in phases_.items()}
