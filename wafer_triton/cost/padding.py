"""Padding: the multiply-adds of a mesh divided by the model's, above 1 where tiles are filled up to equal size.

A width that is cut over P mesh lines is rounded up on each line. Of 4,096 over 660 rows each takes 7, and 586 rows hold
all.
"""

from __future__ import annotations

from dataclasses import dataclass

from wafer_triton.cost import layers
from wafer_triton.device.dtype import BYTES
from wafer_triton.place.need import decode_need
from wafer_triton.schedule.block import Block


@dataclass(frozen=True)
class Padding:
    """Multiply-adds of one token, and resident bytes: of a kind of block on its whole mesh, and of the model itself."""

    macs: int
    model_macs: int
    bytes: int
    model_bytes: int

    @property
    def ratio(self) -> float:
        """Multiply-adds of the mesh divided by the model's."""
        return self.macs / self.model_macs


def padding(block: Block, context: int) -> dict[str, Padding]:
    """Return the padding of decode for each kind of block, with `context` tokens in the cache.

    An element on many cores, such as a norm's weight on all columns, counts on each. Repeated keys and values count on
    each core, too, and so do free slots of the cache.
    """
    macs, model_macs = _decode_macs(block, context), block.shape.decode_macs(context)
    weights, elements = block.shape.decode_elements(0), block.shape.decode_elements(context)
    resident_bytes = _resident_bytes(block)
    model_bytes = {
        kind: count * BYTES[block.stored] + (elements[kind] - count) * BYTES[block.dtype]
        for kind, count in weights.items()
    }
    return {kind: Padding(macs[kind], model_macs[kind], resident_bytes[kind], model_bytes[kind]) for kind in model_macs}


def decode_ratio(block: Block, context: int) -> float:
    """Return the padding of all layers for one token of decode, with `context` tokens in the cache."""
    model_macs = block.shape.decode_macs(context)
    return _all_layers(block, _decode_macs(block, context)) / _all_layers(block, model_macs)


def prefill_ratio(block: Block, tokens: int, at_once: int) -> float:
    """Return the padding of all layers for a prompt of `tokens`, in chunks of `at_once` tokens a mesh row.

    The model's multiply-adds include all products of queries and keys, masked or not.
    """
    rows = -(-tokens // block.mesh.shape[0])  # tokens of a mesh row
    model_macs = tokens * _all_layers(block, block.shape.decode_macs(tokens))
    return _all_layers(block, _prefill_macs(block, rows, at_once)) / model_macs


def _all_layers(block: Block, counts: dict[str, int]) -> int:
    """Return the sum over all layers of a count that is given for each kind of block."""
    return sum(count * block.shape.layers_of[kind] for kind, count in counts.items())


def _resident_bytes(block: layers.Block) -> dict[str, int]:
    """Return the resident bytes of decode on the whole mesh, weights and cache, for each kind of block."""
    cores = block.mesh.rows * block.mesh.cols
    return {kind: sum(decode_need(block, kind).resident.values()) * cores for kind in block.shape.layers_of}


def _decode_macs(block: layers.Block, context: int) -> dict[str, int]:
    """Return the multiply-adds on the whole mesh for one token of decode, for each kind of block."""
    return _macs(block, layers.decode_phases(block, context))


def _prefill_macs(block: layers.Block, tokens: int, at_once: int | None = None) -> dict[str, int]:
    """Return the multiply-adds on the whole mesh for a prompt, for each kind of block; see `layers.prefill_steps`."""
    return _macs(block, layers.prefill_phases(block, tokens, at_once))


def _macs(block: layers.Block, phases_: layers.PhasesOf) -> dict[str, int]:
    return {kind: block.mesh.cores * sum(one.macs * one.times for one in each) for kind, each in phases_.items()}
