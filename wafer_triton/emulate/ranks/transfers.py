"""Transfers of tiles between ranks: the send/recv plan of a rank, and one message for each pair of ranks.

All ranks plan the whole schedule, so each knows what it sends and receives without asking. A tile that several cores of
a rank receive is sent to it once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

from wafer_triton.emulate.ranks.group import naming_lost_rank
from wafer_triton.emulate.ranks.shards import Shard
from wafer_triton.schedule.rounds import Index

ALIGNMENT = 16  # bytes, of the parts of a message


@dataclass(frozen=True, eq=False)
class SendRecv:
    """The send/recv plan of one rank; rows are of its own memory [tiles, numel].

    Tiles that stay on the rank are copied from rows `local_src` to `local_dst`. `send` has the rows to send to each
    other rank. `recv` has, for each other rank, the number of tiles in its message, which of them go to each row, and
    the rows. `crossing` is the number of tiles sent between all ranks.
    """

    local_src: Index
    local_dst: Index
    send: dict[int, Index]
    recv: dict[int, tuple[int, Index, Index]]
    crossing: int


def route(shard: Shard, homes: Index, receivers: Index, src_rows: Index, dst_rows: Index) -> SendRecv:
    """Return the plan that copies tiles of cores `homes` to cores `receivers`.

    `src_rows` and `dst_rows` are the tiles' rows in the memory of the ranks that hold these cores.
    """
    source, target = shard.partition.owner[homes], shard.partition.owner[receivers]
    inside = (source == shard.rank) & (target == shard.rank)
    across = np.flatnonzero(source != target)
    send, recv, crossing = dict[int, Index](), dict[int, tuple[int, Index, Index]](), 0
    ways = source[across] * len(shard.partition.owner) + target[across]
    for way in np.unique(ways):
        pairs = across[ways == way]
        first, second = divmod(int(way), len(shard.partition.owner))
        rows, which = np.unique(src_rows[pairs], return_inverse=True)
        crossing += len(rows)
        if first == shard.rank:
            send[second] = rows
        if second == shard.rank:
            recv[first] = len(rows), which, dst_rows[pairs]
    return SendRecv(src_rows[inside], dst_rows[inside], send, recv, crossing)


class Transfer:
    """A transfer by some plans, each between two tensors [tiles, numel], with one message for each pair of ranks."""

    def __init__(self, routes: Sequence[tuple[SendRecv, torch.Tensor, torch.Tensor]], group: dist.ProcessGroup) -> None:
        self.bytes = sum(each.crossing * _tile_bytes(source) for each, source, _ in routes)
        self.group = group
        self._packs = list[Callable[[], object]]()
        self._unpacks = list[Callable[[], object]]()
        self._ops = list[dist.P2POp]()
        self._works = list[dist.Work]()
        self._copies = [
            _copy(source, each.local_src, to, each.local_dst) for each, source, to in routes if len(each.local_src)
        ]
        for peer in sorted({peer for each, _, _ in routes for peer in each.send}):
            rows = [(each.send[peer], source) for each, source, _ in routes if peer in each.send]
            message, parts = _message([(len(index), source) for index, source in rows])
            for (index, source), part in zip(rows, parts, strict=True):
                self._packs.append(_copy(source, index, part))
            self._ops.append(self._op(dist.isend, message, peer))
        for peer in sorted({peer for each, _, _ in routes for peer in each.recv}):
            wanted = [(*each.recv[peer], target) for each, _, target in routes if peer in each.recv]
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
            with naming_lost_rank(self.group, [op.group_peer for op in self._ops]):
                self._works = dist.batch_isend_irecv(self._ops)
        for copy in self._copies:
            copy()

    def finish(self) -> None:
        """Wait for all messages, and unpack them."""
        for number, work in enumerate(self._works):
            with naming_lost_rank(self.group, [op.group_peer for op in self._ops[number:]]):
                work.wait()
        for unpack in self._unpacks:
            unpack()


def _message(parts: Sequence[tuple[int, torch.Tensor]]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return a message with room for (number, like) tiles of each kind, and views [number, numel] of its parts."""
    sizes = [-(-number * _tile_bytes(like) // ALIGNMENT) * ALIGNMENT for number, like in parts]
    message = torch.empty(sum(sizes), dtype=torch.uint8, device=parts[0][1].device)
    return message, [
        room[: number * _tile_bytes(like)].view(like.dtype).view(number, -1)
        for room, (number, like) in zip(message.split(sizes), parts, strict=True)
    ]


def _tile_bytes(tiles: torch.Tensor) -> int:
    return tiles.shape[1] * tiles.itemsize


def _copy(source: torch.Tensor, rows: Index, to: torch.Tensor, target: Index | None = None) -> Callable[[], object]:
    """Return a step that copies rows of `source` to rows `target` of `to`, or to all of its rows in order."""
    here = torch.from_numpy(np.ascontiguousarray(rows)).to(source.device)
    if target is None:
        return partial(torch.index_select, source, 0, here, out=to)
    there = torch.from_numpy(np.ascontiguousarray(target)).to(to.device)
    return lambda: to.index_copy_(0, there, source.index_select(0, here))
