"""The checker: what a schedule would do wrong on the machine, as findings with a name, a core and a round.

    >>> found = check(made.schedule, Intent.of(made))
    >>> found.ok or print(found)

Three readings of a schedule, each with no value computed:
- round by round, the rules that every schedule must obey (`schedule.validate`), SRAM and routes;
- in order, which slots hold what has been written, read, or has arrived and was not read yet;
- if the intent is given, which tiles every slot holds and which parts every sum has (`wafer_triton.verify.provenance`).

| verdict | what it means |
| --- | --- |
| malformed | a buffer, slot, axis, operation or shape that does not exist or does not fit |
| off-mesh | a message to or from a core that the mesh does not have |
| deadlock | a core waits for a tile that no core sends, for a credit that none returns, or in a circle |
| two-writers | a slot of a core gets two tiles in one round |
| overwritten | a slot is written in the round that reads it, or before what arrived in it was read |
| unwritten-read | a core reads or sends a slot that nothing was written to |
| sram, routes | a core's buffers, or its router's colours, are more than the device has |
| misaligned | a product of tiles that do not belong together, or a sum of such products |
| double-count | a part that enters a sum twice |
| incomplete | a sum that lacks parts where it is used, or at the end |
| misplaced | a core that ends with another core's tile |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wafer_triton import local
from wafer_triton.count.routes import excess
from wafer_triton.errors import ScheduleError, SramError
from wafer_triton.schedule import sram
from wafer_triton.schedule.rounds import Cores, Exchange, Slot
from wafer_triton.schedule.rules import Finding, findings, title
from wafer_triton.verify.provenance import Intent, provenance
from wafer_triton.verify.state import Region, region

if TYPE_CHECKING:
    from wafer_triton.schedule.rounds import Schedule

__all__ = ["Finding", "Intent", "Verdict", "check"]

UNWRITTEN, WRITTEN, ARRIVED = range(3)


@dataclass(frozen=True)
class Verdict:
    """What the checker found, in order of rounds; `intended` says whether it knew what to expect."""

    schedule: str
    findings: tuple[Finding, ...]
    intended: bool

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    @property
    def names(self) -> frozenset[str]:
        """The verdicts that were given."""
        return frozenset(finding.verdict for finding in self.findings)

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings)) or f"{self.schedule}: nothing found"

    def demand(self) -> None:
        """Raise ScheduleError with all findings if there are any."""
        if self.findings:
            raise ScheduleError(str(self))


def check(schedule: Schedule, intent: Intent | None = None) -> Verdict:
    """Every fault found in a schedule, which may be a draft.

    Where the rules of a round are broken the later readings would be guesswork, so they are left out.
    """
    found = list(findings(schedule))
    broken = {one.round for one in found if one.verdict == "overwritten"}
    found += [circle for number in broken if number is not None for circle in _circle(schedule, number)]
    found += _overflow(schedule)
    if not any(finding.verdict in ("malformed", "off-mesh", "deadlock") for finding in found):
        over = excess(schedule)
        found += [over] if over is not None else []
        found += _Slots(schedule, intent).run()
        if intent is not None and not any(finding.verdict not in ("sram", "routes") for finding in found):
            found += provenance(schedule, intent)
    return Verdict(schedule.name, tuple(sorted(found, key=lambda one: one.round or 0)), intent is not None)


def _overflow(schedule: Schedule) -> list[Finding]:
    try:
        sram.check(schedule)
    except SramError as overflow:
        return [Finding("sram", str(overflow), sram.account(schedule).peak_round, schedule.mesh.origin)]
    return []


def _circle(schedule: Schedule, number: int) -> Iterator[Finding]:
    """Cores of a round that wait for each other: each writes into the slot that the next has yet to send."""
    exchanges, mesh = schedule.rounds[number].exchanges, schedule.mesh
    slots = {(one.src.buffer, one.src.index) for one in exchanges if one.src.is_fixed}
    waits: dict[int, set[int]] = {}
    for one in exchanges:
        if one.dst.is_fixed and (one.dst.buffer, one.dst.index) in slots:
            for sender, receiver in zip(one.senders.flat(mesh), one.receivers.flat(mesh), strict=True):
                waits.setdefault(int(sender), set()).add(int(receiver))
    while True:  # who waits for no one that waits goes on; the rest stand in circles
        free = {core for core, others in waits.items() if not others & waits.keys()}
        if not free:
            break
        waits = {core: others for core, others in waits.items() if core not in free}
    if not waits:
        return
    walk = [min(waits)]
    while walk[-1] not in walk[:-1]:
        walk.append(min(waits[walk[-1]] & waits.keys()))
    names = [divmod(core, mesh.shape[1]) for core in walk[walk.index(walk[-1]) :]]
    message = " waits for ".join(f"core {name}" for name in names)
    yield Finding("deadlock", f"{title(schedule, number)}: {message} to send first", number, names[0])


class _Slots:
    """Which slots of which cores hold something, round by round."""

    def __init__(self, schedule: Schedule, intent: Intent | None) -> None:
        self.schedule = schedule
        given = set(intent.given) if intent else set()
        given |= {name for name, buffer in schedule.buffers.items() if buffer.role in ("input", "resident")}
        given |= _read_first(schedule)
        self.state: dict[str, NDArray[np.uint8]] = {
            name: np.full((*schedule.mesh.shape, buffer.slots), WRITTEN if name in given else UNWRITTEN, np.uint8)
            for name, buffer in schedule.buffers.items()
        }
        self.sent = {one.src.buffer for round_ in schedule.rounds for one in round_.exchanges}
        self.number = 0
        self.found: list[Finding] = []

    def run(self) -> list[Finding]:
        for number, round_ in enumerate(self.schedule.rounds):
            self.number = number
            for exchange in round_.exchanges:
                self.read(exchange.src, exchange.senders, "sends")
            for exchange in round_.exchanges:
                self.arrive(exchange)
            for op in round_.locals:
                reads = (*op.ins, *op.outs) if local.find(op.op).updates(op.params) else op.ins
                for slot in reads:
                    self.read(slot, op.where, f"reads (by {op.op})")
                for slot in op.outs:
                    self.region(slot, op.where).put(self.state[slot.buffer], WRITTEN)
        return self.found

    def region(self, slot: Slot, cores: Cores | None) -> Region:
        return region(slot, cores, self.schedule.mesh)

    def note(self, verdict: str, core: tuple[int, int], message: str) -> None:
        where = title(self.schedule, self.number)
        self.found.append(Finding(verdict, f"{where}: core {core} {message}", self.number, core))

    def read(self, slot: Slot, cores: Cores | None, verb: str) -> None:
        state, here = self.state[slot.buffer], self.region(slot, cores)
        missing = here.get(state) == UNWRITTEN
        if missing.any():
            self.note("unwritten-read", here.core(missing), f"{verb} {slot}, to which nothing was written")
        here.put(state, WRITTEN)

    def arrive(self, exchange: Exchange) -> None:
        state, here = self.state[exchange.dst.buffer], self.region(exchange.dst, exchange.receivers)
        unread = here.get(state) == ARRIVED
        # a full circle carries tiles home whether or not they are needed again; they are not lost, their senders go on
        home = exchange.dst.buffer in self.sent and exchange.recv.shape[-1] == self.schedule.mesh.length(exchange.axis)
        if unread.any() and not home:
            self.note("overwritten", here.core(unread), f"gets a tile in {exchange.dst} before it read the last one")
        here.put(state, ARRIVED)


def _read_first(schedule: Schedule) -> set[str]:
    """Outputs that are read before anything is written to them: they are given as well (an all-reduce in place)."""
    written: set[str] = set()
    found: set[str] = set()
    for round_ in schedule.rounds:
        reads = {one.src.buffer for one in round_.exchanges}
        found |= reads - written
        written |= {one.dst.buffer for one in round_.exchanges}
        for op in round_.locals:
            found |= {slot.buffer for slot in op.ins} - written
            written |= {slot.buffer for slot in op.outs}
    return {name for name in found if name in schedule.buffers and schedule.buffers[name].role == "output"}
