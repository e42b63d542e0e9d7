"""The rules that every schedule must obey, checked when it is built by hand, and before it runs.

- Every buffer and slot exists, and every position is on the mesh.
- Every message has a sender and a receiver.
- A slot of a core receives from one sender in a round.
- A slot that a core sends in a round is not overwritten in it.
- A local operation does not write its inputs, unless it works element by element, nor two outputs into one slot.
- A core of a tree sends once, after all that it receives.
- Rows of a loop name each row once, and leave exchanges along y as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from wafer_triton import local
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import ScheduleError, shown
from wafer_triton.local import SlotOperand
from wafer_triton.schedule.access import Access, acts
from wafer_triton.schedule.rounds import Cores, Exchange, Index, Local, Moves, Round, Slot, disjoint, once
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.schedule.steps import Loop, Step, Tree, distinct, nth

UNREADABLE = ("malformed", "off-mesh", "deadlock")  # verdicts after which other readings would be guesswork


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


@once  # a schedule from `build` is counted, priced and bound, each of which asks
def validate(schedule: Schedule) -> None:
    """Raise ScheduleError, naming round, buffer and core, for the first rule that the schedule breaks."""
    if finding := next(findings(schedule), None):
        raise ScheduleError(finding.message)


@contextmanager
def reading(schedule: Schedule) -> Iterator[None]:
    """Raise the ScheduleError of the first broken rule where a schedule, changed by hand, cannot be read."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError):
        validate(schedule)
        raise


def findings(schedule: Schedule) -> Iterator[Finding]:
    """Yield the first broken rule of every round; if all can be read, those of loops and trees.

    A later time of a loop breaks no rule that the first does not: it exchanges mesh rows at the most.
    """
    check, readable = _Check(schedule), True
    for number, round_, _ in schedule.rounds.distinct():
        try:
            check.round(round_)
        except _Broken as broken:
            verdict, message, *core = broken.args
            readable &= verdict not in UNREADABLE
            yield Finding(verdict, f"{title(schedule, number)}: {message}", number, *core)
    if readable:
        yield from _of_steps(schedule, schedule.rounds.steps, 0)


def _of_steps(schedule: Schedule, steps: Iterable[Step], number: int) -> Iterator[Finding]:
    """Yield the broken rules of loops and of trees, the first of which has round `number`."""
    mesh = schedule.mesh
    for step in steps:
        if isinstance(step, Loop):
            if step.count and step.lines is not None and (wrong := _wrong_lines(step, step.lines, mesh)):
                yield Finding("malformed", f"{title(schedule, number)}: {wrong}", number)
            yield from _of_steps(schedule, step.body, number)
        elif isinstance(step, Tree) and (fault := step.stages.fault(mesh)):
            at, wrong = fault
            core = divmod(at, mesh.shape[1])
            yield Finding("malformed", f"{title(schedule, number)}: core {core} of a tree {wrong}", number, core)
        number += step.count


def _wrong_lines(loop: Loop, lines: Index, mesh: Mesh) -> str:
    """Return why lines do not turn a loop: each must be named once, and exchanges along the other axis stay."""
    kind, other, size = ("rows", "y", mesh.shape[0]) if loop.axis == "x" else ("columns", "x", mesh.shape[1])
    if not np.array_equal(np.sort(lines), np.arange(size)):
        return f"{kind} of a loop {lines.tolist()} do not name each of {size} {kind} once"
    for moves in dict.fromkeys(moves for one in distinct(loop.body) for moves in one.round.moves):
        if moves.axis == other and (
            moves.paired or replace(moves, send=lines[moves.send], recv=lines[moves.recv]) != moves
        ):
            return (
                f"{kind} of a loop change an exchange along {other} from {shown(moves.send)} to {shown(moves.recv)}, "
                f"which must stay the same"
            )
    return ""


def title(schedule: Schedule, number: int) -> str:
    """Return the beginning of a message: the schedule, the round and its label."""
    label = nth(schedule.rounds.steps, number).label
    return f"{schedule.name}, round {number}" + (f" ({label})" if label else "")


class _Broken(Exception):
    """The first broken rule of a round: verdict, message and, if it is of one, core."""


class _Check:
    """A schedule under test; `seen` are slots, moves, cores, and operations on buffers, that are right."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.mesh = schedule.mesh
        self.seen = set[Hashable]()

    def round(self, round_: Round) -> None:
        """Raise `_Broken` for the first rule that a round breaks."""
        for exchange in round_.exchanges:
            self.exchange(exchange)
        for op in round_.locals:
            self.local(op)
        self.conflicts(round_)

    def slot(self, slot: Slot) -> None:
        if slot in self.seen:
            return
        buffer = self.schedule.buffers.get(slot.buffer)
        if buffer is None:
            declared = ", ".join(self.schedule.buffers)
            raise _Broken("malformed", f"buffer {slot.buffer!r} is not declared; declared: {declared}")
        numbers, length = np.atleast_1d(0 if slot.index is None else slot.index), self.mesh.length(slot.axis)
        if not numbers.size:
            raise _Broken("malformed", f"{slot.buffer!r} names no slot for {length} positions")
        least, most = numbers.min(), numbers.max()
        if least < 0 or most >= buffer.slots:
            raise _Broken("malformed", f"slot {least}..{most} of {slot.buffer!r} does not exist; it has {buffer.slots}")
        if not slot.is_fixed and numbers.size != length:
            raise _Broken("malformed", f"{slot.buffer!r} names {numbers.size} slots for {length} positions")
        self.seen.add(slot)

    def exchange(self, exchange: Exchange) -> None:
        self.slot(exchange.src)
        self.slot(exchange.dst)
        source, target = (self.schedule.buffers[slot.buffer] for slot in (exchange.src, exchange.dst))
        if (source.numel, source.dtype) != (target.numel, target.dtype):
            raise _Broken(
                "malformed",
                f"{source.name} {list(source.tile)} {source.dtype} does not fit {target.name} "
                f"{list(target.tile)} {target.dtype}",
            )
        whole = [slot.index is None for slot in (exchange.src, exchange.dst)]
        if any(whole) and (not all(whole) or source.slots != target.slots):
            raise _Broken("malformed", f"{exchange.src} of {source.slots} slots does not fit {exchange.dst}")
        if exchange.moves not in self.seen:
            self.moves(exchange)
            self.seen.add(exchange.moves)

    def moves(self, exchange: Exchange) -> None:
        """Demand lines and positions on the mesh, and a sender and a receiver of each message.

        Without one a core waits for ever.
        """
        moves, what = exchange.moves, f"{exchange.src} to {exchange.dst}"
        length, across = self.mesh.length(moves.axis), self.mesh.length("y" if moves.axis == "x" else "x")
        lines, ends = moves.lines, (moves.send, moves.recv)
        if lines is not None:
            if wrong := _off_mesh("line", lines, across):
                raise _Broken("off-mesh", f"{wrong} ({what})")
            if not moves.paired and (lines[1:] == lines[:-1]).any():
                raise _Broken("malformed", f"lines {lines.tolist()} name a line twice ({what})")
        if np.concatenate(ends).view(np.uint64).max(initial=0) < length:  # less than 0 is most
            return
        alone = np.flatnonzero((moves.send == -1) != (moves.recv == -1))
        if alone.size:
            core = self.core(moves, np.maximum(*ends), int(alone[0]))
            raise _Broken("deadlock", f"a message {what} has a sender or a receiver, not both", core)
        for role, at, other in (("send", *ends), ("receive", *ends[::-1])):
            off = np.flatnonzero((at < 0) | (at >= length))
            if off.size:
                where = f"position {at[off[0]]} along {moves.axis} of {length}"
                raise _Broken(
                    "off-mesh", f"{role} off the mesh: {where} ({what})", self.core(moves, other, int(off[0]))
                )

    def core(self, moves: Moves, at: Index, message: int) -> tuple[int, int]:
        """Return the core at the position `at` of a message, on the first line that has it."""
        line = 0 if moves.lines is None else int(moves.lines[message if moves.paired else 0])
        pair = line, int(at[message])
        return pair if moves.axis == "x" else pair[::-1]

    def local(self, op: Local) -> None:
        try:
            definition = local.find(op.op)
        except ScheduleError as unknown:
            raise _Broken("malformed", str(unknown)) from unknown
        for slot in op.operands:
            self.slot(slot)
        alike = op.work, tuple([(slot.buffer, slot.index is None) for slot in op.operands])
        if alike not in self.seen:
            wrong = definition.fault(op.params, list(map(self.operand, op.outs)), list(map(self.operand, op.ins)))
            if wrong is not None:
                raise _Broken("malformed", wrong)
            self.seen.add(alike)
        if op.where is not None and op.where not in self.seen:
            self.where(op.op, op.where)
            self.seen.add(op.where)
        for out in op.outs:
            for read in op.ins:
                # element by element, a slot may become itself, but not a part of itself
                aligned = definition.elementwise and (out.index is None) == (read.index is None)
                if not aligned and out.buffer == read.buffer:
                    met = self.meeting(Access(out, op, writes=True), Access(read, op))
                    if met is not None:
                        raise _Broken("overwritten", f"{op.op} writes {out}, which it reads", met[1])

    def where(self, op: str, cores: Cores) -> None:
        """Raise unless the cores on which an operation runs are on the mesh, each named once."""
        for at, length, role in zip(cores.grid(self.mesh), self.mesh.shape, ("row", "column"), strict=True):
            if wrong := _off_mesh(role, at, length):
                raise _Broken("off-mesh", f"{op}: {wrong}")
        named = cores.flat(self.mesh)
        if not (named[1:] > named[:-1]).all():  # they are in order, but for some that are named twice
            named = np.sort(named)
            twice = divmod(int(named[1:][named[1:] == named[:-1]][0]), self.mesh.shape[1])
            raise _Broken("malformed", f"{op} names core {twice} twice", twice)

    def operand(self, slot: Slot) -> SlotOperand:
        """Return a slot as an operand of an operation."""
        buffer = self.schedule.buffers[slot.buffer]
        return SlotOperand(str(slot), buffer.slot_numel(slot), buffer.dtype)

    def conflicts(self, round_: Round) -> None:
        """Demand one sender a slot; no tile that a core sends is overwritten in the same round."""
        for exchange in round_.exchanges:
            moves = exchange.moves
            again = moves.recv[1:] == moves.recv[:-1]
            if moves.paired and moves.lines is not None:
                again &= moves.lines[1:] == moves.lines[:-1]
            if again.any():
                twice = self.core(moves, moves.recv, int(again.argmax()))
                raise _Broken("two-writers", f"core {twice} receives two tiles in {exchange.dst}", twice)
        (_, reads, writes), *computes = acts(round_)
        for first, second in _pairs(writes, writes):
            self.apart(first, second, "two-writers", "receives two tiles in {}")
        for write, read in _pairs(writes, reads):
            self.apart(write, read, "overwritten", "receives into {}, which it sends")
        for op, _, written in computes:
            for first, second in _pairs(written, written):
                assert op is not None
                self.apart(first, second, "two-writers", f"writes two outputs of {op.op} into {{}}")
        outs = {(access.slot, access.cores): access for act in reversed(computes) for access in act.writes}
        for write, read in _pairs([*outs.values()], reads):
            assert isinstance(write.by, Local)
            self.apart(write, read, "overwritten", f"overwrites {{}} by {write.by.op} while it is being sent")

    def apart(self, first: Access, second: Access, verdict: str, message: str) -> None:
        """Fail with the message about the first one's slot if two accesses touch the same slot of the same core."""
        met = self.meeting(first, second)
        if met is not None:
            slot, core = met
            raise _Broken(verdict, f"core {core} {message.format(first.slot if first.slot.is_fixed else slot)}", core)

    def meeting(self, first: Access, second: Access) -> tuple[Slot, tuple[int, int]] | None:
        """Return the first slot that two accesses of the same buffer touch, and its core."""
        both = [access.cores or Cores.of(None, None) for access in (first, second)]
        if disjoint([cores.rows for cores in both]) or disjoint([cores.cols for cores in both]):
            return None  # as in an alignment or a tree
        cells = first.cells(self.schedule)
        met = cells[np.isin(cells, second.cells(self.schedule))]
        return self.schedule.place(first.slot.buffer, int(met.min())) if met.size else None


def _off_mesh(kind: str, numbers: Index, length: int) -> str:
    """Return the words for rows, columns or lines that are off the mesh; "" if all are on it."""
    least, most = numbers.min(initial=0), numbers.max(initial=-1)
    worst = most if most >= length else least
    return "" if 0 <= worst < length else f"{kind} {worst} is off the mesh of {length} {kind}s"


def _pairs(firsts: Sequence[Access], seconds: Sequence[Access]) -> Iterator[tuple[Access, Access]]:
    """Yield pairs that may touch the same slot, those of one list once.

    The many pairs of different buffers or fixed slots are left out.
    """
    chosen = {each.slot.buffer for each in (*firsts, *seconds) if not isinstance(each.slot.index, int)}
    table = defaultdict[tuple[str, object], list[Access]](list)
    for second in seconds:
        name, index = second.slot.buffer, second.slot.index
        table[name, None if name in chosen else index].append(second)
    for first in firsts:
        name, index = first.slot.buffer, first.slot.index
        others = table[name, None if name in chosen else index]
        if firsts is seconds:
            others.pop(0)  # itself; earlier ones are gone
        yield from ((first, second) for second in others)
