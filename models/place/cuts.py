"""A decoder's parameters cut into the tiles of cores, and put together again.

Buffers name their parameters and the partition specs of these (see `decoder.weights`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import torch

from wafer_triton.algorithms.ring import alignment_sources
from wafer_triton.decoder.block import Block
from wafer_triton.device.dtype import STORED
from wafer_triton.device.layout import MESH_AXES, MeshTensor, dimensions, scatter
from wafer_triton.device.mesh import Mesh
from wafer_triton.device.modes import check_eager
from wafer_triton.models.checkpoint.weights import NamedWeights, StoredWeights
from wafer_triton.models.place.storage import converted, magnitude
from wafer_triton.place.need import needs_transpose, param_shapes, tile_shape, weights_of
from wafer_triton.schedule.rounds import Buffer, Index, Parameter

Tiles = dict[str, torch.Tensor]
Weights = Mapping[str, torch.Tensor]
Part = tuple[slice, slice]  # rows and columns of cores
LARGE = 2**20  # elements of a parameter that are read from a file at once


def tiles_of(cut: Parameter, weight: torch.Tensor, mesh: Mesh) -> torch.Tensor:
    """Return the tiles [rows, cols, ..., last] of a weight."""
    whole = weight if cut.rows is None else picked(weight, cut.rows, cut.dim)
    return scatter(whole, mesh, cut.pattern, **cut.sizes).tiles


def each(
    cut: Parameter, weights: Weights, name: str, mesh: Mesh, here: Part
) -> Iterator[tuple[Part, torch.Tensor]]:  # fmt: skip
    """Yield tiles of the cores `here`, each with its rows and columns of `here`.

    A large parameter in a file is read in bands of cores, so that the whole is never in memory.
    """
    bands, axes = 1, _axes(cut)
    if isinstance(weights, StoredWeights) and all(axes):
        bands = -(-prod(weights.shapes[name]) // LARGE)
    number = 0 if axes[0] == "y" else 1  # a band of cores along the first dimension is one piece of the file
    begin, length = here[number].start, here[number].stop - here[number].start
    for start, stop in pairwise(sorted({length * band // bands for band in range(bands + 1)})):
        part, own = [*here], [slice(None), slice(None)]
        part[number], own[number] = slice(begin + start, begin + stop), slice(start, stop)
        yield (own[0], own[1]), _read(cut, weights, name, mesh, (part[0], part[1]))


def _axes(cut: Parameter) -> list[str]:
    """Return the axis of the mesh that cuts each dimension, "" for a dimension with any other spec."""
    groups = dimensions(cut.pattern.partition("->")[0])
    return [group[0] if len(group) == 2 and group[0] in MESH_AXES else "" for group in groups]


def _read(cut: Parameter, weights: Weights, name: str, mesh: Mesh, part: Part) -> torch.Tensor:
    """Return the tiles of some rows and columns of cores; nothing else is read from a checkpoint's file."""
    axes = _axes(cut)
    if tuple(here.stop - here.start for here in part) == mesh.shape or not all(axes):
        return tiles_of(cut, weights[name], mesh)[part]
    sides, index, held = dict(zip("yx", part, strict=True)), list[slice](), list[int]()
    shape = weights.shapes[name] if isinstance(weights, StoredWeights) else weights[name].shape
    for dim, (size, axis) in enumerate(zip(shape, axes, strict=True)):
        here, rows = sides[axis], cut.rows if dim == cut.dim else None
        tile = -(-(size if rows is None else rows.size) // mesh.length(axis))
        held.append(tile * (here.stop - here.start))
        if rows is None:
            index.append(slice(min(here.start * tile, size), min(here.stop * tile, size)))
        else:
            own = rows.reshape(-1)[here.start * tile : here.stop * tile]
            known = own[own >= 0] if (own >= 0).any() else np.zeros(1, np.int64)
            first = int(known.min())
            index.append(slice(first, int(known.max()) + 1))
    numbers = tuple(index)
    weight = weights.part(name, numbers) if isinstance(weights, StoredWeights) else weights[name][numbers]
    if cut.rows is not None:
        weight = picked(weight, np.where(own < 0, -1, own - first), cut.dim)
    whole = weight.new_zeros(held)
    whole[tuple(map(slice, weight.shape))] = weight
    rows, cols = (here.stop - here.start for here in part)
    own_mesh = replace(mesh, rows=rows, cols=cols, origin=(0, 0), fold=(1, 1))
    return scatter(whole, own_mesh, cut.pattern).tiles


def gather(cut: Parameter, tiles: torch.Tensor, mesh: Mesh) -> torch.Tensor:
    """Return the weight from its tiles."""
    whole = MeshTensor(mesh, tiles, cut.pattern, cut.cut_shape, cut.sizes).gather()
    return whole if cut.rows is None else picked(whole, first_places(cut.rows), cut.dim)


def picked(values: torch.Tensor, rows: Index, dim: int) -> torch.Tensor:
    """Return the values at `rows` along a dimension, one after the other; zeros where a row is -1, for padding."""
    return picker(rows, dim, values.device)(values)


def picker(rows: Index, dim: int, device: torch.device | str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return `picked` for values on a device, whose tables go there once."""
    flat = rows.reshape(-1)
    index = torch.from_numpy(flat.clip(0)).to(device)
    padding = torch.from_numpy(flat < 0).to(device) if (flat < 0).any() else None

    def pick(values: torch.Tensor) -> torch.Tensor:
        taken = values.index_select(dim, index)
        return taken if padding is None else taken.masked_fill_(padding.view(-1, *[1] * (values.ndim - 1 - dim)), 0)

    return pick


def first_places(rows: Index) -> Index:
    """Return where each row, in order, comes first among `rows`: the values `picked` there are its argument again."""
    number, first = np.unique(rows, return_index=True)
    return first[number >= 0]


def is_repeated(buffer: Buffer) -> bool:
    """Return whether a weight's values are repeated for every row of its tile."""
    return any(cut.repeated for cut in buffer.holds)


def is_in_regions(block: Block, buffer: Buffer) -> bool:
    """Return whether a buffer of prefill holds experts that live in regions of the mesh."""
    return block.expert_regions is not None and any(cut.experts is not None for cut in buffer.holds)


def held_tile(buffer: Buffer) -> tuple[int, ...]:
    """Return the shape of a weight buffer's tile for its parameters: vectors follow one another in any layout."""
    vectors = all(len(cut.shape) == 1 for cut in buffer.holds)
    return (buffer.numel,) if vectors and not is_repeated(buffer) else buffer.tile


def fill(memory: Tiles, buffers: Mapping[str, Buffer], weights: Weights, layer: int, mesh: Mesh, here: Part) -> None:
    """Put a layer's weights into the memory [rows, cols, *tile] of their buffers on the cores `here`, piece by piece.

    A bias is repeated for each sequence. A matrix of a buffer in int8 or fp8 is rounded, see `storage`.
    """
    for name, buffer in buffers.items():
        stored = buffer.dtype in STORED
        for cut in buffer.holds:
            held = part_of(memory[name], buffer, cut, mesh)
            if stored:
                every = each(cut, weights, cut.of(layer), mesh, (slice(0, mesh.shape[0]), slice(0, mesh.shape[1])))
                largest = torch.stack([magnitude(tiles) for _, tiles in every]).max()
            for cores, tiles in each(cut, weights, cut.of(layer), mesh, here):
                if stored:
                    tiles = converted(tiles, buffer.dtype, largest)
                held[cores].copy_(tiles.unsqueeze(2) if cut.repeated else tiles)


def part_of(tiles: torch.Tensor, buffer: Buffer, cut: Parameter, mesh: Mesh) -> torch.Tensor:
    """Return the part of a buffer's tiles [rows, cols, *tile] that holds one of its parameters."""
    beside = [other for other in buffer.holds if other.experts == cut.experts]
    widths = [tile_shape(other, mesh)[-1] for other in beside]
    number = beside.index(cut)
    own = tiles if cut.experts is None else tiles[:, :, slice(*cut.experts)]
    return own[..., sum(widths[:number]) : sum(widths[: number + 1])]


def prefill_tiles(weights: Weights, layer: int, block: Block, kind: str) -> Tiles:
    """Return all tiles [rows, cols, *tile] of a block in prefill's layout; a bias is given once, for one row."""
    tiles = {}
    for name, buffer in weights_of(block, kind, "prefill").items():
        if is_in_regions(block, buffer):
            tiles[name] = skewed(buffer, region_tiles(weights, layer, block, buffer), block.mesh)
            continue
        pieces: dict[Any, list[torch.Tensor]] = {}  # side by side, expert by expert
        for cut in buffer.holds:
            pieces.setdefault(cut.experts, []).append(tiles_of(cut, weights[cut.of(layer)], block.mesh))
        whole = torch.cat([torch.cat(beside, -1) for beside in pieces.values()], 2)
        tiles[name] = skewed(buffer, whole, block.mesh)
    return tiles


def region_tiles(weights: Weights, layer: int, block: Block, buffer: Buffer) -> torch.Tensor:
    """Return the tiles [rows, cols, experts of a region, ...] of a layer's experts."""
    (e, regions), mesh = block.experts_in_regions, block.mesh
    size = mesh.shape[0] // regions.side
    square = replace(mesh, rows=size, cols=size, origin=(0, 0), fold=(1, 1))
    model, width = block.shape.hidden_size, mesh.shape[0] * block.share(block.shape.hidden_size, "x")

    def tiles(cut: Parameter) -> torch.Tensor:
        """Return tiles on a region, whose columns hold whole columns of the mesh."""
        weight, dim = weights[cut.of(layer)], next(dim for dim, axis in enumerate(_axes(cut)) if axis)
        padding = [0, 0] * (weight.ndim - 1 - dim) + [0, width - model]
        return scatter(torch.nn.functional.pad(weight, padding), square, cut.pattern, **cut.sizes).tiles

    whole = weights[buffer.holds[0].of(layer)].new_zeros((*mesh.shape, *buffer.tile))
    for region, living in enumerate(regions.living(e)):
        row, col = (number * size for number in divmod(region, regions.side))
        for place, expert in enumerate(living):
            own = [tiles(cut) for cut in buffer.holds if cut.experts == (expert, expert + 1)]
            whole[row : row + size, col : col + size, place] = torch.cat(own, -1)[:, :, 0]
    return whole


def skewed(buffer: Buffer, tile: torch.Tensor, mesh: Mesh) -> torch.Tensor:
    """Return a tile as MeshGEMM's alignment would move it, in the squares that the buffer names."""
    if not buffer.skew:
        return tile
    region = None if buffer.skew == mesh.shape[0] else buffer.skew
    return tile.flatten(0, 1)[alignment_sources(mesh.shape[0], region).tolist()].view_as(tile)


@lru_cache(maxsize=8)
def sources(decode: Block, prefill: Block, kind: str, device: str) -> dict[str, tuple[str, torch.Tensor]] | None:
    """Return, by prefill's buffer, decode's buffer of the same parameters, and by core decode's core with its tile.

    The cores are a tensor on the torch `device`. None if the phases differ in meshes, head groups or buffers; then
    tiles are cut anew.
    """
    mesh, held = prefill.mesh, weights_of(decode, kind, "decode").values()
    if decode.mesh.shape != mesh.shape or (kind == "attention" and decode.layout != prefill.layout):
        return None
    cores = torch.arange(mesh.cores, device=device)
    turned = cores.view(mesh.shape).mT.reshape(-1)
    found = {}
    for name, buffer in weights_of(prefill, kind, "prefill").items():
        names = [cut.name for cut in buffer.holds]
        here = next((other for other in held if [cut.name for cut in other.holds] == names), None)
        if here is None or is_in_regions(prefill, buffer):
            return None
        source = turned if needs_transpose(here, buffer) else cores
        found[name] = here.name, source[alignment_sources(mesh.shape[0]).tolist()] if buffer.skew else source
    return found


class PlacedWeights(NamedWeights):
    """A model's parameters under Hugging Face names, put together from their tiles on access.

    `layers[i][kind]` has the tiles of a block's buffers for decode. `head` has the tiles of the head on its own mesh,
    and `embedding` the embedding's there. All are views of memory, so they follow its changes. If the model lies on
    several ranks, this rank has the parameters of its layers, and `together` gets tiles from other ranks.
    """

    def __init__(
        self, block: Block, layers: dict[int, dict[str, Tiles]], head_block: Block, head: Tiles, embedding: Tiles,
        together: Callable[[Mesh, torch.Tensor], torch.Tensor],
    ) -> None:  # fmt: skip
        self.layers, self.together = layers, together
        blocks = [(head_block, 0, {"head": head, "embedding": embedding})]
        blocks += [(block, layer, kinds) for layer, kinds in layers.items()]
        places: dict[str, tuple[torch.Tensor, Buffer, Parameter, Mesh]] = {}
        for own, layer, kinds in blocks:
            for kind, held in kinds.items():
                for name, buffer in weights_of(own, kind, "decode").items():
                    if name in held:
                        places |= {cut.of(layer): (held[name], buffer, cut, own.mesh) for cut in buffer.holds}
        self.places = {name: places[name] for name in param_shapes(block.shape) if name in places}
        self.shapes = {name: cut.shape for name, (_, _, cut, _) in self.places.items()}

    def __getitem__(self, name: str) -> torch.Tensor:
        check_eager(f"the parameter {name} of a placed model")
        tiles, buffer, cut, mesh = self.places[name]
        return gather(cut, self.together(mesh, part_of(tiles, buffer, cut, mesh)), mesh)
