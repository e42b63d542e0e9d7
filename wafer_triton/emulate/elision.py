"""Elided exchange: tiles stay in place.

An exchange, or a copy of whole tiles, becomes a `TileMap` of the buffer that still holds the tiles; before that buffer
is written, tiles of other buffers in it move out. This follows from the rounds alone. The operations and their order
stay the same, and so do the bits.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wafer_triton.emulate.parts import Memory, Products, Reduction, Step, TileMap
from wafer_triton.emulate.plan import Planner
from wafer_triton.emulate.segments import mailboxes, segments
from wafer_triton.local import find
from wafer_triton.schedule.rounds import HIDDEN, Cores, Exchange, Index, Local, Round, Slot
from wafer_triton.schedule.schedule import Schedule


def elided(planner: Planner, schedule: Schedule, memory: Memory) -> list[Step]:
    """Return the steps of a schedule whose tiles stay in place as far as possible."""
    return planner.fuse_steps(memory, _Elision(planner, schedule, memory).plan())


class _Elision:
    """Plans with renamed tiles: `maps` holds the tile map of each buffer that does not hold its own tiles."""

    def __init__(self, planner: Planner, schedule: Schedule, memory: Memory) -> None:
        self.planner = planner
        self.schedule = schedule
        self.memory = memory
        self.maps: dict[str, TileMap] = {}
        self.steps: list[Step] = []
        self.mail = mailboxes(schedule)  # a message is combined with the tile that it was: it must move
        self.last = {name: at for at, round_ in enumerate(schedule.rounds) for name in round_.touched}

    def plan(self) -> list[Step]:
        for segment in segments(self.schedule):
            self.forget(segment.start)
            if isinstance(segment, Products):
                fused = self.products(segment)
            else:
                fused = isinstance(segment, Reduction) and self.tree(segment)
            if fused:
                continue
            for number, round_ in enumerate(segment.all_rounds):
                self.forget(segment.start + number)
                self.round(round_)
        self.forget(len(self.schedule.rounds))
        for name in list(self.maps):
            if self.memory.buffers[name].kept:
                self.settle(name)
        return self.steps

    def forget(self, done: int) -> None:
        """Drop the maps of scratch buffers that no round after the first `done` touches: they need not move out."""
        for name in list(self.maps):
            if self.memory.buffers[name].role == "scratch" and self.last[name] < done:
                del self.maps[name]

    def products(self, run: Products) -> bool:
        """Plan compute-shift rounds as one step, if the planner has one."""
        for name in {run.c, run.out}:  # first of all, as the products may read tiles from there
            self.written(name, keep=name == run.c and run.add)
        maps = tuple(self.maps.get(slot.buffer, TileMap(slot)) for slot in (run.a[0], run.b[0]))
        if any(self.own_among(each, None) for each in maps):
            return False
        steps = self.planner.segment(self.memory, run, maps)
        if steps is None:
            return False
        for round_ in run.rounds[: run.count]:
            self.exchanges(round_)
        self.steps += steps
        return True

    def tree(self, tree: Reduction) -> bool:
        """Plan a reduce tree as one step, if the planner has one; its broadcast becomes a tile map."""
        self.written(tree.acc, keep=True)
        self.written(tree.sums, keep=False)
        steps = self.planner.segment(self.memory, tree)
        if steps is None:
            return False
        self.steps += steps
        if tree in self.memory.separate_sums:
            self.maps[tree.acc] = TileMap(Slot(tree.sums), tree.roots)
        elif tree.broadcast is not None:
            self.exchanges(tree.broadcast)
        return True

    def round(self, round_: Round) -> None:
        self.exchanges(round_)
        for op in round_.locals:
            if self.renamed(op):
                continue
            self.steps += self.planner.compute(self.memory, op, self.prepared(op))

    def prepared(self, op: Local) -> tuple[TileMap, ...]:
        """Return the tile maps of an operation's inputs, once there is room for its outputs."""
        cores = None if op.where is None else op.where.flat(self.memory.mesh)
        for slot in op.ins:  # the sender of a broadcast reads its own tile
            self.near(slot.buffer, cores)
        for number, out in enumerate(op.outs):
            numel = self.memory.buffers[out.buffer].numel
            whole = op.where is None and out.is_fixed and not find(op.op).keeps(op.params, numel, number)
            self.written(out.buffer, keep=not whole or out.buffer in {slot.buffer for slot in op.ins})
        return tuple(self.maps.get(slot.buffer, TileMap(slot)) for slot in op.ins)

    def exchanges(self, round_: Round) -> None:
        into: dict[str, list[Exchange]] = {}
        for exchange in round_.exchanges:
            into.setdefault(exchange.dst.buffer, []).append(exchange)
        renamed = {name: self.renaming(name, many) for name, many in into.items()}
        self.maps.update({name: each for name, each in renamed.items() if each is not None})
        for exchange in round_.exchanges:  # real moves may settle renamed tiles, so they come second
            if renamed[exchange.dst.buffer] is None:
                self.move(exchange)

    def renaming(self, name: str, exchanges: list[Exchange]) -> TileMap | None:
        """Return the tile map of buffer `name` after all exchanges into it; None if tiles must move."""
        slots = {
            self.memory.buffers[slot.buffer].slots for exchange in exchanges for slot in (exchange.src, exchange.dst)
        }
        if len({exchange.src for exchange in exchanges}) > 1 or slots != {1} or exchanges[0].src.index is None:
            return None
        mesh = self.memory.mesh
        pairs = [exchange.moves.ends(mesh)[::-1] for exchange in exchanges]
        return self.some_from(name, exchanges[0].src.buffer, *map(np.concatenate, zip(*pairs, strict=True)))

    def some_from(self, name: str, source: str, cores: Index, senders: Index) -> TileMap | None:
        """Return the map of buffer `name` once `cores` hold the senders' tiles of `source`, if there is one."""
        every = np.arange(self.memory.mesh.cores)
        src, old, base = self.maps.get(source, TileMap(Slot(source))), self.maps.get(name), every.copy()
        homes, new = src.homes(self.memory.mesh)[senders], src.slot.buffer
        if (homes < 0).any() or self.memory.buffers[new].slots > 1:
            return None
        if len(cores) < len(every):
            if name in self.mail or (old is not None and old.slot.buffer != new):
                return None
            base = old.homes(self.memory.mesh).copy() if old is not None else every if name == new else every * 0 - 1
        base[cores] = homes
        return TileMap(src.slot, None if np.array_equal(base, np.arange(len(every))) else base)

    def renamed(self, op: Local) -> bool:
        """Return whether a local operation is a copy of whole tiles that a tile map replaces."""
        if op.op != "copy":
            return False
        (out,), (src,) = op.outs, op.ins
        target, source = self.memory.buffers[out.buffer], self.memory.buffers[src.buffer]
        alike = (target.dtype, target.slots, target.numel) == (source.dtype, 1, op.params["size"])
        if not alike or source.slots > 1:
            return False
        if self.maps.keys().isdisjoint((src.buffer,) if op.where is None else (src.buffer, out.buffer)):
            return False  # without a map a copy is a copy
        cores = np.arange(self.memory.mesh.cores) if op.where is None else op.where.flat(self.memory.mesh)
        found = self.some_from(out.buffer, src.buffer, cores, cores)
        if found is None:
            return False
        self.maps[out.buffer] = found
        return True

    def near(self, name: str, cores: Index | None) -> None:
        """Settle `name`, if some of the cores (None: all) have their tile in memory that its map does not name."""
        if name in self.maps and self.own_among(self.maps[name], cores):
            self.settle(name)

    def own_among(self, each: TileMap, cores: Index | None) -> bool:
        """Return whether some of the cores (None: all) have their tile in memory that the map does not name."""
        if each.base is None:
            return False
        return bool(((each.base if cores is None else each.base[cores]) < 0).any())

    def move(self, exchange: Exchange) -> None:
        """Return a real move."""
        self.written(exchange.dst.buffer, keep=True)
        self.near(exchange.src.buffer, exchange.moves.ends(self.memory.mesh)[0])
        src = self.maps.get(exchange.src.buffer, TileMap(exchange.src))
        self.steps += self.planner.move(self.memory, [exchange], src)

    def written(self, name: str, keep: bool) -> None:
        """Before memory of `name` changes: tiles of other buffers move out; its own come home if kept."""
        if not keep:
            self.maps.pop(name, None)
        self.settle(name)

    def settle(self, name: str) -> None:
        """Bring the tiles of `name`, and all that lie in its memory, into their own buffers."""
        if name not in self.maps and all(each.slot.buffer != name for each in self.maps.values()):
            return
        names, todo = list[str](), [name]
        while todo:
            lying = todo.pop()
            if lying in names:
                continue
            names.append(lying)
            todo += [other for other, each in self.maps.items() if each.slot.buffer == lying]
        moves = [(lying, self.maps.pop(lying)) for lying in names if lying in self.maps]
        moves = [(lying, each) for lying, each in moves if each.base is not None or each.slot.buffer != lying]
        if len(moves) == 1 and moves[0][1].slot.buffer != moves[0][0]:
            self.copy(moves[0][0], moves[0][1])
            return
        for lying, each in moves:  # they may lie in each other's memory: all move out before any moves in
            self.memory.scratch_like(lying, f"{lying}{HIDDEN}settled")
            self.copy(f"{lying}{HIDDEN}settled", each)
        for lying, each in moves:
            self.copy(lying, replace(each, slot=Slot(f"{lying}{HIDDEN}settled")), home=True)

    def copy(self, name: str, each: TileMap, home: bool = False) -> None:
        """Copy the tiles that lie elsewhere; `home`: back from where each lies with its core by now."""
        mesh, where = self.memory.mesh, None
        if self.own_among(each, None):
            at = np.arange(mesh.shape[1])
            where = Cores("x", np.where(each.homes(mesh).reshape(mesh.shape) < 0, -1, at))
        op = Local("copy", (Slot(name),), (each.slot,), {"size": self.memory.buffers[name].numel}, where)
        self.steps += self.planner.compute(self.memory, op, (TileMap(each.slot) if home else each,))
