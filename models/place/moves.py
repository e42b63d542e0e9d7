"""Going from prefill to decode and back: where weights and cache lie, and what re-placing them takes.

A matrix goes from one mesh to another along x, then along y (WaferLLM, OSDI'25, section 4). Where the phases hold the
heads in different groups, it goes along x to the columns that prefill holds them on. A matrix that the phases place the
other way round is then transposed. A matrix that prefill multiplies by is skewed. Both meshes are taken to share a
corner. A matrix too large to be moved beside itself goes in slices, which changes rounds but no byte. Each step is a
schedule that runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
import torch

from wafer_triton.cost.constants import constants
from wafer_triton.cost.price import Cost, Tally
from wafer_triton.count.account import Account
from wafer_triton.count.traffic import WORD_BYTES
from wafer_triton.emulate.executor import Executor
from wafer_triton.mesh import Mesh
from wafer_triton.models.place import expert_regions
from wafer_triton.models.place.cuts import MATRICES, TURNED, PlacedWeights, Tiles, prefill_tiles, sources
from wafer_triton.models.place.regions import ENDS, Placement
from wafer_triton.models.place.transfers import blocks_of, grid, moved, sides, skewed_schedule, sliced, turned_schedule
from wafer_triton.models.run.prefill import Chunk
from wafer_triton.schedule.block import Block
from wafer_triton.schedule.heads import HeadGroups
from wafer_triton.schedule.kv_cache import KvCache
from wafer_triton.schedule.rounds import Index

HEADS = {"wqkv": "qkv", "bqkv": "qkv", "wo": "q", "qk_norm": "qk"}  # the heads that buffers hold along x


def _heads(block: Block, which: str) -> int:
    """The heads of a core of the kinds that are asked for."""
    return sum(block.query_heads if kind == "q" else block.kv_heads for kind in which)


@lru_cache(maxsize=64)
def _pairs(here: HeadGroups, there: HeadGroups, which: str) -> tuple[Index, Index]:
    """[units] each: the columns that hold each pair of each head of some kinds in two layouts, in the order of `here`.

    A key-value head that one of them holds several times comes to, or from, each copy.
    """
    units = []
    for kind in which:
        groups = [_groups_of(layout, kind) for layout in (here, there)]
        for mine, others in zip(*groups, strict=True):
            most = max(len(mine), len(others))
            for copy in range(most):
                ends = mine[copy * len(mine) // most], others[copy * len(others) // most]
                units.append([_columns_of(layout, group) for layout, group in zip((here, there), ends, strict=True)])
    source, target = (np.concatenate(columns) for columns in zip(*units, strict=True))
    order = np.lexsort((target, source))
    return source[order], target[order]


def _groups_of(layout: HeadGroups, kind: str) -> list[Index]:
    """Of each head of a kind the groups that hold it."""
    held = layout.held[kind]
    return [np.flatnonzero((held == head).any(1)) for head in range(int(held.max()) + 1)]


def _columns_of(layout: HeadGroups, group: int) -> Index:
    """[pairs of a head]: the columns that hold them in a group."""
    return group * layout.width + np.arange(layout.shape.head_dim // 2) // layout.pairs


@lru_cache(maxsize=256)
def matrix(name: str, decode: Block, prefill: Block, kind: str = "ffn") -> tuple[Tally, ...]:
    """The tally of every step that takes a buffer of weights from decode's place to prefill's, or back.

    `kind` is that of the block after attention, whose weights have the same names in every kind.
    """
    e = decode.shape.experts if kind == "experts" else None
    if name in ("wgu", "wdown") and e is not None and prefill.expert_regions is not None:
        return tuple(expert_regions.matrix(name, decode, prefill))
    here, there, c = decode.mesh, prefill.mesh, decode.shape
    down = 1 if name in ("bqkv", "qk_norm") else c.hidden_size
    # along x the columns of every unit; for every position along y a unit's elements, and those of a core in prefill
    columns, unit, held = None, 1, 1
    if name in HEADS:
        columns, unit = _pairs(decode.layout, prefill.layout, HEADS[name]), 2
        held = prefill.pairs * 2 * _heads(prefill, HEADS[name])
    elif name == "router":
        held = e.logits if e is not None else 1
    elif name.endswith(".shared") and e is not None:  # in decode several experts of the common width
        lies = blocks_of(e.width, here.cols)[np.arange(e.shared_width) % e.width]
        columns, unit = (lies, blocks_of(e.shared_width, there.shape[1])), 2 if name == "wgu.shared" else 1
        held = prefill.share(e.shared_width, "x") * unit
    elif name != "norm":
        width, unit = (c.intermediate_size, 1) if e is None else (e.width, e.tiles)
        columns = blocks_of(width, here.cols), blocks_of(width, there.shape[1])
        unit *= 2 if name == "wgu" else 1
        held = prefill.share(width, "x") * unit
    (rows, cols), (f_rows, f_cols), steps = sides(here, there), there.fold, []
    apart = here.shape != there.shape
    anew = apart or (name in HEADS and decode.layout != prefill.layout) or name.endswith(".shared")
    if columns is not None and anew:
        own = grid(here, here.rows, cols, (1, f_cols))
        steps.append(moved(own, "x", columns[0] * f_cols, columns[1], -(-down // here.rows) * unit, decode.dtype))
    if down > 1 and apart:
        lines = blocks_of(down, here.rows) * f_rows, blocks_of(down, there.shape[0])
        steps.append(moved(grid(here, rows, there.cols, there.fold), "y", *lines, held, decode.dtype))
    numel = -(-down // there.shape[0]) * held
    if name.split(".")[0] in TURNED:
        steps.append(sliced(numel, lambda part: turned_schedule(there, part, decode.dtype)))
    if name.split(".")[0] in MATRICES:
        steps.append(sliced(numel, lambda part: skewed_schedule(there, part, decode.dtype)))
    return tuple(steps)


def all_weights(decode: Block, prefill: Block) -> Tally:
    """The tally of moving the weights of all layers from one phase's place to the other's."""
    c = decode.shape
    names = {
        "attention": ["norm", "wqkv", "wo"] + ["bqkv"] * c.qkv_bias + ["qk_norm"] * c.qk_norm,
        "ffn": ["norm", "wgu", "wdown"],
        "experts": ["norm", "router", "wgu", "wdown"],
    }
    if prefill.expert_regions is not None and c.experts is not None and c.experts.shared:
        names["experts"] += ["wgu.shared", "wdown.shared"]
    return sum(
        (step * layers for kind, layers in c.layers_of.items() for name in names[kind]
         for step in matrix(name, decode, prefill, kind)),
        Tally(),
    )  # fmt: skip


def keys_and_values(decode: Block, prefill: Block, source: Index, target: Index) -> Tally:
    """The tally of moving a prompt's keys and values from rows `source` of prefill to rows `target` of decode."""
    here, there = prefill.mesh, decode.mesh
    (rows, cols), (f_rows, f_cols) = sides(here, there), here.fold
    steps = []
    if decode.layout != prefill.layout:
        columns, placed = _pairs(decode.layout, prefill.layout, "k")
        held = 2 * int(np.bincount(source).max())
        own = grid(here, here.rows, cols, here.fold)
        steps.append(moved(own, "x", placed, columns * f_cols, held, decode.dtype))
    if (source != target * f_rows).any():
        own, held = grid(here, rows, there.cols, (f_rows, 1)), decode.kv_heads * decode.head
        steps.append(moved(own, "y", source, target * f_rows, held, decode.dtype))
    return sum(steps, Tally()) * (2 * decode.shape.num_hidden_layers)


def hand_over(source: Mesh, target: Mesh, size: int) -> Tally:
    """The tally of `size` bytes a core going from a region to another, every core to its counterpart.

    Along x, then along y. The tiles of a line of cores follow one another over the links in between, so the busiest
    carries as many as there are cores on the line, or hops. It is priced as circuits are (see `cost.price`).
    """
    c, words = constants(source.device), -(-size // WORD_BYTES)
    cores, total = min(source.cores, target.cores), Tally()
    ways = zip(
        source.origin, target.origin, (min(source.rows, target.rows), min(source.cols, target.cols)), strict=True
    )
    for here, there, along in ways:
        hops = abs(here - there)
        if hops:
            crowd = min(along, hops)
            link_cycles = crowd * words * c.word_cycles
            cycles = c.stage_cycles + max(link_cycles, words * c.word_cycles + hops * c.hop_cycles)
            link_bytes = cores * size * hops
            counted = Account(1, 1, hops, cores, link_bytes, crowd * size, crowd * size, crowd)
            total += Tally(counted, Cost(cycles, 0.0, link_cycles, 1, 1, hops, link_bytes))
    return total


def hand_overs(regions: Sequence[Mesh], size: int, tied: bool) -> Tally:
    """The tally of an activation's way through all regions, `size` bytes a core; every core sends to its counterpart.

    In a `tied` model it comes from the embedding in the last region, which lies there with the head.
    """
    meshes = [regions[-1], *regions] if tied else regions
    return sum((hand_over(source, target, size) for source, target in pairwise(meshes)), Tally())


class Phases:
    """The way that a placed model's weights lie: for prefill at first, then for the phase that runs."""

    def __init__(self, placement: Placement, weights: PlacedWeights, executor: Executor) -> None:
        self.placement, self.weights, self.executor = placement, weights, executor
        self.phase = "prefill"
        self._kept: dict[tuple[int, str], Tiles] = {}

    def forget(self) -> None:
        """Drop what was cut of the weights, which are others now."""
        self._kept = {}

    def fill(self, layer: int, kind: str, memory: Tiles) -> torch.Tensor | None:
        """Put a layer's tiles, as prefill places them, into memory of its programs; return its bias, if it has one.

        On a square mesh prefill's tiles are decode's on other cores. On another grid, or where the phases hold the
        heads in different groups, they are cut once and kept.
        """
        (decode, prefill), mesh = (self.placement.decode, self.placement.prefill), self.placement.prefill.mesh
        alike = kind != "attention" or decode.layout == prefill.layout
        alike &= kind != "experts" or prefill.expert_regions is None
        if decode.mesh.shape == mesh.shape and alike:
            tiles = self.weights.layers[layer][kind]
            for name, target in memory.items():
                self.executor.take(mesh, tiles[name].flatten(2), sources(mesh)[name], target)
            bias = tiles.get("bqkv")
            return None if bias is None else self.executor.together(decode.mesh, bias)
        if (layer, kind) not in self._kept:
            self._kept[layer, kind] = prefill_tiles(self.weights, layer, prefill, kind)
            if kind == "experts" and prefill.expert_regions is not None:
                self._kept[layer, kind] |= expert_regions.region_tiles(self.weights, layer, prefill)
        for name, target in memory.items():
            target.copy_(self._kept[layer, kind][name][self.executor.rectangle(mesh)].reshape(target.shape))
        return self._kept[layer, kind].get("bqkv")

    def enter(self, phase: str) -> bool:
        """Let all weights lie in place for "prefill" or "decode"; whether they had to move."""
        moved, self.phase = phase != self.phase, phase
        return moved

    def move_weights(self) -> Tally:
        """The tally of bringing all weights from one phase's place to the other's."""
        return all_weights(self.placement.decode, self.placement.prefill) + self._between_regions

    def move_cache(self, parts: Sequence[Chunk], cache: KvCache) -> Tally:
        """The tally of bringing a prompt's keys and values from where prefill left them into the cache of decode."""
        rows = torch.cat([(part.position >= 0).nonzero()[:, 0] for part in parts])
        order = torch.cat([part.position[part.position >= 0] for part in parts]).argsort()
        source = rows[order].numpy()
        return keys_and_values(self.placement.decode, self.placement.prefill, source, cache.row_of(len(source)))

    @cached_property
    def _between_regions(self) -> Tally:
        """The tally of the weights' way between the regions of the two phases, where these are not the same."""
        homes = {name: region for region in self.placement.prefill_regions for name in region.blocks}
        total = Tally()
        for region in self.placement.regions:
            held = sum(size for name, size in region.sram_by_buffer.items() if name.startswith("w"))
            for name in region.blocks:
                if name not in ENDS:  # which stay where they are
                    total += hand_over(region.mesh, homes[name].mesh, held // len(region.blocks))
        return total
