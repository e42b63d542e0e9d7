"""GEMM-T and MeshGEMM within segments of the columns: scores and weighted values of head groups.

On P x P cores every row of a segment of W columns has P blocks of scores, one for the keys of each mesh row. They lie
on a ring of P places along the two-hop ring of the segment's columns: a column has P / W consecutive places, or one
more if W does not divide P.

In iteration t GEMM-T computes the block of place t on every row, so all rows send their sums to the same columns. For
MeshGEMM the ring rotates: in every round a column multiplies the block in its first place, and sends it to the column
that has the places before. The others move up by a change of slot numbers alone. Both take P rounds, as with one
segment; products and messages are smaller by the number of segments. GEMM-T leaves its results where MeshGEMM needs
them, so only the operand along y is skewed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import lcm
from typing import Any

import numpy as np

from wafer_triton.algorithms.align import align, side
from wafer_triton.algorithms.gemm import copy_back
from wafer_triton.algorithms.reduce import reduce
from wafer_triton.algorithms.ring import ring, ring_ends, ring_position, ring_step
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores, Exchange, Index, Local, Moves, Round, Slot
from wafer_triton.schedule.steps import Step


@dataclass(frozen=True)
class BlockRing:
    """The ring of `size` places on each segment of `width` columns of a square mesh; columns left over have none.

    A station is a column of a segment, numbered in the order of the places.
    """

    size: int
    width: int

    @property
    def starts(self) -> Index:
        """[width + 1]: the first place of every station, then the number of places."""
        return np.arange(self.width + 1) * self.size // self.width

    @property
    def columns(self) -> Index:
        """[width]: the column of a segment at each station, against the ring, so that blocks move along it."""
        return np.roll(ring(self.width)[::-1], 1)

    @property
    def station(self) -> Index:
        """[columns]: the station of each column, -1 for a column left over."""
        column = np.arange(self.size)
        whole = column < self.size - self.size % self.width
        return np.where(whole, np.argsort(self.columns)[column % self.width], -1)

    @property
    def place_counts(self) -> Index:
        """[columns]: how many places a column has."""
        station = self.station
        return np.where(station < 0, 0, np.diff(self.starts)[station])

    @property
    def first_places(self) -> Index:
        """[columns]: the first place of a column, 0 for none."""
        station = self.station
        return np.where(station < 0, 0, self.starts[station])

    @property
    def station_columns(self) -> tuple[Cores, ...]:
        """[width]: the columns at each station, one of each segment."""
        own = self.station
        return tuple(Cores("x", np.flatnonzero(own == station)) for station in range(self.width))

    @property
    def slots(self) -> int:
        """The most places of a column, each of which is a slot."""
        return -(-self.size // self.width)

    @property
    def rotating_slots(self) -> int:
        """Return the slots of a column while the ring rotates: one more than `slots`, for the block that arrives."""
        return self.slots + (self.width > 1)

    @property
    def ends(self) -> tuple[Index, Index]:
        """Senders and receivers of a ring step in all segments."""
        return ring_ends(self.width, 1, ring, self.size // self.width)

    @property
    def segment_columns(self) -> Cores | None:
        """The columns of all segments; None for all columns of the mesh."""
        return None if self.size % self.width == 0 else Cores("x", np.flatnonzero(self.station >= 0))

    @property
    def leftover_columns(self) -> Cores | None:
        """The columns left over, if there are any."""
        return None if self.size % self.width == 0 else Cores("x", np.flatnonzero(self.station < 0))

    def columns_with_slot(self, slot: int) -> Cores | None:
        """Return the columns that have a place in a slot; None if every column has."""
        columns = np.flatnonzero(self.place_counts > slot)
        return None if len(columns) == self.size else Cores("x", columns)

    @property
    def row_of(self) -> Index:
        """[rows, columns, slots]: the mesh row whose keys and values a block belongs to, -1 where there is none.

        Place t has the block of the row t steps back on the ring of all rows.
        """
        slot = np.arange(self.slots)
        position = ring_position(self.size)[:, None, None] - (self.first_places[:, None] + slot)
        return np.where(slot < self.place_counts[:, None], ring(self.size)[position % self.size], -1)


def segment_gemm_t(
    b: Builder,
    a: str,
    w: str,
    c: str,
    blocks: BlockRing,
    *,
    m: int,
    k: int,
    n: int,
    heads: int = 1,
    kv_heads: int = 1,
    accumulate: str = "fp32",
    overlap: bool = True,
    label: str = "gemm-t",
) -> None:
    """Add the rounds of C = A B^T within every segment; C ends on the ring of `blocks`, B circles along y and returns.

    In iteration t a row multiplies by the tile of B that began t ring steps behind it. The products are summed along x
    to the column that has place t. Local tiles are a [m, heads, k], w [n, kv_heads, k], and c [heads, m, n] in a slot
    for each place. `overlap` is as in `meshgemm_t`.
    """
    size, width = side(b), blocks.width
    buffer = b.buffers[c]
    w_buffers = (w, b.like(f"{w}.next", w))
    first = b.buffer(f"{c}.part", buffer.tile, buffer.dtype)
    parts = (first, b.like(f"{c}.part.next", first) if overlap and size > 1 else first)
    params: dict[str, Any] = {"m": m, "k": k, "n": n, "heads": heads, "kv_heads": kv_heads, "accumulate": accumulate}

    def product(odd: int) -> Round:
        shift = (ring_step(b, "y", w_buffers[odd], w_buffers[1 - odd]),) if size > 1 else ()
        return Round(shift, (b.local("gemm_t", parts[odd], (a, w_buffers[odd]), **params),), label)

    products, stations, columns = (product(0), product(1)), blocks.station_columns, blocks.columns.tolist()

    for station, (begin, end) in enumerate(pairwise(blocks.starts.tolist())):  # the sums go to its columns
        owners, root, sums = stations[station], columns[station], dict[int, list[Step]]()
        for place in range(begin, end):
            odd = place % 2
            b.steps.append(products[odd])
            if odd not in sums:  # equal steps are one object
                start = len(b.steps)
                reduce(b, parts[odd], "x", root=root, groups=(), inbox=first, segment=width, label=label)
                sums[odd] = b.steps[start:]
            else:
                b.steps += sums[odd]
            kept = Local("copy", (Slot(c, place - begin),), (Slot(parts[odd]),), {"size": buffer.numel}, owners)
            b.steps.append(Round((), (kept,), label))
    copy_back(b, w, w_buffers[1], label)


def segment_gemm(
    b: Builder,
    a: str,
    w: str,
    c: str,
    blocks: BlockRing,
    *,
    m: int,
    k: int,
    n: int,
    heads: int = 1,
    kv_heads: int = 1,
    accumulate: str = "fp32",
    label: str = "gemm",
) -> None:
    """C = A B within every segment, for A on the ring of `blocks` and B row by row, in P rounds after B's alignment.

    Local tiles are a [heads, m, k] in `blocks.rotating_slots` slots, w [k, kv_heads, n], c [m, heads, n]. B stays
    skewed. Columns left over do nothing.
    """
    size, slots = side(b), blocks.rotating_slots
    align(b, w, "y", by=-blocks.first_places % size)
    w_buffers = (w, b.like(f"{w}.next", w))
    params: dict[str, Any] = {"m": m, "k": k, "n": n, "heads": heads, "kv_heads": kv_heads, "accumulate": accumulate}

    shifts = [(ring_step(b, "y", w_buffers[odd], w_buffers[1 - odd]),) if size > 1 else () for odd in (0, 1)]
    rotations, columns = _rotations(a, blocks), blocks.segment_columns

    def iteration(number: int) -> None:
        first, odd = number % slots, number % 2
        product = b.local("gemm", c, (Slot(a, first), w_buffers[odd]), columns, add=number > 0, **params)
        b.round(*shifts[odd], *rotations[first], product, label=label)

    iteration(0)
    period = lcm(slots, 2)
    times = (size - 1) // period
    with b.loop(times):
        for number in range(1, period + 1):
            iteration(number)
    for number in range(times * period + 1, size):
        iteration(number)


def _rotations(a: str, blocks: BlockRing) -> list[tuple[Exchange, ...]]:
    """Return, by slot, the exchange that sends every column's block there one ring step on, behind the blocks there."""
    if blocks.width == 1:
        return [()] * blocks.rotating_slots
    (send, recv), counts, rotations = blocks.ends, blocks.place_counts, list[tuple[Exchange, ...]]()
    one_slot, moves = blocks.size % blocks.width == 0 or np.ptp(counts[recv]) == 0, Moves("x", send, recv)
    for first in range(blocks.rotating_slots):
        behind = (first + counts) % blocks.rotating_slots
        to = Slot(a, int(behind[recv[0]]) if one_slot else behind)
        rotations.append((Exchange(moves, Slot(a, first), to),))
    return rotations
