"""All-to-all along one mesh row or column: the senders and receivers, and the round in which a tile crosses a link.

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
    """A mesh row in regions of `width`: cores send to regions or, with `back`, regions to cores.

    Where every core is a region of its own, each sends to each.
    """

    length: int
    width: int
    back: bool = False

    @property
    def regions(self) -> int:
        """Return the regions of the row, which is the number of tiles that a core sends and receives."""
        return self.length // self.width

    @property
    def slots(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Of every pair of sender and receiver, the sender's slot of the tile and the receiver's."""
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
]  # both ends as buffer and slots, senders, receivers


@lru_cache(maxsize=2)  # there and back
def planned(line: MeshLine) -> tuple[list[list[Sends]], int]:
    """Return the exchanges of every round, as slots by position, senders and receivers; and the slots for waiting.

    A moving tile lies in a slot that is free when it arrives: a slot that is sent in that round is not. The return
    route is the forward route reversed.
    """
    if line.back:
        onward, slots = planned(replace(line, back=False))
        return [[_backwards(sends) for sends in exchanges] for exchanges in reversed(onward)], slots
    return _farthest(line)


def _exchange(length: int, src: str, dst: str, moves: Index) -> Sends:
    """Return the ends of an exchange in which a core sends one tile at most: receivers, slots, senders, slots."""
    recv, after, send, before = moves
    held, placed = np.zeros((2, length), np.int32)
    held[send], placed[recv] = before, after
    ends = (src, frozen(held)), (dst, frozen(placed))
    return ends, frozen(send.astype(np.int64)), frozen(recv.astype(np.int64))


def _farthest(line: MeshLine) -> tuple[list[list[Sends]], int]:
    """Move in every round one tile each way over a link: of the waiting tiles the one with the farthest to go.

    Upwards, the tiles with t regions beyond theirs take rounds t (j + 1) to t (j + 1) + j of the link above core j. The
    first is the tile of core j, the last the tile of core 0. So they wait t rounds at a core, and a core has a slot for
    each region from its own on, and one more. Downwards is the mirror image.
    """
    length, count = line.length, line.regions
    room = count + 1 - np.arange(length, dtype=np.int32) // line.width  # slots of a core for tiles that move upwards
    source, region = np.divmod(np.arange(length * count, dtype=np.int32), np.int32(count))
    hops = np.maximum(region * line.width + source // count - source, 0)
    done = np.arange(hops.sum(), dtype=np.int32) - np.repeat(np.cumsum(hops, dtype=np.int32) - hops, hops)
    source, region, hops = (np.repeat(numbers, hops) for numbers in (source, region, hops))
    here, beyond, first, last = source + done, count - 1 - region, done == 0, done == hops - 1
    when, there = beyond * (here + 1) + done, here + 1
    waited, waits = (when - beyond - 1) % room[here], when % room[there]
    rounds: dict[int, list[Sends]] = defaultdict(list)
    for upwards in (False, True):
        if upwards:
            recv, send, sent, kept = there, here, region, source % count
            after, before = waits, waited
        else:
            recv, send, sent, kept = length - 1 - there, length - 1 - here, beyond, (length - 1 - source) % count
            after, before = waits + room[recv], waited + room[send]
        placed, held = np.where(last, kept, after), np.where(first, sent, before)
        moves = np.stack([when * 4 + 2 * first + last, recv, placed, send, held])
        moves = moves[:, np.lexsort(moves[1::-1])]  # a core receives one of a kind
        edges = np.flatnonzero(np.diff(moves[0])) + 1
        for group in np.split(moves, edges, 1) if moves.size else ():
            number, kind = divmod(int(group[0, 0]), 4)
            names = "src" if kind & 2 else "waiting", "dst" if kind & 1 else "waiting"
            rounds[number].append(_exchange(length, *names, group[1:]))
    return list(rounds.values()), count + 3


def _backwards(sends: Sends) -> Sends:
    """Return the ends of an exchange that undoes one."""
    ((src, held), (dst, placed)), send, recv = sends
    order = np.argsort(send)
    other = {"src": "dst", "dst": "src"}
    ends = (other.get(dst, dst), placed), (other.get(src, src), held)
    return ends, frozen(recv[order]), frozen(send[order])
