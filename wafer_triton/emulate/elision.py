"""Planning with elided exchange: tiles stay where they lie, and a move is a change of names.

Elision follows from the rounds alone. An exchange, or a copy of whole tiles, becomes an index map on the buffer that
still holds them; before that buffer is written, tiles that others have there move out.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wafer_triton.emulate.launches import ComputeShifts, combining, compute_shifts, mailboxes
from wafer_triton.emulate.steps import Memory, Place, Planner, Step
from wafer_triton.local import find
from wafer_triton.schedule.rounds import Cores, Exchange, Index, Local, Round, Schedule, Slot


class Elision:
    """Plans with renamed tiles: `places` says for each buffer where its tiles lie now."""

    def __init__(self, planner: Planner, schedule: Schedule, memory: Memory) -> None:
        self.planner = planner
        self.schedule = schedule
        self.memory = memory
        self.places: dict[str, Place] = {}
        self.steps: list[Step] = []
        self.passing = mailboxes(schedule)  # what comes here is combined with what it came from: it must move
        self.last = {name: at for at, round_ in enumerate(schedule.rounds) for name in round_.touched}

    def plan(self) -> list[Step]:
        rounds = self.schedule.rounds
        while rounds:
            run = compute_shifts(self.schedule, rounds)
            done = self.products(run, rounds) if run is not None else self.messages(rounds)
            if not done:
                self.round(rounds[0])
            rounds = rounds[max(done, 1) :]
            self.forget(len(self.schedule.rounds) - len(rounds))
        for name in list(self.places):
            if self.memory.buffers[name].kept:
                self.settle(name)
        return self.steps

    def forget(self, done: int) -> None:
        """Drop the names of scratch tiles that no round after the first `done` looks at: they need not move out."""
        for name in list(self.places):
            if self.memory.buffers[name].role == "scratch" and self.last[name] < done:
                del self.places[name]

    def products(self, run: ComputeShifts, rounds: tuple[Round, ...]) -> int:
        """Plan a run of compute-shift rounds as one step; how many rounds that was."""
        for name in {run.c, run.out}:  # first of all, as what the products read may lie there
            self.written(name, keep=name == run.c and run.add)
        places = [self.places.get(slot.buffer, Place(slot)) for slot in (run.a[0], run.b[0])]
        if any(self.own_among(place, None) for place in places):
            return 0
        step = self.planner.products(self.memory, run, *places)
        if step is None:
            return 0
        for round_ in rounds[: run.number]:
            self.exchanges(round_)
        self.steps.append(step)
        return run.rounds

    def messages(self, rounds: tuple[Round, ...]) -> int:
        """Plan a reduce tree, or a round of one, if the planner has a step for it; how many rounds that was."""
        pairs = combining(rounds[0])
        if pairs is None or not {exchange.dst.buffer for exchange, _ in pairs} <= self.passing:
            return 0
        self.written(pairs[0][0].src.buffer, keep=True)
        fused = self.planner.fuse(self.memory, self.schedule, rounds)
        if fused is None:
            return 0
        self.steps += fused[1]
        return fused[0]

    def round(self, round_: Round) -> None:
        self.exchanges(round_)
        for op in round_.locals:
            if self.renamed(op):
                continue
            self.steps.append(self.planner.compute(self.memory, op, self.prepared(op)))

    def prepared(self, op: Local) -> tuple[Place, ...]:
        """Where an operation finds what it reads, once there is room for what it writes."""
        cores = None if op.where is None else op.where.flat(self.memory.mesh)
        for slot in op.ins:  # what a broadcast left with its root is read from there
            if (place := self.places.get(slot.buffer)) is not None and self.own_among(place, cores):
                self.settle(slot.buffer)
        for out in op.outs:
            whole = op.where is None and out.is_fixed and not find(op.op).updates(op.params)
            numel = self.memory.buffers[out.buffer].numel
            whole = whole and op.params.get("size", numel) == numel
            self.written(out.buffer, keep=not whole or out.buffer in {slot.buffer for slot in op.ins})
        return tuple(self.places.get(slot.buffer, Place(slot)) for slot in op.ins)

    def exchanges(self, round_: Round) -> None:
        renamed = {exchange.dst.buffer: self.renaming(exchange) for exchange in round_.exchanges}
        if len(renamed) < len(round_.exchanges):  # several into one buffer: all are renamed, or none
            renamed = self.joint_renaming(round_)
        self.places.update({name: place for name, place in renamed.items() if place is not None})
        for exchange in round_.exchanges:  # real moves may settle what is renamed, so they come second
            if renamed[exchange.dst.buffer] is None:
                self.move(exchange)

    def renaming(self, exchange: Exchange) -> Place | None:
        """Where the tiles of an exchange's target lie after it; None if tiles must really move."""
        src = self.places.get(exchange.src.buffer, Place(exchange.src))
        every = exchange.lines is None and exchange.recv.ndim == 1
        every = every and len(exchange.recv) == self.memory.mesh.length(exchange.axis)
        if every and self.single(exchange) and not self.own_among(src, None):
            return src.moved(exchange.axis, exchange.send)
        return self.partly(exchange.dst.buffer, [exchange])

    def joint_renaming(self, round_: Round) -> dict[str, Place | None]:
        into: dict[str, list[Exchange]] = {}
        for exchange in round_.exchanges:
            into.setdefault(exchange.dst.buffer, []).append(exchange)
        return {
            name: self.renaming(many[0]) if len(many) == 1 else self.partly(name, many) for name, many in into.items()
        }

    def partly(self, name: str, exchanges: list[Exchange]) -> Place | None:
        """The place of a buffer some of whose cores receive tiles of one other."""
        mesh = self.memory.mesh
        sources = {exchange.src.buffer for exchange in exchanges}
        if not all(self.single(exchange) for exchange in exchanges) or len(sources) > 1:
            return None
        if name in self.passing:
            return None
        pairs = [(exchange.receivers.flat(mesh), exchange.senders.flat(mesh)) for exchange in exchanges]
        return self.some_from(name, exchanges[0].src.buffer, *map(np.concatenate, zip(*pairs, strict=True)))

    def some_from(self, name: str, source: str, cores: Index, senders: Index) -> Place | None:
        """The place of buffer `name` once `cores` hold the tiles of `source` that `senders` hold, if it can be told."""
        src = self.places.get(source, Place(Slot(source)))
        old, new = self.places.get(name), src.slot.buffer
        homes = src.flat(self.memory.mesh.shape)[senders]
        if (homes < 0).any() or (old is not None and old.slot.buffer != new) or self.memory.buffers[new].slots > 1:
            return None
        every = np.arange(self.memory.mesh.cores)
        base = (
            old.flat(self.memory.mesh.shape) if old is not None else every if name == new else np.full_like(every, -1)
        )
        base = base.copy()
        base[cores] = homes
        return Place(src.slot, base=base)

    def single(self, exchange: Exchange) -> bool:
        """Whether an exchange is between the only slots of its buffers."""
        buffers = (self.memory.buffers[exchange.src.buffer], self.memory.buffers[exchange.dst.buffer])
        return all(buffer.slots == 1 for buffer in buffers) and exchange.src.is_fixed and exchange.src.index == 0

    def renamed(self, op: Local) -> bool:
        """Whether a local operation is a copy of whole tiles that a renaming stands for."""
        if op.op != "copy":
            return False
        (out,), (src,) = op.outs, op.ins
        target, source = self.memory.buffers[out.buffer], self.memory.buffers[src.buffer]
        alike = (target.dtype, target.slots, target.numel) == (source.dtype, 1, op.params["size"])
        if not alike or source.slots > 1:
            return False
        if op.where is None:  # nothing to follow: a copy is a copy
            place = self.places.get(src.buffer)
            place = None if place is None or self.own_among(place, None) else place
        elif self.places.keys().isdisjoint((src.buffer, out.buffer)):
            return False
        else:
            cores = op.where.flat(self.memory.mesh)
            place = self.some_from(out.buffer, src.buffer, cores, cores)
        if place is None:
            return False
        self.places[out.buffer] = place
        return True

    def own_among(self, place: Place, cores: Index | None) -> bool:
        """Whether some of the cores (None: all) have their tile in memory that the place does not name."""
        if place.base is None:
            return False
        homes = place.flat(self.memory.mesh.shape)
        return bool((homes < 0).any() if cores is None else (homes[cores] < 0).any())

    def move(self, exchange: Exchange) -> None:
        """A real move."""
        self.written(exchange.dst.buffer, keep=True)
        if exchange.src.buffer in self.places and self.own_among(
            self.places[exchange.src.buffer], exchange.senders.flat(self.memory.mesh)
        ):
            self.settle(exchange.src.buffer)
        src = self.places.get(exchange.src.buffer, Place(exchange.src))
        self.steps.append(self.planner.move(self.memory, [exchange], src))

    def written(self, name: str, keep: bool) -> None:
        """Before memory of `name` changes: tiles of others that lie there move out; its own come home if kept."""
        if not keep:
            self.places.pop(name, None)
        self.settle(name)

    def settle(self, name: str) -> None:
        """Bring the tiles of `name`, and all that lie in its memory, into their own buffers."""
        names, todo = list[str](), [name]
        while todo:
            lying = todo.pop()
            if lying in names:
                continue
            names.append(lying)
            todo += [other for other, place in self.places.items() if place.slot.buffer == lying]
        moves = [(lying, self.places.pop(lying)) for lying in names if lying in self.places]
        moves = [(lying, place) for lying, place in moves if not place.lies_in(Slot(lying))]
        if len(moves) == 1 and moves[0][1].slot.buffer != moves[0][0]:
            self.copy(moves[0][0], moves[0][1])
            return
        for lying, place in moves:  # they may lie in each other's memory: all move out before any moves in
            self.copy(self.spare(lying), place)
        for lying, place in moves:
            self.copy(lying, replace(place, slot=Slot(f"{lying}.settled")), home=True)

    def spare(self, name: str) -> str:
        buffer = replace(self.memory.buffers[name], name=f"{name}.settled")
        if buffer.name not in self.memory.buffers:
            self.memory.buffers[buffer.name] = buffer
            self.memory.tensors[buffer.name] = self.memory.tensors[name].clone()
        return buffer.name

    def copy(self, name: str, place: Place, home: bool = False) -> None:
        """Copy the tiles that lie elsewhere; `home`: back from where each lies with its core by now."""
        mesh, where = self.memory.mesh, None
        if self.own_among(place, None):
            at = np.arange(mesh.shape[1])
            where = Cores("x", np.where(place.flat(mesh.shape).reshape(mesh.shape) < 0, -1, at))
        op = Local("copy", (Slot(name),), (place.slot,), {"size": self.memory.buffers[name].numel}, where)
        self.steps.append(self.planner.compute(self.memory, op, (Place(place.slot) if home else place,)))
