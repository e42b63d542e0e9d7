"""The rules that every schedule must obey, checked when it is born.

Every buffer and slot exists; every position is on the mesh; a slot of a core receives from one sender in a round; a
slot that a core sends in a round is not overwritten in it; a local operation does not write what it reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import numpy as np
from numpy.typing import NDArray

from wafer_triton import local
from wafer_triton.errors import ScheduleError
from wafer_triton.mesh import Mesh
from wafer_triton.schedule.rounds import Cores, Exchange, Round, Slot

if TYPE_CHECKING:
    from wafer_triton.schedule.rounds import Schedule


def validate(schedule: Schedule) -> None:
    """Raise ScheduleError, naming round, buffer and core, for the first rule that the schedule breaks."""
    seen: set[int] = set()
    for number, round_ in enumerate(schedule.rounds):
        if id(round_) not in seen:  # rounds repeat by identity
            seen.add(id(round_))
            _Check(schedule, number, round_).run()


class _Check:
    """One round under test; `where` begins each message."""

    def __init__(self, schedule: Schedule, number: int, round_: Round) -> None:
        self.schedule = schedule
        self.mesh = schedule.mesh
        self.round = round_
        self.where = f"{schedule.name}, round {number}" + (f" ({round_.label})" if round_.label else "")

    def run(self) -> None:
        for exchange in self.round.exchanges:
            self.exchange(exchange)
        for op in self.round.locals:
            self.local(op.op, op.outs, op.ins)
            for slot in (*op.outs, *op.ins):
                self.slot(slot)
        self.conflicts()

    def fail(self, message: str) -> NoReturn:
        raise ScheduleError(f"{self.where}: {message}")

    def slot(self, slot: Slot) -> None:
        buffer = self.schedule.buffers.get(slot.buffer)
        if buffer is None:
            self.fail(f"buffer {slot.buffer!r} is not declared; declared: {', '.join(self.schedule.buffers)}")
        index = np.asarray(0 if slot.index is None else slot.index)
        if index.min() < 0 or index.max() >= buffer.slots:
            self.fail(f"slot {index.min()}..{index.max()} of {slot.buffer!r} does not exist; it has {buffer.slots}")
        if not slot.is_fixed and index.shape != (self.mesh.length(slot.axis),):
            self.fail(f"{slot.buffer!r} names {index.size} slots for {self.mesh.length(slot.axis)} positions")

    def exchange(self, exchange: Exchange) -> None:
        if exchange.axis not in ("x", "y"):
            self.fail(f"axis {exchange.axis!r} is neither 'x' nor 'y'")
        self.slot(exchange.src)
        self.slot(exchange.dst)
        source, target = (self.schedule.buffers[slot.buffer] for slot in (exchange.src, exchange.dst))
        if (source.numel, source.dtype) != (target.numel, target.dtype):
            self.fail(
                f"{source.name} {list(source.tile)} {source.dtype} does not fit {target.name} "
                f"{list(target.tile)} {target.dtype}"
            )
        length = self.mesh.length(exchange.axis)
        if exchange.send.shape != exchange.recv.shape:
            self.fail(f"{exchange.send.shape} senders for {exchange.recv.shape} receivers of {exchange.dst}")
        across = self.mesh.length("y" if exchange.axis == "x" else "x")
        lines = np.arange(across) if exchange.lines is None else exchange.lines
        if exchange.send.ndim == 2 and len(exchange.send) != len(lines):
            self.fail(f"{len(exchange.send)} rows of positions for {len(lines)} lines")
        if lines.size and (lines.min() < 0 or lines.max() >= across):
            self.fail(f"line {lines.max()} is off the mesh of {across} lines")
        for role, at in (("send", exchange.send), ("receive", exchange.recv)):
            least = -1 if at.ndim == 2 else 0
            if at.min() < least or at.max() >= length:
                worst = at.max() if at.max() >= length else at.min()
                self.fail(
                    f"{role} off the mesh: position {worst} along {exchange.axis} of {length} "
                    f"({exchange.src} to {exchange.dst})"
                )
        if ((exchange.send < 0) != (exchange.recv < 0)).any():
            self.fail(f"a message {exchange.src} to {exchange.dst} has a sender or a receiver, not both")

    def local(self, name: str, outs: tuple[Slot, ...], ins: tuple[Slot, ...]) -> None:
        op = local.find(name)
        if len(outs) != op.outs:
            self.fail(f"{name} writes {op.outs} slots, {len(outs)} given")
        for out in outs:
            for read in ins:
                if not op.elementwise and out.buffer == read.buffer and (out.index == read.index or not out.is_fixed):
                    self.fail(f"{name} writes {out}, which it reads")

    def conflicts(self) -> None:
        """One sender a slot; nothing that a core sends is overwritten in the same round."""
        writes = [(exchange.dst, exchange.receivers) for exchange in self.round.exchanges]
        reads = [(exchange.src, exchange.senders) for exchange in self.round.exchanges]
        for number, (slot, cores) in enumerate(writes):
            twice = self.repeated(cores)
            if twice is not None:
                self.fail(f"core {self.name(twice)} receives two tiles in {slot}")
            for other, others in writes[:number]:
                self.separate(slot, cores, other, others, f"receives two tiles in {slot}")
            for other, others in reads:
                self.separate(slot, cores, other, others, f"receives into {slot}, which it sends")
        for op in self.round.locals:
            cores = Cores("x", np.arange(self.mesh.length("x"))) if op.where is None else op.where
            for slot in op.outs:
                for other, others in reads:
                    self.separate(slot, cores, other, others, f"overwrites {slot} by {op.op} while it is being sent")

    def repeated(self, cores: Cores) -> int | None:
        """A core that is named twice."""
        found = cores.at if cores.at.ndim == 1 else cores.flat(self.mesh)
        counts = np.bincount(found)
        if counts.size == 0 or counts.max() < 2:
            return None
        first = Cores(cores.axis, np.array([counts.argmax()]), cores.lines) if cores.at.ndim == 1 else None
        return int(counts.argmax() if first is None else first.flat(self.mesh)[0])

    def separate(self, slot: Slot, cores: Cores, other: Slot, others: Cores, message: str) -> None:
        """Fail with the message if two accesses touch the same slot of the same core."""
        if slot.buffer != other.buffer:
            return
        if isinstance(slot.index, int) and isinstance(other.index, int) and slot.index != other.index:
            return
        if cores.axis == others.axis and (_apart(cores.lines, others.lines) or _apart(cores.at, others.at)):
            return
        slots = self.schedule.buffers[slot.buffer].slots
        both = np.intersect1d(_cells(slot, cores, self.mesh, slots), _cells(other, others, self.mesh, slots))
        if both.size:
            self.fail(f"core {self.name(int(both[0]) // slots)} {message}")

    def name(self, core: int) -> str:
        return str(divmod(core, self.mesh.shape[1]))


def _apart(one: NDArray[np.int64] | None, two: NDArray[np.int64] | None) -> bool:
    if one is None or two is None or one.ndim > 1 or two.ndim > 1:
        return False
    return np.intersect1d(one, two).size == 0


def _cells(slot: Slot, cores: Cores, mesh: Mesh, slots: int) -> NDArray[np.int64]:
    """The slots that an access touches, as core * slots + slot."""
    flat = cores.flat(mesh)
    if slot.index is None:
        return (flat[:, None] * slots + np.arange(slots)).ravel()
    return flat * slots + slot.of_cores(flat, mesh)
