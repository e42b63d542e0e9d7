"""A decoder's parameters cut into the tiles that cores hold, and put together again.

Parameters have their Hugging Face names, [out, in]. Decode places the output and down projections the other way round
than the rest, so that consecutive MeshGEMVs alternate axes. Prefill places all alike and skews them along y. Which
heads a column holds is the block's layout (see `schedule.heads`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import torch

from wafer_triton.emulate.elision import aligned
from wafer_triton.layout import MeshTensor, scatter
from wafer_triton.mesh import Mesh
from wafer_triton.models.checkpoint.weights import Checkpoint
from wafer_triton.models.config import param_shapes
from wafer_triton.models.experts import SHARED, SHARED_GATE, names_of
from wafer_triton.schedule.block import Block
from wafer_triton.schedule.rounds import Index

Tiles = dict[str, torch.Tensor]
Weights = Mapping[str, torch.Tensor]
Part = tuple[slice, slice]  # rows and columns of cores
EMBEDDING = "model.embed_tokens.weight"
PHASES = ("decode", "prefill")
LARGE = 2**20  # numbers of a parameter that are read from a file at once


@dataclass(frozen=True, eq=False)
class Cut:
    """A parameter's place in a buffer: its name within a layer and its pattern.

    With `rows` the pattern cuts what `picked` takes along a dimension: the rows that each column holds. With `experts`
    the buffer has tiles of several experts, of which these are the parameter's; `sizes` are the pattern's.
    """

    name: str
    pattern: str
    rows: Index | None = None
    dim: int = 0
    experts: slice | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)

    def tiles(self, weight: torch.Tensor, mesh: Mesh) -> torch.Tensor:
        """[rows, cols, ..., last] of a weight."""
        whole = weight if self.rows is None else picked(weight, self.rows, self.dim)
        return scatter(whole, mesh, self.pattern, **self.sizes).tiles

    def each(self, weights: Weights, name: str, mesh: Mesh, here: Part) -> Iterator[tuple[Part, torch.Tensor]]:
        """The tiles of the cores `here`, with which of them these are.

        Of a large parameter in a file one band of cores comes after another, so that the whole is never in memory.
        """
        bands, axes = 1, self._axes
        if isinstance(weights, Checkpoint) and all(axes):
            bands = -(-prod(weights.shapes[name]) // LARGE)
        number = 0 if axes[0] == "y" else 1  # a band of cores along the first dimension is one piece of the file
        begin, length = here[number].start, here[number].stop - here[number].start
        for start, stop in pairwise(sorted({length * band // bands for band in range(bands + 1)})):
            part, own = [*here], [slice(None), slice(None)]
            part[number], own[number] = slice(begin + start, begin + stop), slice(start, stop)
            yield (own[0], own[1]), self._read(weights, name, mesh, (part[0], part[1]))

    @property
    def _axes(self) -> list[str]:
        """The axis of the mesh that cuts each dimension; "" among them where a dimension is not just cut."""
        return re.findall(r"\(([yx]) \w+\)|\S+", self.pattern.partition("->")[0])

    def _read(self, weights: Weights, name: str, mesh: Mesh, part: Part) -> torch.Tensor:
        """The tiles of some rows and columns of cores, of which no other number is read from a checkpoint's file."""
        if tuple(here.stop - here.start for here in part) == mesh.shape or not all(self._axes):
            return self.tiles(weights[name], mesh)[part]
        sides, index, held = dict(zip("yx", part, strict=True)), list[slice](), list[int]()
        shape = weights.shapes[name] if isinstance(weights, Checkpoint) else weights[name].shape
        for dim, (size, axis) in enumerate(zip(shape, self._axes, strict=True)):
            here, rows = sides[axis], self.rows if dim == self.dim else None
            tile = -(-size // mesh.length(axis)) if rows is None else rows.size // mesh.length(axis)
            held.append(tile * (here.stop - here.start))
            if rows is None:
                index.append(slice(min(here.start * tile, size), min(here.stop * tile, size)))
            else:
                own = rows.reshape(-1)[here.start * tile : here.stop * tile]
                known = own[own >= 0] if (own >= 0).any() else np.zeros(1, np.int64)
                first = int(known.min())
                index.append(slice(first, int(known.max()) + 1))
        numbers = tuple(index)
        weight = weights.part(name, numbers) if isinstance(weights, Checkpoint) else weights[name][numbers]
        if self.rows is not None:
            weight = picked(weight, np.where(own < 0, -1, own - first), self.dim)
        whole = weight.new_zeros(held)
        whole[tuple(map(slice, weight.shape))] = weight
        rows, cols = (here.stop - here.start for here in part)
        own_mesh = replace(mesh, rows=rows, cols=cols, origin=(0, 0), fold=(1, 1))
        return scatter(whole, own_mesh, self.pattern).tiles

    def gather(self, tiles: torch.Tensor, mesh: Mesh, shape: tuple[int, ...]) -> torch.Tensor:
        """The weight of the given shape from its tiles."""
        if self.rows is None:
            return MeshTensor(mesh, tiles, self.pattern, shape, self.sizes).gather()
        held = (*shape[: self.dim], self.rows.size, *shape[self.dim + 1 :])
        whole = MeshTensor(mesh, tiles, self.pattern, held, self.sizes).gather()
        return unpicked(whole, self.rows, self.dim)


def picked(values: torch.Tensor, rows: Index, dim: int) -> torch.Tensor:
    """The values at `rows` along a dimension, one after the other; zeros where a row is -1, for padding."""
    flat = rows.reshape(-1)
    taken = values.index_select(dim, torch.from_numpy(flat.clip(0)).to(values.device))
    padding = flat < 0
    if not padding.any():
        return taken
    return taken.masked_fill_(torch.from_numpy(padding).to(values.device).view(-1, *[1] * (values.ndim - 1 - dim)), 0)


def unpicked(values: torch.Tensor, rows: Index, dim: int) -> torch.Tensor:
    """What `picked` was given, from what it returned; of rows that are there several times the first counts."""
    number, first = np.unique(rows, return_index=True)
    return values.index_select(dim, torch.from_numpy(first[number >= 0]).to(values.device))


EMBEDDING_CUTS = {"table": (Cut(EMBEDDING, "(x v) (y d) -> d v"),)}


def cuts(block: Block, kind: str, phase: str) -> dict[str, tuple[Cut, ...]]:
    """The buffers of an attention or feed-forward block, each with its parts, side by side in the last dimension."""
    into, out_of = ("y", "x") if phase == "decode" else ("x", "y")
    if kind == "ffn":
        up_gate = "(x f) (y d) -> d f"
        return {
            "norm": (Cut("post_attention_layernorm.weight", f"({into} d)"),),
            "wgu": (Cut("mlp.gate_proj.weight", up_gate), Cut("mlp.up_proj.weight", up_gate)),
            "wdown": (Cut("mlp.down_proj.weight", f"({into} d) ({out_of} f) -> f d"),),
        }
    if kind == "experts" and phase == "prefill" and block.expert_regions is not None:
        return outside_regions(block)
    if kind == "experts":
        return expert_cuts(block, into, out_of)
    c = block.shape
    rows = {part: block.layout.rows(part) for part in "qkv"}
    attention = {
        "norm": (Cut("input_layernorm.weight", f"({into} d)"),),
        "wqkv": tuple(Cut(f"self_attn.{part}_proj.weight", "(x n) (y d) -> d n", rows[part]) for part in rows),
        "wo": (Cut("self_attn.o_proj.weight", f"({into} d) ({out_of} n) -> n d", rows["q"], 1),),
    }
    if c.qkv_bias:
        attention["bqkv"] = tuple(Cut(f"self_attn.{part}_proj.bias", "(x n)", rows[part]) for part in rows)
    if c.qk_norm:  # of all heads, or of a head alone, repeated for all of them
        own = {part: rows[part] for part in "qk"}
        if not c.qk_norm_whole:
            own = {part: np.where(own[part] < 0, -1, own[part] % c.head_dim) for part in own}
        attention["qk_norm"] = tuple(Cut(f"self_attn.{part}_norm.weight", "(x n)", own[part]) for part in own)
    return attention


def expert_cuts(block: Block, into: str, out_of: str) -> dict[str, tuple[Cut, ...]]:
    """The buffers of a block of experts; the shared expert is the last experts, padded to whole ones."""
    e, names = block.shape.experts, names_of(block.shape)
    assert e is not None, "a block of experts is one of a model that has some"
    up, down = "(s x f) (y d) -> s d f", f"({into} d) (s {out_of} f) -> s f d"
    gates, downs = [], []
    for number in range(e.count):
        own: dict[str, Any] = {"experts": slice(number, number + 1), "sizes": {"s": 1}}
        *both, last = names.expert(number)
        gates += [Cut(name, up, **own) for name in both]
        downs.append(Cut(last, down, **own))
    router = [Cut(names.router, f"e ({into} d) -> d e")]
    if e.shared:
        rows = np.arange(e.shared * e.width)
        rows = np.where(rows < e.shared_width, rows, -1)
        rest: dict[str, Any] = {"rows": rows, "experts": slice(e.count, e.tiles), "sizes": {"s": e.shared}}
        gates += [Cut(f"{SHARED}{part}_proj.weight", up, **rest) for part in ("gate", "up")]
        downs.append(Cut(f"{SHARED}down_proj.weight", down, dim=1, **rest))
        router.append(Cut(SHARED_GATE, f"e ({into} d) -> d e"))
    return {
        "norm": (Cut("post_attention_layernorm.weight", f"({into} d)"),),
        "router": tuple(router),
        "wgu": tuple(gates),
        "wdown": tuple(downs),
    }


def outside_regions(block: Block) -> dict[str, tuple[Cut, ...]]:
    """The buffers of a block of experts in regions, for prefill, but for those of the experts themselves."""
    own = expert_cuts(block, "x", "y")
    held = {"norm": own["norm"], "router": own["router"]}
    if block.shape.experts is not None and block.shape.experts.shared:
        both = (Cut(f"{SHARED}{part}_proj.weight", "(x f) (y d) -> d f") for part in ("gate", "up"))
        held["wgu.shared"] = tuple(both)
        held["wdown.shared"] = (Cut(f"{SHARED}down_proj.weight", "(x d) (y f) -> f d"),)
    return held


def fill(
    memory: Tiles, buffers: Mapping[str, tuple[Cut, ...]], weights: Weights, prefix: str, mesh: Mesh, here: Part
) -> None:
    """Put weights into the memory [rows, cols, *tile] of their buffers on the cores `here`, piece by piece.

    A bias is repeated for each sequence.
    """
    for name, parts in buffers.items():
        filled = Counter[str]()  # of the last dimension, of each expert by itself
        for part in parts:
            held = memory[name] if part.experts is None else memory[name][:, :, part.experts]
            start = filled[str(part.experts)]
            for cores, tiles in part.each(weights, prefix + part.name, mesh, here):
                own = held[cores][..., start : start + tiles.shape[-1]]
                own.copy_(tiles.unsqueeze(2) if own.ndim > tiles.ndim else tiles)
            filled[str(part.experts)] = start + tiles.shape[-1]


def prefill_tiles(weights: Weights, layer: int, block: Block, kind: str) -> Tiles:
    """All tiles [rows, cols, *tile] of a block as prefill places them; a bias is given once, for one row."""
    tiles = {}
    for name, parts in cuts(block, kind, "prefill").items():
        pieces: dict[str, list[torch.Tensor]] = {}  # side by side, of each expert by itself
        for part in parts:
            tile = part.tiles(weights[f"model.layers.{layer}.{part.name}"], block.mesh)
            pieces.setdefault(str(part.experts), []).append(tile)
        each = [torch.cat(some, -1) if len(some) > 1 else some[0] for some in pieces.values()]
        tiles[name] = torch.cat(each, 2) if len(each) > 1 else each[0]
    return {name: skewed(name, tile, block.mesh) for name, tile in tiles.items()}


def head_cuts(block: Block) -> dict[str, tuple[Cut]]:
    """The buffers of the head."""
    table = EMBEDDING if block.shape.tie_word_embeddings else "lm_head.weight"
    return {"norm": (Cut("model.norm.weight", "(y d)"),), "table": (Cut(table, "(x v) (y d) -> d v"),)}


def skewed(name: str, tile: torch.Tensor, mesh: Mesh, region: int | None = None) -> torch.Tensor:
    """A tile as MeshGEMM's alignment, in a `region` by itself if there are some, would move it, if it is a matrix's."""
    return tile.flatten(0, 1)[aligned(mesh, region)].view_as(tile) if name.split(".")[0] in MATRICES else tile


MATRICES = ("wqkv", "wo", "wgu", "wdown")
TURNED = ("norm", "router", "wo", "wdown")  # decode and prefill cut them along different axes


@lru_cache(maxsize=8)
def sources(mesh: Mesh) -> dict[str, torch.Tensor]:
    """On a square mesh with the same head groups in both phases, the core whose decode tile a core has in prefill."""
    cores = torch.arange(mesh.cores)
    turned = cores.view(mesh.shape).mT.reshape(-1)
    held = {name: turned if name in TURNED else cores for name in ("norm", "router", "bqkv", "qk_norm", *MATRICES)}
    return {name: source[aligned(mesh)] if name in MATRICES else source for name, source in held.items()}


class PlacedWeights(Mapping[str, torch.Tensor]):
    """A model's parameters under Hugging Face names, put together from the tiles that hold them when asked for.

    `layers[i][kind]` has the tiles of a block's buffers for decode. `head` has those of the head on its own mesh, and
    `embedding` the embedding's there. All of them are views: what changes there, changes here. Where the model lies on
    several ranks, the parameters are those of this one's layers, and `together` gets tiles from those that share them.
    """

    def __init__(
        self, block: Block, layers: dict[int, dict[str, Tiles]], head_block: Block, head: Tiles, embedding: Tiles,
        together: Callable[[Mesh, torch.Tensor], torch.Tensor] = lambda mesh, held: held,
    ) -> None:  # fmt: skip
        self.block, self.layers, self.head_block, self.head, self.embedding = block, layers, head_block, head, embedding
        self.together = together
        ends = {cut.name for name, (cut,) in head_cuts(head_block).items() if name in head}
        ends |= {EMBEDDING} if embedding else set()
        self.shapes = {
            name: shape for name, shape in param_shapes(block.shape).items()
            if name in ends or (name.startswith("model.layers.") and int(name.split(".")[2]) in layers)
        }  # fmt: skip

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def __getitem__(self, name: str) -> torch.Tensor:
        tiles, cut, mesh = self.find(name)
        return cut.gather(self.together(mesh, tiles), mesh, self.shapes[name])

    def find(self, name: str) -> tuple[torch.Tensor, Cut, Mesh]:
        """The tiles of a parameter (a view of its buffer's), its cut and mesh."""
        if name not in self.shapes:
            raise KeyError(name)
        if name == EMBEDDING:
            return self.embedding["table"], EMBEDDING_CUTS["table"][0], self.head_block.mesh
        for buffer, (cut,) in head_cuts(self.head_block).items():
            if cut.name == name:
                return self.head[buffer], cut, self.head_block.mesh
        layer, part = name.removeprefix("model.layers.").split(".", 1)
        for kind in self.block.shape.kinds(int(layer)):
            for buffer, parts in cuts(self.block, kind, "decode").items():
                names = [cut.name for cut in parts]
                if part in names:
                    cut, tiles = parts[names.index(part)], self.layers[int(layer)][kind][buffer]
                    beside = [other.name for other in parts if other.experts == cut.experts]
                    widths = _widths(self.block, buffer, tiles.shape[-1])
                    number = beside.index(part)
                    start = sum(widths[:number])
                    tiles = tiles if cut.experts is None else tiles[:, :, cut.experts]
                    return tiles[..., start : start + widths[number]], cut, self.block.mesh
        raise AssertionError(f"{name} has a shape but no place")


def _widths(block: Block, buffer: str, whole: int) -> list[int]:
    """The widths of a buffer's parts in its last dimension."""
    q, kv = block.query_heads * block.head, block.kv_heads * block.head
    e = block.shape.experts
    if buffer == "router" and e is not None:
        return [e.count, e.logits - e.count]
    return {"wqkv": [q, kv, kv], "bqkv": [q, kv, kv], "qk_norm": [q, kv], "wgu": [whole // 2] * 2}.get(buffer, [whole])
