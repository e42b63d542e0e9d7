"""Transfers of tiles between ranks, with one message for each pair of ranks and each pair of buffers.

All ranks plan the whole schedule, so each knows what it sends and receives without asking. A tile that several cores of
a rank receive is sent to it once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from wafer_triton.emulate.ranks.group import naming_lost_rank
from wafer_triton.schedule.rounds import Index


class Rows(NamedTuple):
    """Where tiles lie: tile i in row rows[i] of the memory of rank ranks[i]; `memory` [tiles, numel] is this rank's."""

    memory: torch.Tensor
    ranks: Index
    rows: Index


class Transfer:
    """Copies of tiles, each from `Rows` to as many others; `bytes` are those sent between all ranks of the group.

    `copies` are those of this rank that stay there.
    """

    def __init__(self, copies: Sequence[tuple[Rows, Rows]], group: dist.ProcessGroup) -> None:
        self.bytes, self.group = 0, group
        self._packs = list[Callable[[], object]]()
        self.copies = list[Callable[[], object]]()
        self._unpacks = list[Callable[[], object]]()
        self._ops = list[dist.P2POp]()
        self._works = list[dist.Work]()
        for source, target in copies:
            ways = source.ranks * group.size() + target.ranks
            for way in np.unique(ways):
                tiles = ways == way
                self._add(source, target, *divmod(int(way), group.size()), source.rows[tiles], target.rows[tiles])

    def _add(self, source: Rows, target: Rows, sender: int, receiver: int, rows: Index, to: Index) -> None:
        """Plan the copies of `rows` of one rank `to` rows of another, or of the same."""
        rank, memory = self.group.rank(), source.memory
        if sender == receiver:
            if sender == rank:
                self.copies.append(_copy(memory, rows, target.memory, to))
            return
        rows, which = np.unique(rows, return_inverse=True)
        self.bytes += len(rows) * memory.shape[1] * memory.itemsize
        if rank not in (sender, receiver):
            return
        message = memory.new_empty(len(rows), memory.shape[1])
        if rank == sender:
            self._packs.append(partial(torch.index_select, memory, 0, _on(memory, rows), out=message))
            self._ops.append(dist.P2POp(dist.isend, message, group=self.group, group_peer=receiver))
        else:
            self._unpacks.append(_copy(message, which, target.memory, to))
            self._ops.append(dist.P2POp(dist.irecv, message, group=self.group, group_peer=sender))

    def start(self) -> None:
        """Pack the tiles to send, post all messages, then copy the tiles that stay on the rank."""
        if self._ops:
            for pack in self._packs:
                pack()
            with naming_lost_rank(self.group, [op.group_peer for op in self._ops]):
                self._works = dist.batch_isend_irecv(self._ops)
        for copy in self.copies:
            copy()

    def finish(self) -> None:
        """Wait for all messages, and unpack them."""
        for number, work in enumerate(self._works):
            with naming_lost_rank(self.group, [op.group_peer for op in self._ops[number:]]):
                work.wait()
        for unpack in self._unpacks:
            unpack()


def _copy(source: torch.Tensor, rows: Index, to: torch.Tensor, target: Index) -> Callable[[], object]:
    """Return a step that copies rows of `source` to rows `target` of `to`."""
    here, there = _on(source, rows), _on(to, target)
    return lambda: to.index_copy_(0, there, source.index_select(0, here))


def _on(memory: torch.Tensor, rows: Index) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(rows)).to(memory.device)
