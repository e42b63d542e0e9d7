"""Tiles between ranks: which of them cross, and the messages that carry them, one for each pair of ranks.

All ranks plan the whole schedule, so that each knows what it has to send and what comes. A tile that several cores of a
rank receive crosses once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from wafer_triton.emulate.ranks.group import blaming
from wafer_triton.emulate.ranks.shards import Shard
from wafer_triton.schedule.rounds import Index

ALIGNED = 16  # bytes, to which the parts of a message are rounded up


@dataclass(frozen=True, eq=False)
class SendRecv:
    """The send/recv plan of one rank: tiles from rows of memory to rows of memory, each of the rank that holds them.

    `sent` and `got` are of tiles that stay on the rank. `out` has the rows that each other rank is sent, `into` the
    number of tiles that each sends, which of them are wanted, and where. `crossing` tiles cross between any two ranks.
    """

    sent: Index
    got: Index
    out: dict[int, Index]
    into: dict[int, tuple[int, Index, Index]]
    crossing: int


def route(shard: Shard, homes: Index, receivers: Index, here: Index, there: Index) -> SendRecv:
    """The route of tiles from the cores `homes`, in rows `here` of their ranks, to the `receivers`, in rows `there`."""
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
    """The messages of some plans, each between two tensors [tiles, numel], packed to one for each pair of ranks."""

    def __init__(self, routes: Sequence[tuple[SendRecv, torch.Tensor, torch.Tensor]], group: dist.ProcessGroup) -> None:
        self.bytes = sum(each.crossing * _tile_bytes(source) for each, source, _ in routes)
        self.group = group
        self._packs: list[Callable[[], object]] = []
        self._unpacks: list[Callable[[], object]] = []
        self._ops: list[dist.P2POp] = []
        self._works: list[dist.Work] = []
        for peer in sorted({peer for each, _, _ in routes for peer in each.out}):
            rows = [(each.out[peer], source) for each, source, _ in routes if peer in each.out]
            message, parts = _message([(len(index), source) for index, source in rows])
            for (index, source), part in zip(rows, parts, strict=True):
                self._packs.append(_pack(source, _on(index, source), part))
            self._ops.append(self._op(dist.isend, message, peer))
        for peer in sorted({peer for each, _, _ in routes for peer in each.into}):
            wanted = [(*each.into[peer], target) for each, _, target in routes if peer in each.into]
            message, parts = _message([(number, target) for number, _, _, target in wanted])
            for (number, which, index, target), part in zip(wanted, parts, strict=True):
                every = np.array_equal(which, np.arange(number))
                self._unpacks.append(_unpack(target, _on(index, target), part, None if every else _on(which, target)))
            self._ops.append(self._op(dist.irecv, message, peer))

    def _op(self, op: Callable[..., dist.Work | None], message: torch.Tensor, peer: int) -> dist.P2POp:
        return dist.P2POp(op, message, group=self.group, group_peer=peer)

    def start(self) -> None:
        """Pack what is sent, and post all messages."""
        if self._ops:
            for pack in self._packs:
                pack()
            with blaming(self.group, [op.group_peer for op in self._ops]):
                self._works = dist.batch_isend_irecv(self._ops)

    def finish(self) -> None:
        """Wait for all messages, and unpack what came."""
        for number, work in enumerate(self._works):
            with blaming(self.group, [op.group_peer for op in self._ops[number:]]):
                work.wait()
        for unpack in self._unpacks:
            unpack()


class Gather:
    """Brings the tiles that cores hold in an iteration from rows of `tiles` to `to`."""

    def __init__(
        self, tiles: torch.Tensor, rows: Index, begins: Index, gives: Index, cores: Index, to: torch.Tensor
    ) -> None:
        self.tiles, self.to = tiles, to
        self.rows, self.begins, self.gives, self.cores = (
            torch.from_numpy(index).to(tiles.device) for index in (rows, begins, gives, cores)
        )
        self.held = self.begins

    def begin(self) -> None:
        """Go back to the first iteration."""
        self.held = self.begins

    def step(self) -> None:
        """Bring the tiles of this iteration, and go on to the next."""
        torch.index_select(self.tiles, 0, self.rows[self.held[self.cores]], out=self.to)
        self.held = self.held.index_select(0, self.gives)


def copied(found: SendRecv, source: torch.Tensor, target: torch.Tensor) -> Callable[[], object]:
    """A step that copies the tiles of a route that stay on the rank."""
    sent, got = (torch.from_numpy(index).to(source.device) for index in (found.sent, found.got))
    return lambda: target.index_copy_(0, got, source.index_select(0, sent))


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


def _on(index: Index, like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(index)).to(like.device)


def _pack(source: torch.Tensor, rows: torch.Tensor, part: torch.Tensor) -> Callable[[], object]:
    return lambda: torch.index_select(source, 0, rows, out=part)


def _unpack(
    target: torch.Tensor, rows: torch.Tensor, part: torch.Tensor, which: torch.Tensor | None
) -> Callable[[], object]:
    return lambda: target.index_copy_(0, rows, part if which is None else part.index_select(0, which))
