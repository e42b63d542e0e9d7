"""Padding: the multiply-adds of a mesh divided by the model's, above 1 where tiles are filled up to equal size.

A width that is cut over P mesh lines is rounded up on each line. Of 4,096 over 660 rows each takes 7, and 586 rows hold
all. Trimming takes only the part of a mesh that holds more than padding. The other cores stay idle: they are not part
of the schedule's mesh.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from wafer_triton.cost import layers
from wafer_triton.cost.constants import Constants
from wafer_triton.cost.phases import prefill_products
from wafer_triton.cost.price import sum_cycles
from wafer_triton.device.dtype import BYTES
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import ShapeError
from wafer_triton.place.need import decode_need
from wafer_triton.schedule import prefill
from wafer_triton.schedule.block import Block
from wafer_triton.shape.decoder import DecoderShape


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


def trimmed_decode(shape: DecoderShape, mesh: Mesh, context: int) -> Mesh:
    """Return a mesh cut to the fewest rows, such that no tile of decode is larger than on all rows."""
    rows = mesh.rows
    return replace(mesh, rows=max(-(-size // -(-size // rows)) for size in (shape.hidden_size, context)))


def trimmed_prefill(
    on: Callable[[Mesh], Block], mesh: Mesh, tokens: int, c: Constants, count: int | None = None
) -> Block:
    """Return the block on the square part of a mesh with the fewest multiply-adds that takes no more cycles.

    `on` makes the block with one head group on a mesh. Cycles are of the products of `tokens` tokens, compared with
    the whole mesh; `count` is as in `layers.prefill_head_group_choices`. A folded mesh is not trimmed.
    """
    whole = _choices(on(mesh), tokens, c, count)
    limit = min(cycles for _, cycles, _ in whole)
    parts = [replace(mesh, rows=side, cols=side) for side in _sides(on(mesh), tokens)] if mesh.fold == (1, 1) else []
    every = [choice for part in parts for choice in _choices(on(part), tokens, c, count)] + whole
    return min((choice for choice in every if choice[1] <= limit), key=lambda choice: choice[:2])[2]


def _choices(block: Block, tokens: int, c: Constants, count: int | None) -> list[tuple[int, float, Block]]:
    """Return the multiply-adds, cycles of products, and block of a layer for each number of head groups."""
    side, found = block.mesh.shape[0], []
    for choice in prefill.head_group_blocks(block, count):
        products = prefill_products(choice, -(-tokens // side))
        macs = sum(product.m * product.k * product.n * product.heads for product in products)
        found.append((macs * side**3, sum_cycles(products, c) * side, choice))
    return found


def _sides(block: Block, tokens: int) -> set[int]:
    """Return the smallest side of a square for each size of its tiles, up to the block's."""
    shape, most = block.shape, block.mesh.rows
    sides = {
        -(-size // each)
        for size in (
            tokens,
            shape.hidden_size,
            shape.intermediate_size if shape.experts is None else shape.experts.width,
        )
        for each in range(-(-size // most), size + 1)
    }
    pairs = shape.head_dim // 2
    return sides | {
        side
        for count in range(1, min(shape.num_attention_heads, most) + 1)
        for each in range(1, pairs + 1)
        if (side := count * -(-pairs // each)) <= most
    }


def check_trim(trim: bool, program: str) -> None:
    """Raise ShapeError for `trim` with the paper-benchmark program."""
    if trim and layers.is_paper_benchmark(program):
        raise ShapeError("trim = True: the paper-benchmark program ran on all cores of its mesh; give program 'full'")


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
