"""The distributed executor: every rank of a process group holds a rectangle of the mesh's cores.

Each rank plans the whole schedule and runs what concerns its cores, by another executor on its rectangle. Tiles that
stay on a rank are copied there. Those that cross are packed to one message for each pair of ranks and round, which is
under way while the rank computes what does not read it. With elided exchange a rank fetches the tiles of others that
its cores read, and of a run of compute-shift rounds all of them before the first.

The operations and their order are as in one process, so the results are bit-identical.
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

from wafer_triton.emulate.executor import Executor, whole
from wafer_triton.emulate.parts import Communication, Memory, Products, Segment, Step, Steps, TileMap, flat, together
from wafer_triton.emulate.ranks.group import OPERAND, agree, blaming, digest
from wafer_triton.emulate.ranks.shards import Shard, partition
from wafer_triton.emulate.ranks.transfers import Gather, SendRecv, Transfer, copied, route
from wafer_triton.errors import BackendError
from wafer_triton.layout import scatter
from wafer_triton.mesh import Mesh
from wafer_triton.schedule.rounds import Buffer, Exchange, Index, Local, Round, Schedule, Slot

_Way = tuple[SendRecv, torch.Tensor, torch.Tensor]


class DistributedExecutor(Executor):
    """Runs schedules on the ranks of `group` (default: all), of which each has an executor `inside` its rectangle.

    `shards` = (rows, columns) says into how many rectangles a mesh is cut; by default as few cores as can be lie at the
    cuts. All ranks make the same calls with the same values; tensors are given, and read, for all cores. Raises
    BackendError without a process group, and where the ranks do not agree.
    """

    def __init__(
        self, inside: Executor, group: dist.ProcessGroup | None = None, shards: tuple[int, int] | None = None
    ) -> None:
        super().__init__(exchange=inside.exchange, poison=inside.poison)
        if not dist.is_initialized():
            raise BackendError("there is no process group; start the ranks by torchrun, or call init_process_group")
        everyone = dist.group.WORLD if group is None else group
        assert everyone is not None
        self.inside, self.shards, self.group = inside, shards, everyone
        self.rank, self.ranks = self.group.rank(), self.group.size()
        options = {
            "executor": type(inside).__name__,
            "exchange": self.exchange,
            "poison": self.poison,
            "shards": shards,
        }
        agree(options | {"device": torch.device(self.device).type}, self.group)
        self._shards: dict[Mesh, Shard] = {}
        self._fetched: WeakKeyDictionary[Memory, dict[str, tuple[str, bytes]]] = WeakKeyDictionary()

    @property
    def device(self) -> str:
        return self.inside.device

    def on_device(self) -> AbstractContextManager[object]:
        return self.inside.on_device()

    def check(self) -> None:
        self.inside.check()

    def shard(self, mesh: Mesh) -> Shard:
        """Return the shard of a mesh; MeshError for a mesh with too few cores, BackendError for wrong `shards`."""
        if mesh not in self._shards:
            if self.shards is not None and self.shards[0] * self.shards[1] != self.ranks:
                sides = "x".join(map(str, self.shards))
                raise BackendError(f"shards {sides} are not one rectangle for each of {self.ranks} ranks; give another")
            self._shards[mesh] = Shard(partition(mesh, self.ranks, self.shards), self.rank)
        return self._shards[mesh]

    def meet(self, schedule: Schedule) -> None:
        agree({"schedule": schedule.name, "mesh": str(schedule.mesh), "rounds": len(schedule.rounds)}, self.group)

    def admit(self, schedule: Schedule, fresh: list[Buffer]) -> None:
        self.meet(schedule)
        self.inside.admit(self._here(schedule), fresh)

    def agree(self, name: str, given: torch.Tensor) -> None:
        agree({f"{OPERAND}{name}": digest(given)}, self.group)

    def store(self, schedule: Schedule, buffer: Buffer, given: torch.Tensor) -> torch.Tensor:
        if isinstance(given, torch.Tensor) and given.shape[:2] == schedule.mesh.shape:
            self.agree(buffer.name, given)
        return super().store(schedule, buffer, given)

    def allocate(self, schedule: Schedule, buffer: Buffer) -> torch.Tensor:
        return self.inside.allocate(self._here(schedule), buffer)

    def part(self, schedule: Schedule, buffer: Buffer, given: torch.Tensor) -> torch.Tensor:
        """As of `Executor`; tiles of the rank's own rectangle alone are taken too."""
        here = self._here(schedule)
        if isinstance(given, torch.Tensor) and given.shape[:2] == here.mesh.shape:
            return whole(here, buffer, given)
        return whole(schedule, buffer, given)[self.rectangle(schedule.mesh)]

    def enter(self, schedule: Schedule, name: str, memory: torch.Tensor, tensor: torch.Tensor, pattern: str) -> None:
        memory.copy_(self.part(schedule, schedule.buffers[name], scatter(tensor, schedule.mesh, pattern).tiles))

    def rectangle(self, mesh: Mesh) -> tuple[slice, slice]:
        return self.shard(mesh).rectangle

    def together(self, mesh: Mesh, held: torch.Tensor) -> torch.Tensor:
        """The values of all ranks, on every rank."""
        shard = self.shard(mesh)
        tiles, works = held.new_empty(*mesh.shape, *held.shape[2:]), []
        parts = [tiles[shard.partition.rectangle(rank)].contiguous() for rank in range(self.ranks)]
        parts[self.rank] = held.contiguous()
        with blaming(self.group):
            for rank, part in enumerate(parts):
                works.append(dist.broadcast(part, group=self.group, group_src=rank, async_op=True))
            for work in works:
                assert work is not None
                work.wait()
        for rank, part in enumerate(parts):
            tiles[shard.partition.rectangle(rank)] = part
        return tiles

    def take(self, mesh: Mesh, held: torch.Tensor, source: torch.Tensor, out: torch.Tensor) -> None:
        shard, homes, every = self.shard(mesh), source.numpy(), np.arange(mesh.cores)
        number = shard.partition.number
        found = route(shard, homes, every, number[homes], number)
        start, inside, finish = self._crossing([(found, held.flatten(0, 1), out.flatten(0, 1))])
        Steps([*start, *inside, *finish])()

    def round(self, memory: Memory, round_: Round) -> list[Step]:
        ways = [self._way(memory, exchanges, TileMap(exchanges[0].src)) for exchanges in together(round_)]
        start, inside, finish = self._crossing(ways)
        computes = [self.compute(memory, op, tuple(map(TileMap, op.ins))) for op in round_.locals]
        return [*start, *inside, *computes, *finish] if round_.overlaps else [*start, *inside, *finish, *computes]

    def move(self, memory: Memory, exchanges: Sequence[Exchange], src: TileMap) -> Step:
        self._written(memory, exchanges[0].dst.buffer)
        start, inside, finish = self._crossing([self._way(memory, exchanges, src)])
        return Steps([*start, *inside, *finish])

    def compute(self, memory: Memory, op: Local, ins: tuple[TileMap, ...]) -> Step:
        shard, fetches = self.shard(memory.mesh), list[Step]()
        cores = np.arange(memory.mesh.cores) if op.where is None else op.where.flat(memory.mesh)
        places = [self._near(memory, shard, place, cores, number, fetches) for number, place in enumerate(ins)]
        for out in op.outs:
            self._written(memory, out.buffer)
        here = shard.local(op)
        steps = [] if here is None else [self.inside.compute(self._local(memory, shard), here, tuple(places))]
        return Steps([*fetches, *steps])

    def segment(self, memory: Memory, segment: Segment, ins: tuple[TileMap, ...] = ()) -> list[Step] | None:
        return self._products(memory, segment, ins) if isinstance(segment, Products) and ins else None

    def _products(self, memory: Memory, run: Products, ins: tuple[TileMap, ...]) -> list[Step] | None:
        """A rank fetches what its cores read in any round; a round then gathers the tiles that they hold by then."""
        shard = self.shard(memory.mesh)
        if any(memory.buffers[place.slot.buffer].slots > 1 for place in ins):
            return None
        fetches, holds, gathers = list[Step](), list[str](), list[Gather]()
        for number, (place, to) in enumerate(zip(ins, run.to, strict=True)):
            begins, gives = place.homes(memory.mesh), np.argsort(to)
            tiles, rows = self._reach(memory, shard, place.slot.buffer, begins, gives, run.number, fetches)
            holds.append(self._halo(memory, shard, place.slot.buffer, number))
            self._fetched.get(memory, {}).pop(holds[-1], None)  # whose tiles the product's take the place of
            gathers.append(Gather(tiles, rows, begins, gives, shard.cores, memory.rows(Slot(holds[-1]))))
        local = self._local(memory, shard)
        held = tuple(map(Slot, holds))
        products = [Local("gemm", (Slot(run.c),), held, {**run.params, "add": add}) for add in (run.add, True)]
        first, rest = (
            self.inside.joined(local, flat([self.inside.compute(local, op, tuple(map(TileMap, held)))]))
            for op in products
        )
        c, out = memory.tensors[run.c], memory.tensors[run.out]
        for name in {run.c, run.out}:
            self._written(memory, name)

        def step() -> None:
            for gather in gathers:
                gather.begin()
            for number in range(run.number):
                for gather in gathers:
                    gather.step()
                for product in rest if number else first:
                    product()
            if run.out != run.c:
                out.copy_(c)

        return flat([*fetches, Communication(step)])

    def joined(self, memory: Memory, steps: list[Step]) -> list[Step]:
        local, result = self._local(memory, self.shard(memory.mesh)), list[Step]()
        for apart, group in groupby(steps, lambda step: isinstance(step, Communication)):
            stretch = list(group)
            result += stretch if apart else self.inside.joined(local, stretch)
        return result

    def _here(self, schedule: Schedule) -> Schedule:
        return replace(schedule, mesh=self.shard(schedule.mesh).mesh)

    def _local(self, memory: Memory, shard: Shard) -> Memory:
        return Memory(shard.mesh, memory.buffers, memory.tensors, memory.workspace)

    def _way(self, memory: Memory, exchanges: Sequence[Exchange], src: TileMap) -> _Way:
        """The way of some exchanges from one slot to one."""
        ends = [(each.senders.flat(memory.mesh), each.receivers.flat(memory.mesh)) for each in exchanges]
        senders, receivers = map(np.concatenate, zip(*ends, strict=True))
        homes = senders if src.is_own else src.homes(memory.mesh)[senders]
        found = self._route(memory, src.slot, exchanges[0].dst, homes, receivers)
        return found, memory.rows(src.slot), memory.rows(exchanges[0].dst)

    def _route(self, memory: Memory, src: Slot, dst: Slot, homes: Index, receivers: Index) -> SendRecv:
        shard, rows = self.shard(memory.mesh), []
        for slot, cores in ((src, homes), (dst, receivers)):
            number = shard.partition.number[cores]
            if slot.index is not None:
                number = number * memory.buffers[slot.buffer].slots + slot.of_cores(cores, memory.mesh)
            rows.append(number)
        return route(shard, homes, receivers, rows[0], rows[1])

    def _crossing(self, ways: Sequence[_Way]) -> tuple[list[Step], list[Step], list[Step]]:
        """The steps that send what crosses, that copy what does not, and that receive."""
        inside: list[Step] = [
            Communication(copied(found, source, target)) for found, source, target in ways if len(found.sent)
        ]
        if not any(found.crossing for found, _, _ in ways):
            return [], inside, []
        crossing = Transfer(ways, self.group)
        return [Communication(crossing.start, crossing.bytes)], inside, [Communication(crossing.finish)]

    def _near(
        self, memory: Memory, shard: Shard, place: TileMap, cores: Index, number: int, fetches: list[Step]
    ) -> TileMap:
        """Where these cores find input `number` on this rank, once it was fetched from others if need be."""
        if place.is_own:
            return TileMap(shard.slot(place.slot))
        homes = place.homes(memory.mesh)
        if (shard.partition.owner[homes[cores]] == shard.partition.owner[cores]).all():
            base = np.arange(memory.mesh.cores)
            base[cores] = homes[cores]
            return TileMap(place.slot, base=shard.partition.number[base[shard.cores]])
        halo = self._halo(memory, shard, place.slot.buffer, number)
        held = self._fetched.setdefault(memory, {})
        holds = (place.slot.buffer, homes[cores].tobytes() + cores.tobytes())
        if held.get(halo) != holds:
            held[halo] = holds
            found = self._route(memory, place.slot, Slot(halo), homes[cores], cores)
            start, inside, finish = self._crossing([(found, memory.rows(place.slot), memory.rows(Slot(halo)))])
            fetches += [*start, *inside, *finish]
        return TileMap(Slot(halo))

    def _written(self, memory: Memory, name: str) -> None:
        """What was fetched of a buffer is old from now on."""
        held = self._fetched.get(memory, {})
        for halo in [halo for halo, (source, _) in held.items() if source == name]:
            del held[halo]

    def _halo(self, memory: Memory, shard: Shard, name: str, number: int) -> str:
        """A buffer for tiles of `name` that lie elsewhere, of input `number` of an operation."""
        buffer = replace(memory.buffers[name], name=f"{name}.halo{number}", slots=1, role="scratch")
        if buffer.name not in memory.buffers:
            memory.buffers[buffer.name] = buffer
            memory.tensors[buffer.name] = memory.tensors[name].new_zeros(*shard.mesh.shape, buffer.numel)
        return buffer.name

    def _reach(
        self, memory: Memory, shard: Shard, name: str, begins: Index, gives: Index, iterations: int, fetches: list[Step]
    ) -> tuple[torch.Tensor, Index]:
        """Return own tiles [tiles, numel], then the tiles of others that an iteration reads; and the row of each core.

        Core i reads the tile of core held[i], where `held` begins as `begins` and is held[gives] in the next iteration.
        """
        owner, cores = shard.partition.owner, memory.mesh.cores
        reads, held = np.zeros((self.ranks, cores), bool), begins
        for _ in range(iterations):
            reads[owner, held] = True
            held = held[gives]
        rows = np.full(cores, -1)
        rows[shard.cores] = np.arange(len(shard.cores))
        others = np.flatnonzero(reads[self.rank] & (owner != self.rank))
        rows[others] = len(shard.cores) + np.arange(len(others))
        source = memory.rows(Slot(name))
        tiles = source.new_zeros(len(shard.cores) + len(others), source.shape[1])
        ranks, homes = np.nonzero(reads & (owner != np.arange(self.ranks)[:, None]))
        # a rank's first core stands for the rank, whose rows alone are asked for
        first = np.array([np.flatnonzero(owner == rank)[0] for rank in range(self.ranks)])
        found = route(shard, homes, first[ranks], shard.partition.number[homes], rows[homes])
        own = tiles[: len(shard.cores)]
        start, _, finish = self._crossing([(found, source, tiles)])
        fetches += [*start, Communication(lambda: own.copy_(source)), *finish]
        return tiles, rows
