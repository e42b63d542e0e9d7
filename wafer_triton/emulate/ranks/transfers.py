"""Transfers of tiles between ranks: the send/recv plan of a rank, and one message for each pair of ranks.

All ranks plan the whole schedule, so each rank has the tiles that it sends and receives without asking. A tile that
several cores of a rank receive is sent once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

from wafer_triton.emulate.ranks.group import blaming
from wafer_triton.emulate.ranks.shards import Shard
from wafer_triton.schedule.rounds import Index

ALIGNED = 16  # bytes, to which the parts of a message are rounded up


@dataclass(frozen=True, eq=False)
class SendRecv:
    """The send/recv plan of one rank: moves of tiles from rows of its memory, and to rows of its memory.

    `sent` and `got` are the rows of tiles that stay on the rank. `out` has the rows to send to each other rank. `into`
    has, for each other rank, the number of tiles in its message, the tiles used here, and their rows. `crossing` tiles
    are sent between any two ranks.
    """

    sent: Index
    got: Index
    out: dict[int, Index]
    into: dict[int, tuple[int, Index, Index]]
    crossing: int


def route(shard: Shard, homes: Index, receivers: Index, here: Index, there: Index) -> SendRecv:
    """Return the plan of tiles from cores `homes`, in rows `here` of their ranks, to `receivers`, in rows `there`."""
    source, target = shard.partition.owner[homes], shard.partition.owner[receivers]
    inside = (source == shard.rank) & (target == shard.rank)
    across = np.flatnonzero(source != target)
    out, into, crossing = dict[int, Index](), dict[int, tuple[int, Index, Index]](), 0
    ways = source[across] * len(shard.partition.owner) + target[across]
    for way in np.unique(ways):
        pairs = across[ways == way]
        first, second = divmod(int(way), len(shard.partition.owner))
        rows, which = np.unique(here[pairs], return_inverse=True)
        crossing += len(rows)
        if first == shard.rank:
            out[second] = rows
        if second == shard.rank:
            into[first] = len(rows), which, there[pairs]
    return SendRecv(here[inside], there[inside], out, into, crossing)


class Transfer:
    """Tiles of some plans, each between two tensors [tiles, numel], packed to one message for each pair of ranks."""

    def __init__(self, routes: Sequence[tuple[SendRecv, torch.Tensor, torch.Tensor]], group: dist.ProcessGroup) -> None:
        self.bytes = sum(each.crossing * _tile_bytes(source) for each, source, _ in routes)
        self.group = group
        self._packs = list[Callable[[], object]]()
        self._unpacks = list[Callable[[], object]]()
        self._ops = list[dist.P2POp]()
        self._works = list[dist.Work]()
        self._copies = [_copy(source, each.sent, to, each.got) for each, source, to in routes if len(each.sent)]
        for peer in sorted({peer for each, _, _ in routes for peer in each.out}):
            rows = [(each.out[peer], source) for each, source, _ in routes if peer in each.out]
            message, parts = _message([(len(index), source) for index, source in rows])
            for (index, source), part in zip(rows, parts, strict=True):
                self._packs.append(_copy(source, index, part))
            self._ops.append(self._op(dist.isend, message, peer))
        for peer in sorted({peer for each, _, _ in routes for peer in each.into}):
            wanted = [(*each.into[peer], target) for each, _, target in routes if peer in each.into]
            message, parts = _message([(number, target) for number, _, _, target in wanted])
            for (_, which, index, target), part in zip(wanted, parts, strict=True):
                self._unpacks.append(_copy(part, which, target, index))
            self._ops.append(self._op(dist.irecv, message, peer))

    def _op(self, op: Callable[..., dist.Work | None], message: torch.Tensor, peer: int) -> dist.P2POp:
        return dist.P2POp(op, message, group=self.group, group_peer=peer)

    def start(self) -> None:
        """Pack the tiles to send, post all messages, then copy the tiles that stay on the rank."""
        if self._ops:
            for pack in self._packs:
                pack()
            with blaming(self.group, [op.group_peer for op in self._ops]):
                self._works = dist.batch_isend_irecv(self._ops)
        for copy in self._copies:
            copy()

    def finish(self) -> None:
        """Wait for all messages, and unpack them."""
        for number, work in enumerate(self._works):
            with blaming(self.group, [op.group_peer for op in self._ops[number:]]):
                work.wait()
        for unpack in self._unpacks:
            unpack()


def _message(parts: Sequence[tuple[int, torch.Tensor]]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return a message for a number of tiles of each of some tensors, and its parts [tiles, numel]."""
    sizes = [-(-number * _tile_bytes(like) // ALIGNED) * ALIGNED for number, like in parts]
    message = torch.empty(sum(sizes), dtype=torch.uint8, device=parts[0][1].device)
    return message, [
        room[: number * _tile_bytes(like)].view(like.dtype).view(number, -1)
        for room, (number, like) in zip(message.split(sizes), parts, strict=True)
    ]


def _tile_bytes(tiles: torch.Tensor) -> int:
    return tiles.shape[1] * tiles.itemsize


def _copy(source: torch.Tensor, rows: Index, to: torch.Tensor, target: Index | None = None) -> Callable[[], object]:
    """Return a step that copies rows of `source`: to the `target` rows of `to`, or to all of its rows in order."""
    here = torch.from_numpy(np.ascontiguousarray(rows)).to(source.device)
    if target is None:
        return partial(torch.index_select, source, 0, here, out=to)
    there = torch.from_numpy(np.ascontiguousarray(target)).to(to.device)
    return lambda: to.index_copy_(0, there, source.index_select(0, here))
