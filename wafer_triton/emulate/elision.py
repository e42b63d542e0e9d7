"""Elided exchange: tiles stay in place, and cores read them where they lie.

An exchange, or a copy of whole tiles, copies nothing: it makes a `TileMap` of the target buffer, which says where its
tiles still lie. Before memory is written, tiles of other buffers that lie there are copied to their own. Operations and
their order stay the same, and so do the bits.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wafer_triton.emulate.parts import Memory, Products, Reduction, Task, TileMap
from wafer_triton.emulate.planner import Planner
from wafer_triton.emulate.segments import mailboxes, segments
from wafer_triton.local import find
from wafer_triton.schedule.rounds import HIDDEN, Cores, Exchange, Index, Local, Round, Slot, touched
from wafer_triton.schedule.schedule import Schedule


def elided(planner: Planner, schedule: Schedule, memory: Memory) -> list[Task]:
    """Return the tasks of a schedule whose tiles stay in place as far as possible."""
    return _Elision(planner, schedule, memory).plan()


class _Elision:
    """Plans a schedule round by round; `maps` has the tile map of each buffer whose tiles lie elsewhere by now."""

    def __init__(self, planner: Planner, schedule: Schedule, memory: Memory) -> None:
        self.planner = planner
        self.schedule = schedule
        self.memory = memory
        self.maps: dict[str, TileMap] = {}
        self.tasks: list[Task] = []
        self.mailboxes = mailboxes(schedule)  # their messages move: combining overwrites where they would lie
        self.last_use = {name: at for at, round_ in enumerate(schedule.rounds) for name in touched(round_)}

    def plan(self) -> list[Task]:
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
        return self.tasks

    def forget(self, done: int) -> None:
        """Drop the maps of scratch buffers that only the first `done` rounds touch: nobody will read their tiles."""
        for name in list(self.maps):
            if self.memory.buffers[name].role == "scratch" and self.last_use[name] < done:
                del self.maps[name]

    def products(self, run: Products) -> bool:
        """Plan compute-shift rounds at once, and return whether the planner could."""
        for name in {run.c, run.out}:  # first, as tiles of a or b may lie there
            self.before_write(name, keep=name == run.c and run.add)
        maps = tuple(self.maps.get(slot.buffer, TileMap(slot)) for slot in (run.a[0], run.b[0]))
        if any(self.has_own_tiles(each, None) for each in maps):
            return False
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
            self.maps[tree.acc] = TileMap(Slot(tree.sums), tree.roots)
        elif tree.broadcast is not None:
            self.exchanges(tree.broadcast)
        return True

    def round(self, round_: Round) -> None:
        self.exchanges(round_)
        for op in round_.locals:
            if self.rename_copy(op):
                continue
            self.tasks += self.planner.compute(self.memory, op, self.prepare(op))

    def prepare(self, op: Local) -> tuple[TileMap, ...]:
        """Plan the copies that must precede an operation, and return the tile maps of its inputs."""
        cores = None if op.where is None else op.where.flat(self.memory.mesh)
        for slot in op.ins:  # a kernel reads an input from one buffer, also for the sender of a broadcast
            self.settle_own(slot.buffer, cores)
        for number, out in enumerate(op.outs):
            numel = self.memory.buffers[out.buffer].numel
            whole = op.where is None and out.is_fixed and not find(op.op).keeps(op.params, numel, number)
            self.before_write(out.buffer, keep=not whole or out.buffer in {slot.buffer for slot in op.ins})
        return tuple(self.maps.get(slot.buffer, TileMap(slot)) for slot in op.ins)

    def exchanges(self, round_: Round) -> None:
        """Make tile maps of the exchanges of a round, and plan copies for those that have none."""
        into: dict[str, list[Exchange]] = {}
        for exchange in round_.exchanges:
            into.setdefault(exchange.dst.buffer, []).append(exchange)
        maps = {name: self.map_after_exchanges(name, many) for name, many in into.items()}
        self.maps.update({name: each for name, each in maps.items() if each is not None})
        for exchange in round_.exchanges:  # after the maps are made, as copies may settle buffers
            if maps[exchange.dst.buffer] is None:
                self.move(exchange)

    def map_after_exchanges(self, name: str, exchanges: list[Exchange]) -> TileMap | None:
        """Return the tile map of buffer `name` after all exchanges into it; None if the tiles must be copied."""
        slots = {
            self.memory.buffers[slot.buffer].slots for exchange in exchanges for slot in (exchange.src, exchange.dst)
        }
        if len({exchange.src for exchange in exchanges}) > 1 or slots != {1} or exchanges[0].src.index is None:
            return None
        mesh = self.memory.mesh
        pairs = [exchange.moves.ends(mesh)[::-1] for exchange in exchanges]
        return self.map_after_copy(name, exchanges[0].src.buffer, *map(np.concatenate, zip(*pairs, strict=True)))

    def map_after_copy(self, name: str, source: str, cores: Index, senders: Index) -> TileMap | None:
        """Return the map of buffer `name` after core cores[i] got the tile of buffer `source` of core senders[i].

        None if one map cannot express it: all its tiles lie in one other buffer of one slot, or in `name` itself.
        """
        every = np.arange(self.memory.mesh.cores)
        src, old, base = self.maps.get(source, TileMap(Slot(source))), self.maps.get(name), every.copy()
        homes, new = src.homes(self.memory.mesh)[senders], src.slot.buffer
        if (homes < 0).any() or self.memory.buffers[new].slots > 1:
            return None
        if len(cores) < len(every):
            if name in self.mailboxes or (old is not None and old.slot.buffer != new):
                return None
            base = old.homes(self.memory.mesh).copy() if old is not None else every if name == new else every * 0 - 1
        base[cores] = homes
        return TileMap(src.slot, None if np.array_equal(base, np.arange(len(every))) else base)

    def rename_copy(self, op: Local) -> bool:
        """Replace a local copy of whole tiles by a tile map; return whether that was possible."""
        if op.op != "copy":
            return False
        (out,), (src,) = op.outs, op.ins
        target, source = self.memory.buffers[out.buffer], self.memory.buffers[src.buffer]
        whole = {target.numel, source.numel} == {op.params["size"]} and target.slots == source.slots == 1
        if not whole or target.dtype != source.dtype:
            return False
        if self.maps.keys().isdisjoint((src.buffer,) if op.where is None else (src.buffer, out.buffer)):
            return False  # both lie in their own buffers: an ordinary copy
        cores = np.arange(self.memory.mesh.cores) if op.where is None else op.where.flat(self.memory.mesh)
        found = self.map_after_copy(out.buffer, src.buffer, cores, cores)
        if found is None:
            return False
        self.maps[out.buffer] = found
        return True

    def settle_own(self, name: str, cores: Index | None) -> None:
        """Settle `name` if the map leaves the tile of any of these cores (None: all) in its own buffer."""
        if name in self.maps and self.has_own_tiles(self.maps[name], cores):
            self.settle(name)

    def has_own_tiles(self, tile_map: TileMap, cores: Index | None) -> bool:
        """Return whether the tile of any of these cores (None: all) lies in the mapped buffer itself, base[i] = -1."""
        if tile_map.base is None:
            return False
        return bool(((tile_map.base if cores is None else tile_map.base[cores]) < 0).any())

    def move(self, exchange: Exchange) -> None:
        """Plan an exchange that copies its tiles."""
        self.before_write(exchange.dst.buffer, keep=True)
        self.settle_own(exchange.src.buffer, exchange.moves.ends(self.memory.mesh)[0])
        src = self.maps.get(exchange.src.buffer, TileMap(exchange.src))
        self.tasks += self.planner.move(self.memory, [exchange], src)

    def before_write(self, name: str, keep: bool) -> None:
        """Plan the copies before buffer `name` is written: other buffers' tiles leave it, its own return if `keep`."""
        if not keep:
            self.maps.pop(name, None)
        self.settle(name)

    def settle(self, name: str) -> None:
        """Copy the tiles of `name`, and all that lie in its memory, to their own buffers."""
        if name not in self.maps and all(each.slot.buffer != name for each in self.maps.values()):
            return
        names, todo = list[str](), [name]
        while todo:
            buffer = todo.pop()
            if buffer in names:
                continue
            names.append(buffer)
            todo += [other for other, each in self.maps.items() if each.slot.buffer == buffer]
        moves = [(buffer, self.maps.pop(buffer)) for buffer in names if buffer in self.maps]
        moves = [(buffer, each) for buffer, each in moves if each.base is not None or each.slot.buffer != buffer]
        if len(moves) == 1 and moves[0][1].slot.buffer != moves[0][0]:
            self.copy(moves[0][0], moves[0][1])
            return
        for buffer, each in moves:  # tiles may lie in each other's buffers: copy all to scratch before any comes back
            self.memory.scratch_like(buffer, f"{buffer}{HIDDEN}settled")
            self.copy(f"{buffer}{HIDDEN}settled", each)
        for buffer, each in moves:
            self.copy(buffer, replace(each, slot=Slot(f"{buffer}{HIDDEN}settled")), in_place=True)

    def copy(self, name: str, tile_map: TileMap, in_place: bool = False) -> None:
        """Copy the tiles of a map into buffer `name`; `in_place`: from core i of the map's slot to core i."""
        mesh, where = self.memory.mesh, None
        if self.has_own_tiles(tile_map, None):
            at = np.arange(mesh.shape[1])
            where = Cores("x", np.where(tile_map.homes(mesh).reshape(mesh.shape) < 0, -1, at))
        op = Local("copy", (Slot(name),), (tile_map.slot,), {"size": self.memory.buffers[name].numel}, where)
        self.tasks += self.planner.compute(self.memory, op, (TileMap(tile_map.slot) if in_place else tile_map,))
