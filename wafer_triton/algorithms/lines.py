"""All-to-all along one mesh row or column: who sends to whom, and in which round each tile crosses a link.

In every round a link carries one tile each way, of the waiting tiles the one with the farthest to go.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from wafer_triton.schedule.rounds import Index, SlotIndex, frozen


@dataclass(frozen=True)
class MeshLine:
    """A line of `length` cores in regions of `width`: a core sends a tile to each region or, with `back`, gets one.

    With `width` 1 every core sends to every core.
    """

    length: int
    width: int
    back: bool = False

    @property
    def regions(self) -> int:
        """Return the number of regions, and of tiles that a core sends and receives."""
        return self.length // self.width

    @property
    def slots(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Return {(sender, receiver): (the tile's slot at the sender, its slot at the receiver)}."""
        pairs, regions = {}, self.regions
        for core in range(self.length):
            for region in range(regions):
                other = region * self.width + core // regions
                if self.back:
                    pairs[other, core] = core % regions, region
                else:
                    pairs[core, other] = region, core % regions
        return pairs


Sends = tuple[
    tuple[tuple[str, SlotIndex], tuple[str, SlotIndex]], Index, Index
]  # (source buffer, slot by core), (target buffer, slot by core); senders; receivers


@lru_cache(maxsize=2)  # there and back
def exchange_plan(line: MeshLine) -> tuple[list[list[Sends]], int]:
    """Return the exchanges of every round, and how many slots a core needs for tiles in transit.

    A tile in transit arrives in a free slot, and a slot that is sent in the same round is not free yet. With `back` the
    plan is the forward plan in reverse.
    """
    if line.back:
        onward, slots = exchange_plan(replace(line, back=False))
        return [[_reversed(sends) for sends in exchanges] for exchanges in reversed(onward)], slots
    return _farthest_first(line)


def _exchange(length: int, src: str, dst: str, moves: Index) -> Sends:
    """Return an exchange; the rows of `moves` are receivers, their slots, senders and their slots."""
    recv, after, send, before = moves
    held, placed = np.zeros((2, length), np.int32)
    held[send], placed[recv] = before, after
    ends = (src, frozen(held)), (dst, frozen(placed))
    return ends, frozen(send.astype(np.int64)), frozen(recv.astype(np.int64))


def _farthest_first(line: MeshLine) -> tuple[list[list[Sends]], int]:
    """Return the forward plan.

    Upwards, the tiles for a region with t regions above it cross the link above core j in rounds t (j + 1) to
    t (j + 1) + j, the tile of core j first and the tile of core 0 last. So a tile waits t rounds at a core, and a core
    needs a slot for each region from its own on, and one more. Downwards is the mirror image.
    """
    length, count = line.length, line.regions
    room = count + 1 - np.arange(length, dtype=np.int32) // line.width  # slots of a core for tiles that move upwards
    source, region = np.divmod(np.arange(length * count, dtype=np.int32), np.int32(count))
    hops = np.maximum(region * line.width + source // count - source, 0)
    done = np.arange(hops.sum(), dtype=np.int32) - np.repeat(np.cumsum(hops, dtype=np.int32) - hops, hops)
    source, region, hops = (np.repeat(numbers, hops) for numbers in (source, region, hops))
    sender, beyond, first, last = source + done, count - 1 - region, done == 0, done == hops - 1
    in_round, receiver = beyond * (sender + 1) + done, sender + 1
    waited, waits = (in_round - beyond - 1) % room[sender], in_round % room[receiver]
    rounds: dict[int, list[Sends]] = defaultdict(list)
    for upwards in (False, True):
        if upwards:
            recv, send = receiver, sender
            first_slot, last_slot = region, source % count
            after, before = waits, waited
        else:
            recv, send = length - 1 - receiver, length - 1 - sender
            first_slot, last_slot = beyond, (length - 1 - source) % count
            after, before = waits + room[recv], waited + room[send]
        placed, held = np.where(last, last_slot, after), np.where(first, first_slot, before)
        moves = np.stack([in_round * 4 + 2 * first + last, recv, placed, send, held])
        moves = moves[:, np.lexsort(moves[1::-1])]  # a core receives one of a kind
        edges = np.flatnonzero(np.diff(moves[0])) + 1
        for group in np.split(moves, edges, 1) if moves.size else ():
            number, kind = divmod(int(group[0, 0]), 4)
            names = "src" if kind & 2 else "waiting", "dst" if kind & 1 else "waiting"
            rounds[number].append(_exchange(length, *names, group[1:]))
    return list(rounds.values()), count + 3


def _reversed(sends: Sends) -> Sends:
    """Return the exchange that undoes one."""
    ((src, held), (dst, placed)), send, recv = sends
    order = np.argsort(send)
    other = {"src": "dst", "dst": "src"}
    ends = (other.get(dst, dst), placed), (other.get(src, src), held)
    return ends, frozen(recv[order]), frozen(send[order])
