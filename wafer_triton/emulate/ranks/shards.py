"""Shards of a mesh: rectangles of cores, one for each rank, and the part of a schedule that runs on each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import MeshError
from wafer_triton.schedule.rounds import Cores, Index, Local, Slot


@dataclass(frozen=True)
class Partition:
    """A partition of `mesh` into `grid` = (rows, columns) of rectangles, one for each rank, row by row.

    The sides of rectangles differ by one core at most. On a folded mesh no physical core's logical cores are split.
    """

    mesh: Mesh
    grid: tuple[int, int]

    def rectangle(self, rank: int) -> tuple[slice, slice]:
        """Return the rows and the columns of a rank's logical cores."""
        sides = zip(
            divmod(rank, self.grid[1]), (self.mesh.rows, self.mesh.cols), self.grid, self.mesh.fold, strict=True
        )
        rows, cols = (
            slice(*(fold * (edge * (side // count) + min(edge, side % count)) for edge in (number, number + 1)))
            for number, side, count, fold in sides
        )
        return rows, cols

    @cached_property
    def owner(self) -> Index:
        """[cores]: the rank that holds each core."""
        owner = np.empty(self.mesh.shape, np.int64)
        for rank in range(self.grid[0] * self.grid[1]):
            owner[self.rectangle(rank)] = rank
        return owner.ravel()

    @cached_property
    def local_number(self) -> Index:
        """[cores]: the number of each core among those of its rank."""
        number = np.empty(self.mesh.cores, np.int64)
        for rank in range(self.grid[0] * self.grid[1]):
            cores = self.owner == rank
            number[cores] = np.arange(np.count_nonzero(cores))
        return number

    def places(self, rows: Index, slots: int) -> tuple[Index, Index]:
        """Return the ranks that hold rows of all cores' `slots` slots, and their numbers among the rows there."""
        cores, slot = np.divmod(rows, slots)
        return self.owner[cores], self.local_number[cores] * slots + slot


@dataclass(frozen=True)
class Shard:
    """The rectangle of cores of `rank`; methods translate slots and local operations to its own coordinates."""

    partition: Partition
    rank: int

    @cached_property
    def mesh(self) -> Mesh:
        """The rectangle as a mesh of its own."""
        (rows, cols), whole = self.rectangle, self.partition.mesh
        sides = (rows.stop - rows.start) // whole.fold[0], (cols.stop - cols.start) // whole.fold[1]
        return replace(whole, rows=sides[0], cols=sides[1], origin=(0, 0))

    @cached_property
    def rectangle(self) -> tuple[slice, slice]:
        """Its rows and columns on the whole mesh."""
        return self.partition.rectangle(self.rank)

    @cached_property
    def cores(self) -> Index:
        """The numbers of its cores on the whole mesh, row by row."""
        return np.flatnonzero(self.partition.owner == self.rank)

    def slot(self, slot: Slot) -> Slot:
        """Return a slot in coordinates of the shard."""
        if isinstance(slot.index, np.ndarray):
            return replace(slot, index=slot.index[self.rectangle[slot.axis == "x"]])
        return slot

    def where(self, cores: Cores) -> Cores | None:
        """Return the cores of `cores` in this shard; None if it has none."""
        flat = cores.flat(self.partition.mesh)
        number = self.partition.local_number[flat[self.partition.owner[flat] == self.rank]]
        rows, cols = np.divmod(number, self.mesh.shape[1])
        return Cores.of(rows, cols, paired=True) if number.size else None

    def local(self, op: Local) -> Local | None:
        """Return a local operation on the cores of this shard; None if it runs on none of them."""
        where = None if op.where is None else self.where(op.where)
        if op.where is not None and where is None:
            return None
        return Local(op.op, tuple(map(self.slot, op.outs)), tuple(map(self.slot, op.ins)), op.params, where)


@lru_cache(maxsize=64)
def partition(mesh: Mesh, ranks: int, shards: tuple[int, int] | None = None) -> Partition:
    """Return a partition of a mesh over ranks, into `shards` = (rows, columns) or with the fewest cores at its cuts.

    Raises MeshError for more ranks than cores, and for a mesh whose sides have too few cores for every such cut.
    """
    cores = mesh.rows * mesh.cols
    if ranks > cores:
        raise MeshError(f"mesh {mesh} has {cores} cores for {ranks} ranks; start no more, or take a larger mesh")
    grids = [(down, ranks // down) for down in range(1, ranks + 1) if ranks % down == 0] if shards is None else [shards]
    fitting = [grid for grid in grids if grid[0] <= mesh.rows and grid[1] <= mesh.cols]
    if not fitting:
        tried = ", ".join(f"{down}x{along}" for down, along in grids)
        raise MeshError(
            f"mesh {mesh} cannot be cut into {ranks} rectangles as {tried}, one for each rank: a side has too few "
            f"cores; start another number of ranks, or take a larger mesh"
        )
    return Partition(mesh, min(fitting, key=lambda grid: (grid[0] - 1) * mesh.cols + (grid[1] - 1) * mesh.rows))
