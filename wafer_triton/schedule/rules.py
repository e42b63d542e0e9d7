"""The rules that every schedule must obey, checked when it is built.

- Every buffer and slot exists, and every position is on the mesh.
- Every message has a sender and a receiver.
- A slot of a core receives from one sender in a round.
- A slot that a core sends in a round is not overwritten in it.
- A local operation does not write its inputs, unless it works element by element.
- A round follows its pattern (see `patterns`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn
from weakref import WeakSet

import numpy as np

from wafer_triton import local
from wafer_triton.errors import ScheduleError, shown
from wafer_triton.local import SlotOperand
from wafer_triton.schedule import patterns
from wafer_triton.schedule.accesses import Access, cells, common_lines, pairs, slots_at
from wafer_triton.schedule.repeat import Repeat, Step, comings, count, flat
from wafer_triton.schedule.rounds import Cores, Exchange, Index, Local, Round, Slot
from wafer_triton.schedule.schedule import Schedule


@dataclass(frozen=True)
class Finding:
    """A fault: its kind, a message, its round (from 0), and its core, a logical (row, column) or a number."""

    verdict: str
    message: str
    round: int | None = None
    core: tuple[int, int] | int | None = None

    def __str__(self) -> str:
        where = [f"core {self.core}"] * (self.core is not None) + [f"round {self.round}"] * (self.round is not None)
        place = f" ({', '.join(where)})" if where else ""
        return f"{self.verdict}{place}: {self.message}"


def validate(schedule: Schedule) -> None:
    """Raise ScheduleError, naming round, buffer and core, for the first rule that the schedule breaks."""
    if schedule in _VALID:
        return
    for finding in findings(schedule):
        raise ScheduleError(finding.message)
    _VALID.add(schedule)


_VALID: WeakSet[Schedule] = WeakSet()  # schedules that break no rule


@contextmanager
def reading(schedule: Schedule) -> Iterator[None]:
    """Raise the ScheduleError of the first broken rule where reading a schedule, changed by hand, raises KeyError."""
    try:
        yield
    except (KeyError, IndexError):
        validate(schedule)
        raise


def findings(schedule: Schedule) -> Iterator[Finding]:
    """Yield the first broken rule of every round."""
    seen: set[int] = set()
    for number, round_ in _rounds(schedule):
        if id(round_) in seen:  # a repetition yields the same Round again
            continue
        seen.add(id(round_))
        try:
            _Check(schedule, number, round_).run()
        except _Broken as broken:
            yield broken.finding


def _rounds(schedule: Schedule) -> Iterator[tuple[int, Round]]:
    """Yield with their numbers the rounds of each repetition once, then those of later times that may break a rule.

    A time that only exchanges mesh rows breaks none that the first does not.
    """
    for coming in comings(schedule.rounds.steps):
        yield coming.number, coming.round
    kept = []  # or another round would take the identity of one that is made here
    for number, round_ in _advanced(schedule.rounds.steps, 0):
        kept.append(round_)
        yield number, round_


def _advanced(steps: Iterable[Step], number: int) -> Iterator[tuple[int, Round]]:
    """Yield the rounds with slots that advance: of the last time, and of each time where they may meet slots by core.

    Fixed slots of one buffer advance together, so that two of them meet in the first time or never.
    """
    for step in steps:
        if isinstance(step, Repeat):
            yield from _advanced(step.steps, number)
            for at, round_ in enumerate(flat(step.steps) if step.slots else ()):
                first = 1 if _by_core(round_, step) else step.times - 1
                for time in range(first, step.times):
                    yield number + at + time * step.each, step.advanced(round_, time)
        number += count((step,))


def _by_core(round_: Round, repeat: Repeat) -> bool:
    """Return whether cores of a round take slots of their own in a buffer whose fixed slots advance."""
    ends = [slot for one in round_.exchanges for slot in (one.src, one.dst)]
    used = [*ends, *(slot for op in round_.locals for slot in (*op.outs, *op.ins))]
    return any(slot.buffer in repeat.slots and not slot.is_fixed for slot in used)


def title(schedule: Schedule, number: int) -> str:
    """Return the beginning of a message: the schedule, the round and its label."""
    label = schedule.rounds[number].label
    return f"{schedule.name}, round {number}" + (f" ({label})" if label else "")


class _Broken(Exception):
    def __init__(self, finding: Finding) -> None:
        self.finding = finding


class _Check:
    """One round under test."""

    def __init__(self, schedule: Schedule, number: int, round_: Round) -> None:
        self.schedule = schedule
        self.mesh = schedule.mesh
        self.number = number
        self.round = round_

    def run(self) -> None:
        for exchange in self.round.exchanges:
            self.exchange(exchange)
        for op in self.round.locals:
            self.local(op)
        self.conflicts()
        lie = patterns.untrue(self.round, self.mesh)
        if lie is not None:
            self.fail("malformed", *lie)

    def fail(self, verdict: str, message: str, core: tuple[int, int] | None = None) -> NoReturn:
        raise _Broken(Finding(verdict, f"{title(self.schedule, self.number)}: {message}", self.number, core))

    def slot(self, slot: Slot) -> None:
        buffer = self.schedule.buffers.get(slot.buffer)
        if buffer is None:
            declared = ", ".join(self.schedule.buffers)
            self.fail("malformed", f"buffer {slot.buffer!r} is not declared; declared: {declared}")
        index = 0 if slot.index is None else slot.index
        if isinstance(index, np.ndarray) and not index.size:
            self.fail("malformed", f"{slot.buffer!r} names no slot for {self.mesh.length(slot.axis)} positions")
        least, most = (index.min(), index.max()) if isinstance(index, np.ndarray) else (index, index)
        if least < 0 or most >= buffer.slots:
            self.fail("malformed", f"slot {least}..{most} of {slot.buffer!r} does not exist; it has {buffer.slots}")
        if isinstance(index, np.ndarray) and index.shape != (self.mesh.length(slot.axis),):
            length = self.mesh.length(slot.axis)
            self.fail("malformed", f"{slot.buffer!r} names {index.size} slots for {length} positions")

    def exchange(self, exchange: Exchange) -> None:
        if not isinstance(exchange.axis, str) or exchange.axis not in ("x", "y"):
            self.fail("malformed", f"axis {shown(exchange.axis)} is neither 'x' nor 'y'")
        self.slot(exchange.src)
        self.slot(exchange.dst)
        source, target = (self.schedule.buffers[slot.buffer] for slot in (exchange.src, exchange.dst))
        if (source.numel, source.dtype) != (target.numel, target.dtype):
            self.fail(
                "malformed",
                f"{source.name} {list(source.tile)} {source.dtype} does not fit {target.name} "
                f"{list(target.tile)} {target.dtype}",
            )
        whole = [slot.index is None for slot in (exchange.src, exchange.dst)]
        if any(whole) and (not all(whole) or source.slots != target.slots):
            self.fail("malformed", f"{exchange.src} of {source.slots} slots does not fit {exchange.dst}")
        what = f" ({exchange.src} to {exchange.dst})"
        self.on_mesh(exchange.senders, "send", what, exchange.receivers)
        self.on_mesh(exchange.receivers, "receive", what, exchange.senders)
        self.paired(exchange)

    def paired(self, exchange: Exchange) -> None:
        """Demand a send for every receive and a receive for every send; without it a core waits for ever."""
        send, recv = exchange.send, exchange.recv
        message = f"a message {exchange.src} to {exchange.dst} has a sender or a receiver, not both"
        if send.shape != recv.shape:
            message = f"{send.shape} senders for {recv.shape} receivers of {exchange.dst}"
            if send.shape[:-1] == recv.shape[:-1]:
                longer, shorter = (send, recv) if send.shape[-1] > recv.shape[-1] else (recv, send)
                self.fail("deadlock", message, self.core(exchange, longer, (0,) * (send.ndim - 1) + shorter.shape[-1:]))
            self.fail("deadlock", message)
        alone = np.argwhere((send < 0) != (recv < 0)) if send.ndim == 2 else send[:0]  # -1 stands in rows alone
        if alone.size:
            self.fail("deadlock", message, self.core(exchange, np.maximum(send, recv), tuple(alone[0])))

    def on_mesh(self, cores: Cores, role: str, what: str = "", partners: Cores | None = None) -> None:
        length, across = self.mesh.length(cores.axis), self.mesh.length("y" if cores.axis == "x" else "x")
        lines, at, least = cores.lines, cores.at, -1 if cores.at.ndim == 2 else 0
        if at.ndim == 2 and len(at) != (across if lines is None else len(lines)):
            self.fail("malformed", f"{len(at)} rows of positions for {across if lines is None else len(lines)} lines")
        if lines is not None and lines.size and (lines.min() < 0 or lines.max() >= across):
            worst = lines.max() if lines.max() >= across else lines.min()
            self.fail("off-mesh", f"line {worst} is off the mesh of {across} lines")
        if lines is not None and len(set(lines.tolist())) < lines.size:
            self.fail("malformed", f"lines {lines.tolist()} name a line twice{what}")
        if at.size and (at.min() < least or at.max() >= length):
            off = np.argwhere((at < least) | (at >= length))
            worst = at[tuple(off[0])]
            core = (
                self.core(partners, partners.at, tuple(off[0])) if partners and partners.at.shape == at.shape else None
            )
            self.fail("off-mesh", f"{role} off the mesh: position {worst} along {cores.axis} of {length}{what}", core)

    def core(self, cores: Cores | Exchange, at: Index, place: tuple[int, ...]) -> tuple[int, int]:
        """Return the core at `place` of positions [n] or [lines, n]."""
        line = 0 if len(place) == 1 else place[0]
        across = line if cores.lines is None else cores.lines[line]
        pair = (int(across), int(at[place]))
        return pair if cores.axis == "x" else pair[::-1]

    def local(self, op: Local) -> None:
        try:
            definition = local.find(op.op)
        except ScheduleError as unknown:
            self.fail("malformed", str(unknown))
        outs, ins = ([self.operand(slot) for slot in slots] for slots in (op.outs, op.ins))
        wrong = definition.fault(op.params, outs, ins)
        if wrong is not None:
            self.fail("malformed", wrong)
        if op.where is not None:
            if not isinstance(op.where.axis, str) or op.where.axis not in ("x", "y"):
                self.fail("malformed", f"{op.op}: axis {shown(op.where.axis)} is neither 'x' nor 'y'")
            self.on_mesh(op.where, op.op)
            twice = self.repeated(op.where)
            if twice is not None:
                self.fail("malformed", f"{op.op} names core {twice} twice", twice)
        for out in op.outs:
            for read in op.ins:
                # element by element, a slot may become itself, but not a part of itself
                aligned = definition.elementwise and (out.index is None) == (read.index is None)
                if not aligned and out.buffer == read.buffer:
                    core = self.meeting(Access(out, op.where), Access(read, op.where))
                    if core is not None:
                        self.fail("overwritten", f"{op.op} writes {out}, which it reads", core)

    def operand(self, slot: Slot) -> SlotOperand:
        """Check a slot as an operand of an operation; fail unless it exists."""
        self.slot(slot)
        buffer = self.schedule.buffers[slot.buffer]
        return SlotOperand(str(slot), buffer.numel * (buffer.slots if slot.index is None else 1), buffer.dtype)

    def conflicts(self) -> None:
        """Demand one sender a slot; no tile that a core sends is overwritten in the same round."""
        for exchange in self.round.exchanges:
            twice = self.repeated(exchange.receivers)
            if twice is not None:
                self.fail("two-writers", f"core {twice} receives two tiles in {exchange.dst}", twice)
        writes = [Access(exchange.dst, exchange.receivers) for exchange in self.round.exchanges]
        reads = [Access(exchange.src, exchange.senders) for exchange in self.round.exchanges]
        for first, second in pairs(writes, writes):
            if first is not second:
                self.apart(first, second, "two-writers", "receives two tiles in {}")
        for write, read in pairs(writes, reads):
            self.apart(write, read, "overwritten", "receives into {}, which it sends")
        written = {
            (out.buffer, id(out.index) if not out.is_fixed else out.index, id(op.where)): (out, op)
            for op in reversed(self.round.locals)
            for out in op.outs
        }
        outs = [Access(out, op.where, op.op) for out, op in written.values()]
        for write, read in pairs(outs, reads):
            self.apart(write, read, "overwritten", f"overwrites {{}} by {write.op} while it is being sent")

    def repeated(self, cores: Cores) -> tuple[int, int] | None:
        """Return a core that `cores` names twice."""
        places = cores.at if cores.at.ndim == 1 else cores.flat(self.mesh)
        counts = np.bincount(places)
        if counts.size == 0 or counts.max() < 2:
            return None
        if cores.at.ndim == 1:
            return self.core(cores, np.array([counts.argmax()]), (0,))
        row, col = divmod(int(counts.argmax()), self.mesh.shape[1])
        return row, col

    def apart(self, first: Access, second: Access, verdict: str, message: str) -> None:
        """Fail with the message about the first one's slot if two accesses touch the same slot of the same core."""
        core = self.meeting(first, second)
        if core is not None:
            flat = np.array([core[0] * self.mesh.shape[1] + core[1]])
            slot = (
                first.slot
                if first.slot.is_fixed
                else Slot(first.slot.buffer, int(first.slot.of_cores(flat, self.mesh)[0]))
            )
            self.fail(verdict, f"core {core} {message.format(slot)}", core)

    def meeting(self, first: Access, second: Access) -> tuple[int, int] | None:
        """Return a core of which two accesses of the same buffer touch the same slot."""
        slots = self.schedule.buffers[first.slot.buffer].slots
        axis = next((access.cores.axis for access in (first, second) if access.cores is not None), "x")
        everywhere = Cores(axis, np.arange(self.mesh.length(axis)))
        first_cores, second_cores = (access.cores or everywhere for access in (first, second))
        if first_cores.axis == second_cores.axis and first_cores.at.ndim == second_cores.at.ndim == 1:
            lines = common_lines(first_cores.lines, second_cores.lines, self.mesh.length("y" if axis == "x" else "x"))
            if not lines.size or set(first_cores.at.tolist()).isdisjoint(second_cores.at.tolist()):
                return None
            if all(slot.is_fixed or slot.axis == axis for slot in (first.slot, second.slot)):  # all lines are alike
                both = np.intersect1d(
                    cells(slots_at(first.slot, first_cores.at), first_cores.at, slots),
                    cells(slots_at(second.slot, second_cores.at), second_cores.at, slots),
                )
                return self.core(Cores(axis, both, lines), both // slots, (0,)) if both.size else None
        touching = [
            cells(None if slot.index is None else slot.of_cores(flat, self.mesh), flat, slots)
            for slot, flat in ((first.slot, first_cores.flat(self.mesh)), (second.slot, second_cores.flat(self.mesh)))
        ]
        touched = np.zeros(self.mesh.cores * slots, np.bool_)
        touched[touching[0]] = True
        both = touching[1][touched[touching[1]]]
        if not both.size:
            return None
        row, col = divmod(int(both.min()) // slots, self.mesh.shape[1])
        return row, col
