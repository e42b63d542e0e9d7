"""The distributed executor: every rank of a process group holds a rectangle of the mesh's cores.

Each rank plans the whole schedule and runs what concerns its cores, by another executor on its rectangle. Tiles that
stay on a rank are copied there. Those that cross are packed to one message for each pair of ranks and round, which is
under way while the rank computes what does not read it. With elided exchange a rank fetches the tiles of others that
its cores read, and of a run of compute-shift rounds all of them before the first.

The operations and their order are those of one process, and so are the bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import groupby
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.distributed as dist

from wafer_triton.emulate.crossing import Crossing, Gather, Route, copied, route
from wafer_triton.emulate.executor import Executor, whole
from wafer_triton.emulate.launches import ComputeShifts
from wafer_triton.emulate.partition import Share, partition
from wafer_triton.emulate.ranks import OPERAND, agree, blaming, digest
from wafer_triton.emulate.steps import Apart, Memory, Place, Step, together
from wafer_triton.errors import BackendError
from wafer_triton.mesh import Mesh
from wafer_triton.schedule.rounds import Buffer, Exchange, Index, Local, Round, Schedule, Slot

Many = tuple[Exchange, ...]


class DistributedExecutor(Executor):
    """Runs schedules on the ranks of `group` (default: all), of which each has an executor `inside` its rectangle.

    `cut` = (rows, columns) says into how many rectangles a mesh is cut; by default as few cores as can be lie at the
    cuts. All ranks make the same calls with the same values; tensors are given, and read, for all cores. Raises
    BackendError without a process group, and where the ranks do not agree.
    """

    def __init__(
        self, inside: Executor, group: dist.ProcessGroup | None = None, cut: tuple[int, int] | None = None
    ) -> None:
        super().__init__(exchange=inside.exchange, poison=inside.poison)
        if not dist.is_initialized():
            raise BackendError("there is no process group; start the ranks by torchrun, or call init_process_group")
        everyone = dist.group.WORLD if group is None else group
        assert everyone is not None
        self.inside, self.cut, self.group = inside, cut, everyone
        self.rank, self.ranks = self.group.rank(), self.group.size()
        options = {"executor": type(inside).__name__, "exchange": self.exchange, "poison": self.poison, "cut": cut}
        agree(options | {"device": torch.device(self.device).type}, self.group)
        self._shares: dict[Mesh, Share] = {}
        # by the first of some exchanges, and by the others
        self._known: WeakKeyDictionary[Exchange, dict[tuple[Mesh, Many], Route]] = WeakKeyDictionary()
        self._fetched: WeakKeyDictionary[Memory, dict[str, tuple[str, bytes]]] = WeakKeyDictionary()

    @property
    def device(self) -> str:
        return self.inside.device

    def on_device(self) -> AbstractContextManager[object]:
        return self.inside.on_device()

    def check(self) -> None:
        self.inside.check()

    def storage(self, buffer: Buffer) -> torch.dtype:
        return self.inside.storage(buffer)

    def share(self, mesh: Mesh) -> Share:
        """The rectangle of a mesh that is here; MeshError for a mesh that cannot be cut, BackendError for a `cut`."""
        if mesh not in self._shares:
            if self.cut is not None and self.cut[0] * self.cut[1] != self.ranks:
                sides = "x".join(map(str, self.cut))
                raise BackendError(f"cut {sides} has not one rectangle for each of {self.ranks} ranks; give another")
            self._shares[mesh] = Share(partition(mesh, self.ranks, self.cut), self.rank)
        return self._shares[mesh]

    def admit(self, schedule: Schedule, fresh: list[Buffer]) -> None:
        agree({"schedule": schedule.name, "mesh": str(schedule.mesh), "rounds": len(schedule.rounds)}, self.group)
        self.inside.admit(self._here(schedule), fresh)

    def store(self, schedule: Schedule, buffer: Buffer, given: torch.Tensor) -> torch.Tensor:
        """As of `Executor`; BackendError, on all ranks, where these do not give the same values for all cores."""
        is_whole = isinstance(given, torch.Tensor) and given.shape[:2] == schedule.mesh.shape
        agree({f"{OPERAND}{buffer.name}": digest(given) if is_whole else None}, self.group)
        return super().store(schedule, buffer, given)

    def allocate(self, schedule: Schedule, buffer: Buffer) -> torch.Tensor:
        return self.inside.allocate(self._here(schedule), buffer)

    def part(self, schedule: Schedule, buffer: Buffer, given: torch.Tensor) -> torch.Tensor:
        """As of `Executor`; tiles of the rank's own rectangle alone are taken too."""
        here = self._here(schedule)
        if isinstance(given, torch.Tensor) and given.shape[:2] == here.mesh.shape:
            return whole(here, buffer, given)
        return whole(schedule, buffer, given)[self.rectangle(schedule.mesh)]

    def rectangle(self, mesh: Mesh) -> tuple[slice, slice]:
        return self.share(mesh).rectangle

    def together(self, mesh: Mesh, held: torch.Tensor) -> torch.Tensor:
        """The values of all ranks, on every rank."""
        share = self.share(mesh)
        tiles, works = held.new_empty(*mesh.shape, *held.shape[2:]), []
        parts = [tiles[share.partition.rectangle(rank)].contiguous() for rank in range(self.ranks)]
        parts[self.rank] = held.contiguous()
        with blaming(self.group):
            for rank, part in enumerate(parts):
                works.append(dist.broadcast(part, group=self.group, group_src=rank, async_op=True))
            for work in works:
                assert work is not None
                work.wait()
        for rank, part in enumerate(parts):
            tiles[share.partition.rectangle(rank)] = part
        return tiles

    def take(self, mesh: Mesh, held: torch.Tensor, source: torch.Tensor, out: torch.Tensor) -> None:
        share, homes, every = self.share(mesh), source.numpy(), np.arange(mesh.cores)
        number = share.partition.number
        found = route(share, homes, every, number[homes], number)
        start, inside, finish = self._crossing([(found, held.flatten(0, 1), out.flatten(0, 1))])
        _Several([*start, *inside, *finish])()

    def round(self, memory: Memory, round_: Round) -> list[Step]:
        ways = [self._way(memory, exchanges, Place(exchanges[0].src)) for exchanges in together(round_)]
        start, inside, finish = self._crossing(ways)
        computes = [self.compute(memory, op, tuple(map(Place, op.ins))) for op in round_.locals]
        return [*start, *inside, *computes, *finish] if round_.overlaps else [*start, *inside, *finish, *computes]

    def move(self, memory: Memory, exchanges: Sequence[Exchange], src: Place) -> Step:
        self._written(memory, exchanges[0].dst.buffer)
        start, inside, finish = self._crossing([self._way(memory, exchanges, src)])
        return _one([*start, *inside, *finish])

    def compute(self, memory: Memory, op: Local, ins: tuple[Place, ...]) -> Step:
        share, fetches = self.share(memory.mesh), list[Step]()
        cores = np.arange(memory.mesh.cores) if op.where is None else op.where.flat(memory.mesh)
        places = [self._near(memory, share, place, cores, number, fetches) for number, place in enumerate(ins)]
        for out in op.outs:
            self._written(memory, out.buffer)
        here = share.local(op)
        steps = [] if here is None else [self.inside.compute(self._local(memory, share), here, tuple(places))]
        return _one([*fetches, *steps])

    def products(self, memory: Memory, run: ComputeShifts, a: Place, b: Place) -> Step | None:
        """A rank fetches what its cores read in any round; a round then gathers the tiles that they hold by then."""
        share, shape = self.share(memory.mesh), memory.mesh.shape
        if any(memory.buffers[place.slot.buffer].slots > 1 for place in (a, b)):
            return None
        fetches, holds, gathers = list[Step](), list[str](), list[Gather]()
        for number, (place, to) in enumerate(zip((a, b), run.to, strict=True)):
            begins, gives = place.flat(shape), np.argsort(to)
            tiles, rows = self._reach(memory, share, place.slot.buffer, begins, gives, run.number, fetches)
            holds.append(self._halo(memory, share, place.slot.buffer, number))
            self._fetched.get(memory, {}).pop(holds[-1], None)  # whose tiles the product's take the place of
            gathers.append(Gather(tiles, rows, begins, gives, share.cores, memory.rows(Slot(holds[-1]))))
        local = self._local(memory, share)
        ins = tuple(map(Slot, holds))
        first, rest = (
            self.inside.joined(local, [self.inside.compute(
                local, Local("gemm", (Slot(run.c),), ins, {**run.params, "add": add}), tuple(map(Place, ins))
            )])
            for add in (run.add, True)
        )  # fmt: skip
        c, out = memory.tensors[run.c], memory.tensors[run.out]
        for name in {run.c, run.out}:
            self._written(memory, name)

        def step() -> None:
            for gather in gathers:
                gather.begin()
            for number in range(run.number):
                for gather in gathers:
                    gather.turn()
                for product in rest if number else first:
                    product()
            if run.out != run.c:
                out.copy_(c)

        return _one([*fetches, Apart(step)])

    def joined(self, memory: Memory, steps: list[Step]) -> list[Step]:
        local, result = self._local(memory, self.share(memory.mesh)), list[Step]()
        for apart, group in groupby(_each(steps), lambda step: isinstance(step, Apart)):
            stretch = list(group)
            result += stretch if apart else self.inside.joined(local, stretch)
        return result

    def _here(self, schedule: Schedule) -> Schedule:
        return replace(schedule, mesh=self.share(schedule.mesh).mesh)

    def _local(self, memory: Memory, share: Share) -> Memory:
        return Memory(share.mesh, memory.buffers, memory.tensors)

    def _way(self, memory: Memory, exchanges: Sequence[Exchange], src: Place) -> _Way:
        """The way of some exchanges from one slot to one; found once, however often it is bound."""
        known, key = self._known.setdefault(exchanges[0], {}), (memory.mesh, tuple(exchanges[1:]))
        in_place = src.lies_in(exchanges[0].src)
        if not in_place or key not in known:
            ends = [(each.senders.flat(memory.mesh), each.receivers.flat(memory.mesh)) for each in exchanges]
            senders, receivers = map(np.concatenate, zip(*ends, strict=True))
            homes = senders if src.is_own else src.flat(memory.mesh.shape)[senders]
            found = self._route(memory, src.slot, exchanges[0].dst, homes, receivers)
            if not in_place:
                return found, memory.rows(src.slot), memory.rows(exchanges[0].dst)
            known[key] = found
        return known[key], memory.rows(src.slot), memory.rows(exchanges[0].dst)

    def _route(self, memory: Memory, src: Slot, dst: Slot, homes: Index, receivers: Index) -> Route:
        share, rows = self.share(memory.mesh), []
        for slot, cores in ((src, homes), (dst, receivers)):
            number = share.partition.number[cores]
            if slot.index is not None:
                number = number * memory.buffers[slot.buffer].slots + slot.of_cores(cores, memory.mesh)
            rows.append(number)
        return route(share, homes, receivers, rows[0], rows[1])

    def _crossing(self, ways: Sequence[_Way]) -> tuple[list[Step], list[Step], list[Step]]:
        """The steps that send what crosses, that copy what does not, and that receive."""
        inside: list[Step] = [Apart(copied(found, source, target)) for found, source, target in ways if len(found.sent)]
        if not any(found.crossing for found, _, _ in ways):
            return [], inside, []
        crossing = Crossing(ways, self.group)
        return [Apart(crossing.start, crossing.bytes)], inside, [Apart(crossing.finish)]

    def _near(
        self, memory: Memory, share: Share, place: Place, cores: Index, number: int, fetches: list[Step]
    ) -> Place:
        """Where these cores find input `number` on this rank, once it was fetched from others if need be."""
        if place.is_own:
            return Place(share.slot(place.slot))
        homes = place.flat(memory.mesh.shape)
        if (share.partition.owner[homes[cores]] == share.partition.owner[cores]).all():
            base = np.arange(memory.mesh.cores)
            base[cores] = homes[cores]
            return Place(place.slot, base=share.partition.number[base[share.cores]])
        halo = self._halo(memory, share, place.slot.buffer, number)
        held = self._fetched.setdefault(memory, {})
        holds = (place.slot.buffer, homes[cores].tobytes() + cores.tobytes())
        if held.get(halo) != holds:
            held[halo] = holds
            found = self._route(memory, place.slot, Slot(halo), homes[cores], cores)
            start, inside, finish = self._crossing([(found, memory.rows(place.slot), memory.rows(Slot(halo)))])
            fetches += [*start, *inside, *finish]
        return Place(Slot(halo))

    def _written(self, memory: Memory, name: str) -> None:
        """What was fetched of a buffer is old from now on."""
        held = self._fetched.get(memory, {})
        for halo in [halo for halo, (source, _) in held.items() if source == name]:
            del held[halo]

    def _halo(self, memory: Memory, share: Share, name: str, number: int) -> str:
        """A buffer for tiles of `name` that lie elsewhere, of input `number` of an operation."""
        buffer = replace(memory.buffers[name], name=f"{name}.halo{number}", slots=1, role="scratch")
        if buffer.name not in memory.buffers:
            memory.buffers[buffer.name] = buffer
            memory.tensors[buffer.name] = memory.tensors[name].new_zeros(*share.mesh.shape, buffer.numel)
        return buffer.name

    def _reach(
        self, memory: Memory, share: Share, name: str, begins: Index, gives: Index, turns: int, fetches: list[Step]
    ) -> tuple[torch.Tensor, Index]:
        """Own tiles [tiles, numel] and behind them those of others that are read in some turn; the row of each core's.

        Core i reads the tile of core held[i], where `held` begins as `begins` and is held[gives] in the next turn.
        """
        owner, cores = share.partition.owner, memory.mesh.cores
        reads, held = np.zeros((self.ranks, cores), bool), begins
        for _ in range(turns):
            reads[owner, held] = True
            held = held[gives]
        rows = np.full(cores, -1)
        rows[share.cores] = np.arange(len(share.cores))
        others = np.flatnonzero(reads[self.rank] & (owner != self.rank))
        rows[others] = len(share.cores) + np.arange(len(others))
        source = memory.rows(Slot(name))
        tiles = source.new_zeros(len(share.cores) + len(others), source.shape[1])
        ranks, homes = np.nonzero(reads & (owner != np.arange(self.ranks)[:, None]))
        # a rank's first core stands for the rank, whose rows alone are asked for
        first = np.array([np.flatnonzero(owner == rank)[0] for rank in range(self.ranks)])
        found = route(share, homes, first[ranks], share.partition.number[homes], rows[homes])
        own = tiles[: len(share.cores)]
        start, _, finish = self._crossing([(found, source, tiles)])
        fetches += [*start, Apart(lambda: own.copy_(source)), *finish]
        return tiles, rows


_Way = tuple[Route, torch.Tensor, torch.Tensor]


class _Several:
    """Steps that stand for one until a program's steps are joined."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = _each(steps)

    def __call__(self) -> None:
        for step in self.steps:
            step()


def _each(steps: Sequence[Step]) -> list[Step]:
    return [step for one in steps for step in (one.steps if isinstance(one, _Several) else [one])]


def _one(steps: Sequence[Step]) -> Step:
    return steps[0] if len(steps) == 1 else _Several(steps)
