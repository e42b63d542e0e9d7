"""What a round reads and writes, said once: which slots, on which cores, in which order.

A round is a few acts. In the first its exchanges read the tiles that they send, then write those that arrive. In each
further one a local operation reads its inputs, and the outputs that it updates, then writes its outputs. So in an act
everything is read before anything is written. Rules, checker, counts and executors go by this.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from wafer_triton import local
from wafer_triton.schedule.rounds import Cores, Exchange, Index, Local, Round, Slot
from wafer_triton.schedule.schedule import Schedule


class Access(NamedTuple):
    """A slot that an exchange or a local operation reads or `writes`; of an output with its `number`."""

    slot: Slot
    by: Exchange | Local
    writes: bool = False
    number: int = 0

    @property
    def cores(self) -> Cores | None:
        """The cores of which the slot is accessed (None: all)."""
        if isinstance(self.by, Local):
            return self.by.where
        return self.by.moves.receivers if self.writes else self.by.moves.senders

    def cells(self, schedule: Schedule) -> Index:
        """Return where the tiles lie, see `Schedule.cells`."""
        return schedule.cells(self.slot, self.cores)

    def keeps(self, schedule: Schedule) -> bool:
        """Return whether the slot keeps some of what it held before it is written, or is added to."""
        if isinstance(self.by, Exchange):
            return False
        numel = schedule.buffers[self.slot.buffer].slot_numel(self.slot)
        return local.find(self.by.op).keeps(self.by.params, numel, self.number)


class Act(NamedTuple):
    """The exchanges of a round (`op` is None), or a local operation."""

    op: Local | None
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]


def acts(round_: Round) -> list[Act]:
    """Return the acts of a round in order, the one of its exchanges first."""
    sent = tuple([Access(one.src, one) for one in round_.exchanges])
    every = [Act(None, sent, tuple([Access(one.dst, one, True) for one in round_.exchanges]))]
    for op in round_.locals:
        reads = local.find(op.op).sources(op.params, op.outs, op.ins)
        writes = tuple([Access(out, op, True, number) for number, out in enumerate(op.outs)])
        every.append(Act(op, tuple([Access(slot, op) for slot in reads]), writes))
    return every


def accesses(round_: Round) -> list[Access]:
    """Return all accesses of a round in order."""
    return [access for act in acts(round_) for access in (*act.reads, *act.writes)]


def walk(schedule: Schedule) -> Iterator[tuple[int, Access]]:
    """Yield all accesses of a schedule in order, each with the number of its round."""
    for number, round_ in enumerate(schedule.rounds):
        yield from ((number, access) for access in accesses(round_))


def written(round_: Round) -> frozenset[str]:
    """Return the names of the buffers that a round writes."""
    return frozenset([access.slot.buffer for access in accesses(round_) if access.writes])


def overlaps(round_: Round) -> bool:
    """Return whether compute runs beside the exchange: no local operation touches what arrives in the round."""
    arriving = {exchange.dst.buffer for exchange in round_.exchanges}
    return arriving.isdisjoint(slot.buffer for op in round_.locals for slot in op.operands)


def fills(schedule: Schedule, round_: Round, name: str) -> bool:
    """Return whether the first act of a round that touches a buffer overwrites all of it without reading it."""
    for act in acts(round_):
        writes = [access for access in act.writes if access.slot.buffer == name]
        if any(access.slot.buffer == name for access in act.reads):
            return False
        if writes:
            filled = np.zeros(schedule.mesh.cores * schedule.buffers[name].slots, np.bool_)
            for access in writes:
                filled[access.cells(schedule)] |= not access.keeps(schedule)
            return bool(filled.all())
    return False
