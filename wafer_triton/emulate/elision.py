"""Elided exchange: tiles stay in place, and cores read them where they lie.

An exchange, or a copy of whole tiles, copies nothing: it notes where the tiles of the target buffer still lie. Before
memory is written, tiles of other buffers that lie there are copied to their own. Operations and their order stay the
same, and so do the bits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wafer_triton.emulate.parts import Memory, Products, Reduction, Task, TileMap
from wafer_triton.emulate.planner import Planner
from wafer_triton.emulate.segments import mailboxes, whole_copy
from wafer_triton.local import find
from wafer_triton.schedule.access import walk
from wafer_triton.schedule.rounds import HIDDEN, Cores, Exchange, Index, Local, Round, Slot, once
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.schedule.steps import uses


@once
def turning_slots(schedule: Schedule) -> frozenset[str]:
    """Return the names of scratch buffers of several slots that only turn once a tile was sent into them.

    No operation writes them from then on, nor reads them as a whole, so their tiles never need be copied back.
    """
    slots = {name for name, buffer in schedule.buffers.items() if buffer.role == "scratch" and buffer.slots > 1}
    turning, others = set[str](), set[str]()
    for _, access in walk(schedule) if slots else ():
        name, sent = access.slot.buffer, isinstance(access.by, Exchange)
        if access.slot.index is None or (access.writes and not sent):
            others |= {name} & turning
        if access.writes and sent:
            turning |= {name} & slots
    return frozenset(turning - others)


class Lies(NamedTuple):
    """Where the tiles of a buffer lie: that of cell c in row rows[c] of `buffer`, or in its own place if that is -1.

    A cell is a core's slot, numbered core * slots + slot, and so is a row.
    """

    buffer: str
    rows: Index


class Elision:
    """Plans a schedule round by round; `maps` says where the tiles of each buffer lie that lie elsewhere by now."""

    def __init__(self, planner: Planner, schedule: Schedule, memory: Memory) -> None:
        self.planner = planner
        self.schedule = schedule
        self.memory = memory
        self.maps: dict[str, Lies] = {}
        self.tasks: list[Task] = []
        self.uses = uses(schedule.rounds.steps)

    def plan(self) -> list[Task]:
        """Return the tasks of the schedule, whose tiles stay in place as far as possible."""
        for segment in self.planner.segments(self.schedule, self.memory):
            self.forget(segment.start)
            if isinstance(segment, Products) and self.products(segment):
                continue
            if isinstance(segment, Reduction) and self.tree(segment):
                continue
            for number, round_ in enumerate(segment.rounds):
                self.forget(segment.start + number)
                self.round(round_)
        self.forget(len(self.schedule.rounds))
        for name in list(self.maps):
            if self.memory.buffers[name].kept:
                self.settle(name)
        return self.tasks

    def forget(self, done: int) -> None:
        """Drop the maps of scratch buffers that only the first `done` rounds touch: nobody will read their tiles."""
        for name in list(self.maps):
            if self.memory.buffers[name].role == "scratch" and self.uses[name][1] < done:
                del self.maps[name]

    def products(self, run: Products) -> bool:
        """Plan compute-shift rounds at once, and return whether the planner could."""
        for name in dict.fromkeys((run.c, run.out)):  # first, as tiles of a or b may lie there
            self.before_write(name, keep=name == run.c and run.add)
        hands = run.a[0], run.b[0]
        if any(self.has_own_tiles(slot, None) or self.slots(self.lies(slot.buffer).buffer) > 1 for slot in hands):
            return False
        maps = tuple(map(self.tile_map, hands))
        tasks = self.planner.segment(self.memory, run, maps)
        if tasks is None:
            return False
        self.tasks += tasks  # which read the tiles where they lie before the ring turns
        for round_ in run.rounds[: run.count]:
            self.exchanges(round_)
        return True

    def tree(self, tree: Reduction) -> bool:
        """Plan a reduce tree at once, and return whether the planner could; its broadcast becomes a tile map."""
        self.before_write(tree.acc, keep=True)
        self.before_write(tree.sums, keep=False)
        tasks = self.planner.segment(self.memory, tree)
        if tasks is None:
            return False
        self.tasks += tasks
        if tree in self.memory.separate_sums:
            self.maps[tree.acc] = Lies(tree.sums, tree.roots)
        else:
            for round_ in tree.broadcast:
                self.exchanges(round_)
        return True

    def round(self, round_: Round) -> None:
        self.exchanges(round_)
        for op in round_.locals:
            if self.rename_copy(op):
                continue
            self.tasks += self.planner.compute(self.memory, op, self.prepare(op))

    def prepare(self, op: Local) -> tuple[TileMap, ...]:
        """Plan the copies that must precede an operation, and return the tile maps of its inputs."""
        cores = op.cores(self.memory.mesh)
        for slot in op.ins:  # a kernel reads an input from one buffer, also for the sender of a broadcast
            self.settle_own(slot, cores)
        for number, out in enumerate(op.outs):
            numel = self.memory.buffers[out.buffer].numel
            whole = op.where is None and self.slots(out.buffer) == 1 and not find(op.op).keeps(op.params, numel, number)
            self.before_write(out.buffer, keep=not whole or out.buffer in {slot.buffer for slot in op.ins})
        return tuple(map(self.tile_map, op.ins))

    def slots(self, name: str) -> int:
        return self.memory.buffers[name].slots

    def lies(self, name: str) -> Lies:
        """Return where the tiles of a buffer lie."""
        return self.maps.get(name) or Lies(name, np.arange(self.memory.mesh.cores * self.slots(name)))

    def tile_map(self, slot: Slot) -> TileMap:
        """Return where the tiles of a slot lie, none of which `settle_own` would settle."""
        if slot.buffer not in self.maps:
            return TileMap(slot)
        lies = self.maps[slot.buffer]
        rows = lies.rows[self.schedule.cells(slot).ravel()]
        in_place = self.slots(lies.buffer) == 1 and _ascends(rows)
        return TileMap(Slot(lies.buffer), None if in_place else rows)

    def exchanges(self, round_: Round) -> None:
        """Note where tiles lie after the exchanges of a round, and plan copies where that cannot be noted."""
        into: dict[str, list[Exchange]] = {}
        for exchange in round_.exchanges:
            into.setdefault(exchange.dst.buffer, []).append(exchange)
        found = {name: self.after_exchanges(name, many) for name, many in into.items()}
        self.maps.update({name: lies for name, lies in found.items() if lies is not None})
        for exchange in round_.exchanges:  # after all is noted, as copies may settle buffers
            if found[exchange.dst.buffer] is None:
                self.move(exchange)

    def after_exchanges(self, name: str, exchanges: list[Exchange]) -> Lies | None:
        """Return where the tiles of buffer `name` lie after all exchanges into it; None if they must be copied."""
        source = exchanges[0].src.buffer
        wholes = any(one.src.buffer != source or one.src.index is None or one.dst.index is None for one in exchanges)
        if wholes or not self.may_lie(name, source):
            return None
        cells, senders = list[Index](), list[Index]()
        for one in exchanges:
            send, recv = one.moves.ends(self.memory.mesh)
            cells.append(self.schedule.cells(one.dst, recv))
            senders.append(self.schedule.cells(one.src, send))
        return self.after_copy(name, source, np.concatenate(cells), np.concatenate(senders))

    def may_lie(self, name: str, source: str) -> bool:
        """Return whether a tile map of `name` can say that its tiles lie where those of `source` do.

        It can if both lie in buffers of one slot, or if `name` is one of `turning_slots` whose own tiles turn.
        """
        at = self.maps[source].buffer if source in self.maps else source
        return self.slots(name) == self.slots(at) == 1 or (at == name and name in turning_slots(self.schedule))

    def after_copy(self, name: str, source: str, cells: Index, senders: Index) -> Lies | None:
        """Return where the tiles of buffer `name` lie after cell cells[i] got that of cell senders[i] of `source`.

        None if it cannot be noted: all tiles lie in one buffer.
        """
        src, old = self.lies(source), self.maps.get(name)
        rows, new, every = src.rows[senders], src.buffer, self.memory.mesh.cores * self.slots(name)
        if (rows < 0).any():
            return None
        if len(cells) == every:
            found = np.empty(every, np.int64)
        elif name in mailboxes(self.schedule) or (old is not None and old.buffer != new):
            return None  # messages move: combining overwrites where they would lie
        else:
            found = self.lies(name).rows.copy() if old is not None or name == new else np.full(every, -1)
        found[cells] = rows
        return Lies(new, found)

    def rename_copy(self, op: Local) -> bool:
        """Replace a local copy of whole tiles by a tile map; return whether that was possible."""
        names, buffers = whole_copy(self.memory.buffers, op), self.memory.buffers
        if names is None or buffers[names[0]].dtype != buffers[names[1]].dtype:
            return False
        source, target = names
        if self.maps.keys().isdisjoint((source,) if op.where is None else names) or not self.may_lie(target, source):
            return False  # an ordinary copy if both lie in their own buffers
        cores = op.cores(self.memory.mesh)
        found = self.after_copy(target, source, cores, cores)
        if found is not None:
            self.maps[target] = found
        return found is not None

    def settle_own(self, slot: Slot, cores: Index | None) -> None:
        """Settle the slot's buffer if the tile of any of these cores (None: all) lies in its own place, or as a whole.

        A tile map can say neither.
        """
        whole = slot.index is None and slot.buffer in self.maps and self.slots(slot.buffer) > 1
        if whole or self.has_own_tiles(slot, cores):
            self.settle(slot.buffer)

    def has_own_tiles(self, slot: Slot, cores: Index | None) -> bool:
        """Return whether the tile of any of these cores (None: all) lies in its own place, while others do not."""
        return slot.buffer in self.maps and bool(
            (self.maps[slot.buffer].rows[self.schedule.cells(slot, cores)] < 0).any()
        )

    def move(self, exchange: Exchange) -> None:
        """Plan an exchange that copies its tiles."""
        self.before_write(exchange.dst.buffer, keep=True)
        self.settle_own(exchange.src, exchange.moves.ends(self.memory.mesh)[0])
        self.tasks += self.planner.move(self.memory, [exchange], self.tile_map(exchange.src))

    def before_write(self, name: str, keep: bool) -> None:
        """Plan the copies before buffer `name` is written: other buffers' tiles leave it, its own return if `keep`."""
        if not keep:
            self.maps.pop(name, None)
        self.settle(name)

    def settle(self, name: str) -> None:
        """Copy the tiles of `name`, and all that lie in its memory, to their own buffers."""
        names = [name]
        for buffer in names:  # they grow, by what was mapped last first
            others = [other for other, lies in self.maps.items() if lies.buffer == buffer and other not in names]
            names += reversed(others)
        moves = [(buffer, self.maps.pop(buffer)) for buffer in names if buffer in self.maps]
        moves = [(buffer, lies) for buffer, lies in moves if lies.buffer != buffer or not _ascends(lies.rows)]
        if len(moves) == 1 and moves[0][1].buffer != moves[0][0]:
            self.copy(*moves[0])
            return
        for buffer, lies in moves:  # tiles may lie in each other's buffers: copy all to scratch before any comes back
            self.memory.scratch_like(buffer, f"{buffer}{HIDDEN}settled")
            self.copy(f"{buffer}{HIDDEN}settled", lies)
        for buffer, lies in moves:
            self.copy(buffer, Lies(f"{buffer}{HIDDEN}settled", np.where(lies.rows < 0, -1, np.arange(len(lies.rows)))))

    def copy(self, name: str, lies: Lies) -> None:
        """Copy tiles from where they lie into buffer `name`."""
        mesh, slots = self.memory.mesh, self.slots(name)
        for number in range(slots):
            rows, where = lies.rows[number::slots], None
            if (rows < 0).any():
                where = Cores.of(*np.divmod(np.flatnonzero(rows >= 0), mesh.shape[1]), paired=True)
            op = Local(
                "copy", (Slot(name, number),), (Slot(lies.buffer),), {"size": self.memory.buffers[name].numel}, where
            )
            self.tasks += self.planner.compute(self.memory, op, (TileMap(Slot(lies.buffer), rows),))


def _ascends(rows: Index) -> bool:
    """Return whether rows are all, in order."""
    return np.array_equal(rows, np.arange(len(rows)))
