"""Padding: the multiply-adds of a mesh divided by the model's, above 1 where tiles are filled up to equal size.

A width that is cut over P mesh lines is rounded up on each line. Of 4,096 over 660 rows each takes 7, and 586 rows hold
all.
"""

from __future__ import annotations

from wafer_triton.cost import layers
from wafer_triton.decoder.block import Block


def decode_ratio(block: Block, context: int) -> float:
    """Return the padding of all layers for one token of decode, with `context` tokens in the cache."""
    return _macs(block, layers.decode_sub_layers(block, context)) / _all_layers(block, block.shape.decode_macs(context))


def prefill_ratio(block: Block, tokens: int, at_once: int) -> float:
    """Return the padding of all layers for a prompt of `tokens`, in chunks of `at_once` tokens a mesh row.

    The model's multiply-adds include all products of queries and keys, masked or not.
    """
    rows = -(-tokens // block.mesh.shape[0])  # tokens of a mesh row
    model_macs = tokens * _all_layers(block, block.shape.decode_macs(tokens))
    return _macs(block, layers.prefill_sub_layers(block, rows, at_once)) / model_macs


def _all_layers(block: Block, counts: dict[str, int]) -> int:
    """Return the sum over all layers of a count that is given for each kind of block."""
    return sum(count * block.shape.layers_of[kind] for kind, count in counts.items())


def _macs(block: Block, sub_layers: layers.KindsAndSubLayers) -> int:
    """Return the multiply-adds of all layers on the whole mesh."""
    phases = layers.phases_by_kind(block, sub_layers)
    on_core = {kind: sum(phase.macs * phase.times for phase in each) for kind, each in phases.items()}
    return block.mesh.cores * _all_layers(block, on_core)
