"""GEMM-T and MeshGEMM within segments of the columns: scores and weighted values of head groups.

On P x P cores every row of a segment of W columns has P blocks of scores. They lie on a ring of P places, laid along
the two-hop ring of the segment's columns: a column has P / W places in a row, one more where that does not divide.

In iteration t GEMM-T makes the block of place t on every row, so all rows send their sums to the same columns. For
MeshGEMM the ring turns: in every round a column multiplies the block in its first place, and hands it to the column
that has the places before. The others move up, which is a change of slots alone. Both take P rounds, as with one
segment. Products and messages are smaller by the number of segments. GEMM-T's results lie where MeshGEMM needs them,
so that the operand along y alone is skewed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import lcm
from typing import Any

import numpy as np

from wafer_triton.algorithms.align import align, side
from wafer_triton.algorithms.gemm import come_home
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

    @cached_property
    def station(self) -> Index:
        """[columns]: the station of each column, -1 of one that is left over."""
        column = np.arange(self.size)
        whole = column < self.size - self.size % self.width
        return np.where(whole, np.argsort(self.columns)[column % self.width], -1)

    @cached_property
    def places(self) -> Index:
        """[columns]: how many places a column has."""
        return np.where(self.station < 0, 0, np.diff(self.starts)[self.station])

    @property
    def first(self) -> Index:
        """[columns]: the first place of a column, 0 for none."""
        return np.where(self.station < 0, 0, self.starts[self.station])

    @property
    def owners(self) -> tuple[Cores, ...]:
        """[width]: the columns at each station, one of each segment."""
        return tuple(Cores("x", np.flatnonzero(self.station == station)) for station in range(self.width))

    @property
    def slots(self) -> int:
        """The most places of a column, each of which is a slot."""
        return -(-self.size // self.width)

    @property
    def turning(self) -> int:
        """Return the slots that a column needs while the ring turns: one more, for the arrival."""
        return self.slots + (self.width > 1)

    @property
    def ends(self) -> tuple[Index, Index]:
        """Senders and receivers of a ring step in all segments, for which blocks of one ring share arrays."""
        return ring_ends(self.width, 1, ring, self.size // self.width)

    @property
    def every(self) -> Cores | None:
        """The columns of all segments; None if that is every column."""
        return None if self.size % self.width == 0 else Cores("x", np.flatnonzero(self.station >= 0))

    @property
    def rest(self) -> Cores | None:
        """The columns left over, if there are any."""
        return None if self.size % self.width == 0 else Cores("x", np.flatnonzero(self.station < 0))

    def holding(self, slot: int) -> Cores | None:
        """Return the columns that have a place in a slot; None if every column has."""
        columns = np.flatnonzero(self.places > slot)
        return None if len(columns) == self.size else Cores("x", columns)

    @property
    def row_of(self) -> Index:
        """[rows, columns, slots]: the row of the mesh whose keys and values a block is of, -1 where there is none.

        In place t is the block of the row that is t steps before on the ring of all rows.
        """
        slot = np.arange(self.slots)
        position = ring_position(self.size)[:, None, None] - (self.first[:, None] + slot)
        return np.where(slot < self.places[:, None], ring(self.size)[position % self.size], -1)


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
    """Add C = A B^T within every segment, whose blocks end on the ring of `blocks`; B circles along y and returns.

    In iteration t a row multiplies by the tile of B that was t ring steps before it. The products are summed along x to
    the column that has place t. Local tiles are a [m, heads, k], w [n, kv_heads, k], and c [heads, m, n] in a slot for
    each place. `overlap` is as in `meshgemm_t`.
    """
    size, width = side(b), blocks.width
    buffer = b.buffers[c]
    hands = (w, b.like(f"{w}.next", w))
    first = b.buffer(f"{c}.part", buffer.tile, buffer.dtype)
    parts = (first, b.like(f"{c}.part.next", first) if overlap and size > 1 else first)
    params: dict[str, Any] = {"m": m, "k": k, "n": n, "heads": heads, "kv_heads": kv_heads, "accumulate": accumulate}

    def product(odd: int) -> Round:
        shift = (ring_step(b, "y", hands[odd], hands[1 - odd]),) if size > 1 else ()
        return Round(shift, (b.local("gemm_t", parts[odd], (a, hands[odd]), **params),), label)

    products, every, columns = (product(0), product(1)), blocks.owners, blocks.columns.tolist()

    for station, (begin, end) in enumerate(pairwise(blocks.starts.tolist())):  # the sums go to its columns
        owners, root, sums = every[station], columns[station], dict[int, list[Step]]()
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
    come_home(b, w, hands[1], label)


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

    Local tiles are a [heads, m, k] in `blocks.turning` slots, w [k, kv_heads, n], c [m, heads, n]. B ends where its
    alignment took it. Columns left over do nothing.
    """
    size, slots = side(b), blocks.turning
    align(b, w, "y", by=-blocks.first % size)
    hands = (w, b.like(f"{w}.next", w))
    params: dict[str, Any] = {"m": m, "k": k, "n": n, "heads": heads, "kv_heads": kv_heads, "accumulate": accumulate}

    def iteration(number: int) -> None:
        here, odd = number % slots, number % 2
        product = b.local("gemm", c, (Slot(a, here), hands[odd]), blocks.every, add=number > 0, **params)
        shifts = [ring_step(b, "y", hands[odd], hands[1 - odd])] if size > 1 else []
        b.round(*shifts, *_turned(a, blocks, here), product, label=label)

    iteration(0)
    period = lcm(slots, 2)
    times = (size - 1) // period
    with b.loop(times):
        for number in range(1, period + 1):
            iteration(number)
    for number in range(times * period + 1, size):
        iteration(number)


def _turned(a: str, blocks: BlockRing, here: int) -> list[Exchange]:
    """Return exchanges that send every column's first block, in slot `here`, a ring step on, after the blocks there."""
    if blocks.width == 1:
        return []
    (send, recv), behind = blocks.ends, (here + blocks.places) % blocks.turning
    alike = blocks.size % blocks.width == 0 or np.ptp(blocks.places[recv]) == 0
    to = Slot(a, int(behind[recv[0]]) if alike else behind)
    return [Exchange(Moves("x", send, recv), Slot(a, here), to)]
