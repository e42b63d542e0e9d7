"""The chunks of a prompt: their tokens on the rows, and the tiles of activations, masks, keys and values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from einops import rearrange

from wafer_triton.algorithms.kv_cache import KvCache
from wafer_triton.decoder import prefill
from wafer_triton.decoder.block import Block
from wafer_triton.device.layout import MeshTensor, scatter
from wafer_triton.models.place.cuts import Tiles, first_places, picked, picker


@dataclass(frozen=True)
class Chunk:
    """Consecutive tokens of a prompt, `count` from `start` on, spread over the rows of the mesh.

    A row holds up to `tokens` of them, and `past` entries of the chunks before. `position` [rows, tokens] is the number
    of each token, -1 for padding.
    """

    start: int
    count: int
    tokens: int
    past: int
    position: torch.Tensor

    @cached_property
    def index(self) -> torch.Tensor:
        """The position of each token among the padded rows."""
        return (self.position.flatten() >= 0).nonzero().flatten()


def chunks(side: int, count: int, tokens: int) -> list[Chunk]:
    """Return a prompt in chunks of `tokens` on each of `side` rows; the last may have fewer."""
    parts: list[Chunk] = []
    for start in range(0, count, side * tokens):
        here = min(count - start, side * tokens)
        spread, rows = KvCache(side, here), -(-here // side)
        row, edges = spread.row_of(here), spread.windows(here)
        position = np.full((side, rows), -1)
        position[row, np.arange(here) - edges[row]] = start + np.arange(here)
        past = sum(chunk.tokens for chunk in parts)
        parts.append(Chunk(start, here, rows, past, torch.from_numpy(position)))
    return parts


@dataclass(frozen=True)
class ChunkTiles:
    """The cut of a prompt's values into the tiles of its chunks on the square mesh of `block`, and its inverse."""

    block: Block

    @property
    def side(self) -> int:
        """Rows of the mesh."""
        return self.block.mesh.shape[0]

    def inputs(
        self, x: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], parts: Sequence[Chunk]
    ) -> Iterator[Tiles]:
        """Yield each chunk's input tiles of the attention program of the first layer."""
        held = [picked(values, self.block.layout.pair_of, 1) for values in rotary]
        for part, mask in zip(parts, self.masks(parts), strict=True):
            angles = (self.spread(values, part, "(y m) (x p)") for values in held)
            activation = self.spread(x, part, prefill.HIDDEN_SPEC)
            yield {prefill.HIDDEN: activation, prefill.MASK: mask, **dict(zip(prefill.ANGLES, angles, strict=True))}

    def spread(self, values: torch.Tensor, part: Chunk, pattern: str) -> torch.Tensor:
        """Return the tiles of a chunk's part of values [count, width], cut by `pattern`; padded rows are zeros."""
        padded = values.new_zeros(self.side * part.tokens, values.shape[1])
        padded[part.index] = values[part.start : part.start + part.count]
        return scatter(padded, self.block.mesh, pattern).tiles

    def whole(self, tiles: torch.Tensor, part: Chunk) -> torch.Tensor:
        """Return the activation [count, width] of a chunk from its tiles."""
        shape = (self.side * part.tokens, self.block.shape.hidden_size)
        return MeshTensor(self.block.mesh, tiles, prefill.HIDDEN_SPEC, shape, {}).gather()[part.index]

    def masks(self, parts: Sequence[Chunk]) -> Iterator[torch.Tensor]:
        """Yield each chunk's mask: 0 if a query of the row attends to a key of a core's block, else -inf.

        A mask is [rows, cols, tokens, seen], and the key's row is the core's column; with several head groups it is
        [rows, cols, slots, tokens, seen]. A padded query attends to every real key, so that its row stays finite. No
        query attends to a padded key.
        """
        rows = torch.arange(self.side)
        held = rows[None] if self.block.head_groups == 1 else torch.from_numpy(self.block.block_ring.row_of)
        for number, part in enumerate(parts):
            keys = torch.cat([chunk.position for chunk in (part, *parts[:number])], 1)
            query = torch.where(part.position < 0, part.start + part.count, part.position)
            seen = (keys >= 0) & (keys <= query[:, :, None, None])  # [rows, tokens, rows of keys, keys]
            masks = torch.where(seen, 0.0, float("-inf")).transpose(1, 2)
            yield masks[rows.view(-1, *[1] * (held.ndim - 1)), held]

    def gatherer(self, parts: Sequence[Chunk], device: str) -> Callable[[Sequence[torch.Tensor]], torch.Tensor]:
        """Return the function that makes keys or values [layers, count, key heads, head_dim] of tiles of all chunks.

        Its tables go to the device once.
        """
        tokens = [part.index.to(device) for part in parts]
        heads = picker(first_places(self.block.layout.rows("k")), 2, device)

        def gather(entries: Sequence[torch.Tensor]) -> torch.Tensor:
            each = zip(entries, parts, tokens, strict=True)
            rows = [
                rearrange(tiles, "l y x (m e) -> l (y m) (x e)", m=part.tokens)[:, index] for tiles, part, index in each
            ]
            return heads(torch.cat(rows, 1)).unflatten(2, (-1, self.block.shape.head_dim))

        return gather
