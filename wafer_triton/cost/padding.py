"""Padding: numbers that a mesh computes, and keeps in decode, beyond the model's own, as tiles are whole.

A width that is cut over P lines is rounded up on each: 4,096 over 660 rows are 7 a row, of which 586 rows hold all.
Trimming takes only the part of a mesh that holds more than padding. The other cores stay idle: they are not part of the
schedule's mesh.
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
    """Multiply-adds of one token, and resident bytes, of a block on its mesh and of the model itself."""

    macs: int
    model_macs: int
    bytes: int
    model_bytes: int

    @property
    def ratio(self) -> float:
        """Multiply-adds of the mesh over the model's."""
        return self.macs / self.model_macs


def padding(block: Block, context: int) -> dict[str, Padding]:
    """Return the padding of each kind of block, of layers whose cache holds `context` tokens.

    An element on many cores, such as a norm's weight on all columns, counts on each. Repeated keys and values count on
    each core, too, and so do free slots of the cache.
    """
    macs, model = _decode_macs(block, context), block.shape.decode_macs(context)
    needs = _decode_stays(block)
    held, cached = block.shape.decode_elements(0), block.shape.decode_elements(context)
    own = {
        kind: number * BYTES[block.stored] + (cached[kind] - number) * BYTES[block.dtype]
        for kind, number in held.items()
    }
    return {kind: Padding(macs[kind], model[kind], needs[kind], own[kind]) for kind in model}


def of_layer(block: Block, context: int) -> float:
    """Return multiply-adds of a layer on the mesh over the model's."""
    kinds = padding(block, context)
    return _of_all(block, {kind: each.macs for kind, each in kinds.items()}) / _of_all(
        block, {kind: each.model_macs for kind, each in kinds.items()}
    )


def of_prefill(block: Block, tokens: int, at_once: int) -> float:
    """Return multiply-adds of a layer on the mesh over the model's, for a prompt in chunks of `at_once` tokens a row.

    The model's multiply-adds include all products of queries and keys, masked or not.
    """
    rows = -(-tokens // block.mesh.shape[0])
    own = tokens * _of_all(block, block.shape.decode_macs(tokens))
    return _of_all(block, _prefill_macs(block, rows, at_once)) / own


def _of_all(block: Block, numbers: dict[str, int]) -> int:
    """Return the sum over all layers of numbers that are given by kind of block."""
    return sum(number * block.shape.layers_of[kind] for kind, number in numbers.items())


def trimmed_decode(shape: DecoderShape, mesh: Mesh, context: int) -> Mesh:
    """Return the part of a mesh with the fewest rows on which no tile of decode is larger than on all rows."""
    rows = mesh.rows
    return replace(mesh, rows=max(-(-size // -(-size // rows)) for size in (shape.hidden_size, context)))


def trimmed_prefill(
    on: Callable[[Mesh], Block], mesh: Mesh, tokens: int, c: Constants, count: int | None = None
) -> Block:
    """Return the block on the square part of a mesh with the fewest multiply-adds and no more cycles than the whole.

    `on` makes the block with one head group on a mesh. Cycles count the products of `tokens` tokens; `count` is as
    in `layers.prefill_head_group_choices`. A mesh that is folded to a square is not trimmed.
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


def check_trim(trim: object, program: str = "full") -> None:
    """Raise ShapeError unless `trim` is False, or True for a program other than paper-benchmark."""
    if trim not in (True, False):
        raise ShapeError(f"trim = {trim!r} must be true or false")
    if trim and layers.is_paper_benchmark(program):
        raise ShapeError("trim = True: the paper-benchmark program ran on all cores of its mesh; give program 'full'")


def _decode_stays(block: layers.Block) -> dict[str, int]:
    """Return resident bytes on the whole mesh for each kind of block of decode layers: weights and cache."""
    cores = block.mesh.rows * block.mesh.cols
    return {kind: sum(decode_need(block, kind).resident.values()) * cores for kind in block.shape.layers_of}


def _decode_macs(block: layers.Block, context: int) -> dict[str, int]:
    """Return multiply-adds on the whole mesh for one token, by kind of block of decode layers."""
    return _macs(block, layers.decode_phases(block, context))


def _prefill_macs(block: layers.Block, tokens: int, at_once: int | None = None) -> dict[str, int]:
    """Return multiply-adds on the whole mesh for a prompt, by kind of block of prefill layers; see `prefill_steps`."""
    return _macs(block, layers.prefill_phases(block, tokens, at_once))


def _macs(block: layers.Block, phases_: layers.PhasesOf) -> dict[str, int]:
    return {kind: block.mesh.cores * sum(one.macs * one.times for one in each) for kind, each in phases_.items()}
