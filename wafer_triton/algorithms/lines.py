"""All-to-all along one mesh row or column: the senders and receivers, and the round in which a tile crosses a link.

In every round a link carries one tile each way, of the waiting tiles the one with the farthest to go.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from wafer_triton.schedule.rounds import Index, frozen


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
    tuple[tuple[str, Index], tuple[str, Index]], Index, Index
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
    held, placed = np.zeros((2, length), np.int64)
    held[send], placed[recv] = before, after
    return ((src, frozen(held)), (dst, frozen(placed))), frozen(send), frozen(recv)


def _farthest(line: MeshLine) -> tuple[list[list[Sends]], int]:
    """Move in every round one tile each way over a link: of the waiting tiles the one with the farthest to go.

    Upwards, the tiles with t regions beyond theirs take rounds t (j + 1) to t (j + 1) + j of the link above core j. The
    first is the tile of core j, the last the tile of core 0. So they wait t rounds at a core, and a core has a slot for
    each region from its own on, and one more. Downwards is the mirror image.
    """
    length, count = line.length, line.regions
    room = count + 1 - np.arange(length) // line.width  # slots of a core for tiles that move upwards
    source, region = np.divmod(np.arange(length * count), count)
    hops = np.maximum(region * line.width + source // count - source, 0)
    done = np.arange(hops.sum()) - np.repeat(np.cumsum(hops) - hops, hops)
    source, region, hops = (np.repeat(numbers, hops) for numbers in (source, region, hops))
    here, beyond, first, last = source + done, count - 1 - region, done == 0, done == hops - 1
    when, there = beyond * (here + 1) + done, here + 1
    waited, waits = (when - beyond - 1) % room[here], when % room[there]
    ways = []
    for upwards in (True, False):
        if upwards:
            ends, sent, kept = (there, here), region, source % count
        else:
            ends, sent, kept = (length - 1 - there, length - 1 - here), beyond, (length - 1 - source) % count
            waits, waited = (slot + room[core] for slot, core in zip((waits, waited), ends, strict=True))
        held, placed = np.where(first, sent, waited), np.where(last, kept, waits)
        ways.append((when, 4 * upwards + 2 * first + last, ends[0], placed, ends[1], held))
    moves = np.concatenate(ways, 1)
    moves = moves[:, np.argsort((moves[0] * 8 + moves[1]) * length + moves[2])]  # a core receives one of a kind
    edges = np.flatnonzero(np.diff(moves[0] * 8 + moves[1])) + 1
    rounds: dict[int, list[Sends]] = defaultdict(list)
    for group in np.split(moves, edges, 1) if moves.size else ():
        names = "src" if group[1, 0] & 2 else "waiting", "dst" if group[1, 0] & 1 else "waiting"
        rounds[int(group[0, 0])].append(_exchange(length, *names, group[2:]))
    return list(rounds.values()), count + 3


def _backwards(sends: Sends) -> Sends:
    """Return the ends of an exchange that undoes one."""
    ((src, held), (dst, placed)), send, recv = sends
    order = np.argsort(send)
    other = {"src": "dst", "dst": "src"}
    ends = (other.get(dst, dst), placed), (other.get(src, src), held)
    return ends, frozen(recv[order]), frozen(send[order])
