"""MeshGEMM's rounds on a CPU: a few columns of cores go through all of them while they are in the processor's cache.

What moves along a column never leaves it. What moves along the rows comes past every column, so it is laid out by the
columns that it meets. Cores are taken in ring order, where a move is a step to the next place. With explicit exchange
every tile takes it in every round; with elided exchange, which runs the same products in the same order, a round reads
a window of what lay there in the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from wafer_triton.emulate.plan import Step
from wafer_triton.emulate.segments import Products
from wafer_triton.schedule.rounds import Index

Pair = tuple[torch.Tensor, torch.Tensor]  # the two slots [rows, cols, numel] that a matrix alternates between

COLUMNS = 4  # taken at a time
LARGE = 2**20  # elements of what moves along the columns, from which on this is quicker
KEPT = 2**24  # elements, 64 MiB, up to which the tiles of all rounds are kept


class Sweep:
    """The cores of a run of compute-shift rounds, by the places [position in column, position in row] on its rings.

    `product(c, a, b, add=)` plans the product of tiles [positions, columns, numel], which are fp32.
    """

    def __init__(self, run: Products, cores: Index, product: Callable[..., Step]) -> None:
        self.run, self.cores, self.product, self.side = run, cores, product, len(cores)
        self.width = min(COLUMNS, self.side)
        self.blocks = [slice(start, min(start + self.width, self.side)) for start in range(0, self.side, self.width)]
        self.of_block = [_table(cores[:, block]) for block in self.blocks]

    def explicit(self, a: Pair, b: Pair, c: torch.Tensor) -> Step:
        """All rounds, and every tile moved in each."""
        run, side, last = self.run, self.side, self.run.number % 2
        grid = np.arange(side * side).reshape(side, side)
        order = np.concatenate([grid[:, block].ravel() for block in self.blocks])
        before = np.roll(np.argsort(order).reshape(side, side), 1, axis=1)  # in that order, who comes before in the row
        home, along = _table(self.cores.ravel()[order]), _table(before.ravel()[order])
        whole = [tensor.flatten(0, 1) for tensor in (*a, *b, c)]

        def step() -> None:
            moved = [whole[0].index_select(0, home)]
            for _ in range(run.number):
                moved.append(moved[-1].index_select(0, along))
            for block, cores in zip(self.blocks, self.of_block, strict=True):
                total, now = (whole[number].index_select(0, cores).unflatten(0, (side, -1)) for number in (4, 2))
                before, held = torch.empty_like(now), slice(side * block.start, side * block.stop)
                for number in range(run.number):
                    tiles = moved[number][held].unflatten(0, (side, -1))
                    self.product(total, tiles.float(), now.float(), add=number > 0 or run.add)()
                    before[1:], before[0] = now[:-1], now[-1]
                    before, now = now, before
                for target, tiles in ((whole[4], total), (whole[2 + last], now), (whole[3 - last], before)):
                    target.index_copy_(0, cores, tiles.flatten(0, 1))
            for slot, tiles in ((last, moved[-1]), (1 - last, moved[-2])):
                whole[slot].index_copy_(0, home, tiles)

        return step

    def elided(
        self, a: torch.Tensor, b: torch.Tensor, rows: Sequence[Index], c: torch.Tensor, out: torch.Tensor
    ) -> Step:
        """All rounds on tiles [-, numel] that stay where they lie: core i's were rows[0][i] of a, rows[1][i] of b.

        In round t the core at place (p, q) multiplies what lay at (p, q - t) and at (p - t, q).
        """
        run, side = self.run, self.side
        # [place along the rows, position, columns]: what lies there and next to it
        near = self.cores[:, (np.arange(side)[:, None] + np.arange(self.width)) % side].swapaxes(0, 1)
        around = np.concatenate([self.cores[1:], self.cores])  # down the columns nearly twice: all windows of it
        of_a = _table(rows[0][near])
        of_b = [_table(rows[1][around[:, block]]) for block in self.blocks]

        def step() -> None:
            begun = a.index_select(0, of_a).float().view(side, side, self.width, -1)
            for block, cores, rows_b in zip(self.blocks, self.of_block, of_b, strict=True):
                size = block.stop - block.start
                passing = b.index_select(0, rows_b).float().unflatten(0, (-1, size))
                total = c.flatten(0, 1).index_select(0, cores).unflatten(0, (side, size))
                for number in range(run.number):
                    window = passing[side - 1 - number : 2 * side - 1 - number]
                    tiles = begun[(block.start - number) % side][:, :size]
                    self.product(total, tiles, window, add=number > 0 or run.add)()
                out.flatten(0, 1).index_copy_(0, cores, total.flatten(0, 1).to(out.dtype))

        return step


def plan(run: Products, sizes: tuple[int, int], product: Callable[..., Step]) -> Sweep | None:
    """The sweep of a run around whole rings, or None; `sizes` are the elements of its tiles of a and of b."""
    a, b = (size * run.mesh.cores for size in sizes)
    rings = run.rings if b >= LARGE and run.mesh.shape[0] * a <= KEPT else None
    if rings is None or run.number != len(rings[0]):
        return None
    return Sweep(run, rings[0][:, None] * run.mesh.shape[1] + rings[1], product)


def _table(values: Index) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values).ravel())
