"""Experts in regions of cores for prefill: their tiles, and what bringing them there from decode's place takes.

In decode every expert lies over the whole mesh, columns of it on columns of cores. It goes along x to the columns of
its region, then along y to the rows. Experts whose regions lie side by side go together. The down projection, which
decode places the other way round, goes to the region across the diagonal first, as it is transposed there.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import torch

from wafer_triton.cost.price import Tally
from wafer_triton.layout import scatter
from wafer_triton.models.experts import names_of
from wafer_triton.models.place.cuts import Tiles, Weights, skewed
from wafer_triton.models.place.transfers import blocks_of, grid, moved, sides, skewed_schedule, sliced, turned_schedule
from wafer_triton.schedule.block import Block


def region_tiles(weights: Weights, layer: int, block: Block) -> Tiles:
    """The tiles [rows, cols, experts of a region, ...] of a layer's experts and their copies."""
    e, regions, mesh, names = block.shape.experts, block.expert_regions, block.mesh, names_of(block.shape)
    assert e is not None and regions is not None, "a block whose experts have regions"
    size, held = mesh.shape[0] // regions.side, regions.held(e)
    square = replace(mesh, rows=size, cols=size, origin=(0, 0), fold=(1, 1))
    width = mesh.shape[0] * block.share(block.shape.hidden_size, "x")

    def tiles(name: str, pattern: str, dim: int) -> torch.Tensor:
        """Tiles on a region, whose columns hold whole columns of the mesh."""
        weight = weights[f"model.layers.{layer}.{name}"]
        padding = [0, 0] * (weight.ndim - 1 - dim) + [0, width - weight.shape[dim]]
        return scatter(torch.nn.functional.pad(weight, padding), square, pattern).tiles

    whole: Tiles = {}
    for region, living in enumerate(regions.living(e)):
        row, col = (number * size for number in divmod(region, regions.side))
        for place, expert in enumerate(living):
            *both, last = names.expert(expert)
            own = {"wgu": torch.cat([tiles(name, "(x f) (y d) -> d f", 1) for name in both], -1)}
            own["wdown"] = tiles(last, "(x d) (y f) -> f d", 0)
            for name, tile in own.items():
                shape = (*mesh.shape, held, *tile.shape[2:])
                whole.setdefault(name, tile.new_zeros(shape))[row : row + size, col : col + size, place] = tile
    return {name: skewed(name, tile, mesh, size) for name, tile in whole.items()}


def matrix(name: str, decode: Block, prefill: Block) -> list[Tally]:
    """The tally of every step that takes all experts' weights of a kind, "wgu" or "wdown", to their regions."""
    e, regions = decode.shape.experts, prefill.expert_regions
    assert e is not None and regions is not None, "a block whose experts have regions"
    here, there = decode.mesh, prefill.mesh
    (rows, cols), (f_rows, f_cols) = sides(here, there), there.fold
    size, held = there.shape[0] // regions.side, regions.held(e)
    f, share = -(-e.width // size), prefill.share(decode.shape.hidden_size, "x")
    parts = 2 if name == "wgu" else 1

    def to_regions(source: np.ndarray, within: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Units on their cores in decode, and on those of all regions side by side."""
        starts = np.arange(regions.side)[:, None] * size
        return np.tile(source, regions.side), (starts + within).reshape(-1)

    down, wide = np.arange(decode.shape.hidden_size), np.arange(e.width)
    along_x = to_regions(blocks_of(e.width, here.cols) * f_cols, wide // f)
    along_y = to_regions(blocks_of(len(down), here.rows) * f_rows, down // (regions.side * share))
    tile = -(-len(down) // here.rows) * parts
    first = moved(grid(here, here.rows, cols, (1, f_cols)), "x", *along_x, tile, decode.dtype)
    second = moved(grid(here, rows, there.cols, there.fold), "y", *along_y, f * parts, decode.dtype)
    # one expert of all regions on a line, then the next: as many as there are lines of regions, and experts in each
    steps = [first * (regions.side * held), second * held]
    numel = held * f * parts * regions.side * share
    if name == "wdown":
        steps.append(sliced(numel, lambda part: turned_schedule(there, part, decode.dtype)))
    return [*steps, sliced(numel, partial(skewed_schedule, there, dtype=decode.dtype, region=size))]
