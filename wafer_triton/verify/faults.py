"""The checker: the faults that a schedule would have on the machine, with a name, a core and a round.

    >>> verdict = check(recipe.schedule, Intent.of(recipe))
    >>> verdict.ok or print(verdict)

A schedule is read up to three times, the last only if no fault but sram and routes was found before:
- round by round, for the rules that every schedule must obey (`wafer_triton.schedule.rules`), SRAM and routes;
- across rounds, for slots that are read before they are written, or overwritten before they are read;
- if the intent is given, for values that differ from its reference (`wafer_triton.verify.values`).

| verdict | meaning |
| --- | --- |
| malformed | a buffer, slot, axis, operation or shape that does not exist or does not fit |
| off-mesh | a message to or from a core that the mesh does not have |
| deadlock | a core waits for a tile that no core sends, for a credit that no core raises, or in a circle of cores |
| two-writers | a slot of a core gets two tiles in one round |
| overwritten | a slot is written in the round or operation that reads it, or before its arrived tile was read |
| unwritten-read | a core reads or sends a slot before any write to it |
| unwritten-output | an output that no core writes |
| sram, routes | a core's buffers, or its router's colours, are more than the device has |
| wrong-values | a result that differs from the intent's reference, or a resident buffer that changed |
| nothing-compared | an intent without a reference, or with one that leaves a result out or makes NaN alone of it |
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wafer_triton import local
from wafer_triton.count.routes import excess
from wafer_triton.device.modes import host
from wafer_triton.errors import ScheduleError, SramError
from wafer_triton.schedule import sram
from wafer_triton.schedule.access import walk
from wafer_triton.schedule.rounds import Exchange, Local
from wafer_triton.schedule.rules import UNREADABLE, Finding, findings, title
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.text.quantity import numbered
from wafer_triton.text.table import Table
from wafer_triton.verify.intent import Intent
from wafer_triton.verify.state import core_finding, given_buffers
from wafer_triton.verify.values import copied_tiles, values

__all__ = ["Finding", "Intent", "Verdict", "check"]

UNWRITTEN, WRITTEN, ARRIVED = range(3)


@dataclass(frozen=True, repr=False)
class Verdict:
    """The checker's findings, in order of rounds; `intended` says whether an intent was given.

    `copied` has the numbers of tiles and of different tiles of each given buffer of which the intent calls some copies,
    `equal_slots` the slots of a core of those of which it calls all slots copies.
    """

    schedule: str
    findings: tuple[Finding, ...]
    intended: bool
    copied: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    equal_slots: Mapping[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether there are no findings."""
        return not self.findings

    @property
    def names(self) -> frozenset[str]:
        """The names of all findings."""
        return frozenset(finding.verdict for finding in self.findings)

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings)) or f"{self.schedule}: {self.summary}"

    @property
    def summary(self) -> str:
        """The number of findings; of a check without any also how many tiles differed, where not all did."""
        if self.findings:
            return numbered(len(self.findings), "findings")
        copies = ", ".join(
            f"{name}: {tiles:,} tiles, {many:,} different"
            + (f", all {self.equal_slots[name]} slots of a core equal" if name in self.equal_slots else "")
            for name, (tiles, many) in self.copied.items()
        )
        return f"nothing found ({copies})" if copies else "nothing found"

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        rows = ((finding.verdict, finding.round, finding.core, finding.message) for finding in self.findings)
        return Table.rows(
            ("fault", "round", "core", "what"), rows, title=f"{self.schedule}: {self.summary}"
        )._repr_html_()

    def demand(self) -> None:
        """Raise ScheduleError for findings, with the first of them and the number of the others."""
        if more := len(self.findings[1:]):
            raise ScheduleError(f"{self.findings[0]}; {more:,} more finding{'s' * (more > 1)}, which `check` lists")
        if self.findings:
            raise ScheduleError(str(self))


def check(schedule: Schedule, intent: Intent | None = None) -> Verdict:
    """Return the faults of a schedule, which may be a draft; `ok` of the verdict is True without any.

    With an intent that has a `reference` they include the first value that differs from it on random tiles in fp64.
    After a malformed, off-mesh or deadlocked round the later readings are left out: they would be guesswork. Raises
    ScheduleError for an intent that does not fit the schedule.
    """
    faults, copied, equal = list(findings(schedule)), dict[str, tuple[int, int]](), dict[str, int]()
    broken = {finding.round for finding in faults if finding.verdict == "overwritten"}
    faults += [circle for number in broken if number is not None for circle in _circle(schedule, number)]
    faults += _overflow(schedule)
    if not any(finding.verdict in UNREADABLE for finding in faults):
        over = excess(schedule)
        faults += [over] if over is not None else []
        faults += [*_slot_faults(schedule, intent), *_user_operation_faults(schedule)]
        if intent is not None and not any(finding.verdict not in ("sram", "routes") for finding in faults):
            with host():
                faults += values(schedule, intent)
                copied, equal = copied_tiles(schedule, intent), intent.equal_slots(schedule)
    in_order = tuple(sorted(faults, key=lambda finding: finding.round or 0))
    return Verdict(schedule.name, in_order, intent is not None, copied, equal)


def _overflow(schedule: Schedule) -> list[Finding]:
    try:
        sram.check(schedule)
    except SramError as overflow:
        return [Finding("sram", str(overflow), sram.account(schedule).peak_round, schedule.mesh.origin)]
    mesh = schedule.mesh
    limit, used = mesh.device.sram_bytes, sram.spans(schedule)
    return [
        Finding("sram", f"{schedule.name}: no round uses {name}, and its {size:,} B are more than the {limit:,} B of "
                        f"SRAM on {mesh.device.name}; leave it out")
        for name, buffer in schedule.buffers.items()
        if name not in used and (size := buffer.bytes * mesh.per_core) > limit
    ]  # fmt: skip


def _circle(schedule: Schedule, number: int) -> Iterator[Finding]:
    """Yield the deadlock of a round, if cores wait in a circle: each writes to a slot that the next has yet to send."""
    exchanges, mesh = schedule.rounds[number].exchanges, schedule.mesh
    slots = {exchange.src for exchange in exchanges if exchange.src.is_fixed}
    waits = TopologicalSorter[int]()
    ends = [exchange.moves.ends(mesh) for exchange in exchanges if exchange.dst in slots]
    for sender, receiver in sorted(np.concatenate(ends, 1).T.tolist() if ends else []):
        waits.add(sender, receiver)
    try:
        waits.prepare()
    except CycleError as error:
        _, *circle = reversed(error.args[1])  # each core waits for the next
        first = circle.index(min(circle))
        names = [divmod(core, mesh.shape[1]) for core in (*circle[first:], *circle[: first + 1])]
        message = " waits for ".join(f"core {name}" for name in names)
        yield Finding("deadlock", f"{title(schedule, number)}: {message} to send first", number, names[0])


def _user_operation_faults(schedule: Schedule) -> Iterator[Finding]:
    """Run each operation of a user on random tiles of one core; yield one that writes an input or reads an output."""
    tried = set[Local]()
    for number, round_ in enumerate(schedule.rounds):
        for op in round_.locals:
            alike = replace(op, where=None)
            definition = local.find(op.op)
            if not definition.own or alike in tried:
                continue
            tried.add(alike)
            import torch

            source = torch.Generator().manual_seed(0)
            sizes = [schedule.buffers[slot.buffer].slot_numel(slot) for slot in op.operands]
            tiles = [torch.rand(1, size, generator=source) for size in sizes]
            others = [tile.clone() for tile in tiles[: definition.outs]]
            try:
                definition.clear(others, op.params)
                for other in others:  # what is not declared differs between the two runs
                    other.copy_(torch.rand(other.shape, generator=source).where(other.isnan(), other))
                definition.run(*tiles, **op.params)
                unguarded: Any = inspect.unwrap(definition.run)
                unguarded(*others, *tiles[definition.outs :], **op.params)
            except ScheduleError as error:
                yield Finding("overwritten", f"{title(schedule, number)}: {error}", number)
                continue
            except Exception:  # random tiles may be none that the operation takes
                continue
            for name, tile, other in zip(definition.operands, tiles, others, strict=False):
                if not tile.allclose(other, equal_nan=True):
                    message = (
                        f"{op.op} reads its output {name}, or leaves a part of it as it was; declare it, as "
                        f"local_op(..., updates=({name!r},)), or write all of it"
                    )
                    yield Finding("unwritten-read", f"{title(schedule, number)}: {message}", number)


def _slot_faults(schedule: Schedule, intent: Intent | None) -> Iterator[Finding]:
    """Yield slots that are read before they are written, or get a tile before the last one was read.

    A slot of a core is unwritten, or written (and perhaps read), or it has a tile that arrived and is unread.
    """
    given = given_buffers(schedule, intent.given if intent else None)
    outputs = [name for name, buffer in schedule.buffers.items() if buffer.role == "output"]
    unnamed = {*outputs} - intent.given.keys() if intent else set[str]()
    sent = {exchange.src.buffer for round_ in schedule.rounds for exchange in round_.exchanges}
    states: dict[str, NDArray[np.uint8]] = {
        name: np.full(schedule.mesh.cores * buffer.slots, WRITTEN if name in given else UNWRITTEN, np.uint8)
        for name, buffer in schedule.buffers.items()
    }
    for number, access in walk(schedule):
        slot, by, cells = access.slot, access.by, access.cells(schedule)
        name, state = slot.buffer, states[slot.buffer]
        verdict, wrong, message, after = "", cells[:0], "", WRITTEN
        if not access.writes:
            verdict, wrong = "unwritten-read", cells[state[cells] == UNWRITTEN]
            verb = "sends" if isinstance(by, Exchange) else f"reads (by {by.op})"
            message = f"{verb} {slot}, to which nothing was written"
            if name in unnamed:
                message += f"; if {name} has values at the start, name it in the intent's `given`"
        elif isinstance(by, Exchange):
            after, message = ARRIVED, f"gets a tile in {slot} before it read the last one"
            # a full circle carries tiles home whether or not they are needed again: overwriting them loses nothing
            if name not in sent or by.moves.table[1].shape[-1] != schedule.mesh.length(by.axis):
                verdict, wrong = "overwritten", cells[state[cells] == ARRIVED]
        if wrong.size:
            _, core = schedule.place(name, int(wrong[0]))
            yield core_finding(schedule, verdict, number, core, message)
        state[cells] = after
    for name in outputs:
        if (states[name] == UNWRITTEN).all():
            message = f"{schedule.name}: no core writes the output {name}; write it, or drop it"
            yield Finding("unwritten-output", message)
