"""The distributed executor: every rank of a process group holds a rectangle of the mesh's cores.

Each rank plans the whole schedule and runs the part of its own cores, by another executor on its rectangle. Tiles that
stay on a rank are copied there. Others are sent in one message for each pair of ranks and of slots. The transfer
overlaps local operations that do not depend on it. With elided exchange a rank fetches the tiles of other ranks that
its cores read; for compute-shift rounds all of them before the first round.

The operations and their order are as in one process, and so are the bits. Unless tiles are whole cache lines, those of
a BLAS that rounds by the place of a result in its line may differ in the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np
import torch
import torch.distributed as dist

from wafer_triton.device.layout import scatter, sharding
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.executor import Executor
from wafer_triton.emulate.parts import Call, Cut, Launch, Memory, Products, Segment, Task, TileMap
from wafer_triton.emulate.planner import by_slots, checked_tiles
from wafer_triton.emulate.ranks.group import CONTENT, OPERAND, agree, digest, fingerprint, naming_lost_rank
from wafer_triton.emulate.ranks.shards import Shard, partition
from wafer_triton.emulate.ranks.transfers import Rows, Transfer
from wafer_triton.errors import BackendError
from wafer_triton.schedule.access import overlaps
from wafer_triton.schedule.rounds import HIDDEN, Buffer, Exchange, Index, Local, Round, Slot
from wafer_triton.schedule.schedule import Schedule


class DistributedExecutor(Executor):
    """Runs schedules on the ranks of `group` (default: all); executor `inside` runs this rank's rectangle of cores.

    `shards` = (rows, columns) says into how many rectangles a mesh is cut; by default the cut with the fewest cores at
    its borders. All ranks make the same calls with the same values; tensors are given, and read, for all cores. Raises
    BackendError without a process group, and if ranks differ in their options, schedules or operands.
    """

    def __init__(
        self, inside: Executor, group: dist.ProcessGroup | None = None, shards: tuple[int, int] | None = None
    ) -> None:
        super().__init__(inside.device, exchange=inside.exchange, poison=inside.poison)
        if not dist.is_initialized():
            raise BackendError("there is no process group; start the ranks by torchrun, or call init_process_group")
        everyone = dist.group.WORLD if group is None else group
        assert everyone is not None
        self.inside, self.shards, self.group = inside, shards, everyone
        self.rank, self.ranks = self.group.rank(), self.group.size()
        self.fuses = self.exchange == "elided"
        options = {"executor": type(inside).__name__, "exchange": self.exchange, "poison": self.poison}
        agree(options | {"shards": shards, "device": torch.device(self.device).type}, self.group)
        self._shards: dict[Mesh, Shard] = {}

    def on_device(self) -> AbstractContextManager[object]:
        return self.inside.on_device()

    def check(self) -> None:
        self.inside.check()

    def shard(self, mesh: Mesh) -> Shard:
        """Return this rank's shard of a mesh; MeshError for too few cores, BackendError for a wrong `shards`."""
        if mesh not in self._shards:
            if self.shards is not None and self.shards[0] * self.shards[1] != self.ranks:
                sides = "x".join(map(str, self.shards))
                raise BackendError(f"shards {sides} are not one rectangle for each of {self.ranks} ranks; give another")
            self._shards[mesh] = Shard(partition(mesh, self.ranks, self.shards), self.rank)
        return self._shards[mesh]

    def agree_on_schedule(self, schedule: Schedule) -> None:
        options = {"schedule": schedule.name, "mesh": str(schedule.mesh), "rounds": len(schedule.rounds)}
        agree(options | {CONTENT: fingerprint(schedule)}, self.group)

    def check_allocation(self, schedule: Schedule, fresh: list[Buffer]) -> None:
        self.agree_on_schedule(schedule)
        self.inside.check_allocation(self._local_schedule(schedule), fresh)

    def agree_on_operand(self, name: str, values: torch.Tensor) -> None:
        agree({f"{OPERAND}{name}": digest(values)}, self.group)

    def store(self, schedule: Schedule, buffer: Buffer, values: torch.Tensor) -> torch.Tensor:
        if isinstance(values, torch.Tensor) and values.shape[:2] == schedule.mesh.shape:
            self.agree_on_operand(buffer.name, values)
        return super().store(schedule, buffer, values)

    def allocate(self, schedule: Schedule, buffer: Buffer) -> torch.Tensor:
        return self.inside.allocate(self._local_schedule(schedule), buffer)

    def local_tiles(self, schedule: Schedule, buffer: Buffer, values: torch.Tensor) -> torch.Tensor:
        """Return the tiles of this rank's own cores; `values` has the tiles of all cores, or of these alone."""
        local = self._local_schedule(schedule)
        if isinstance(values, torch.Tensor) and values.shape[:2] == local.mesh.shape:
            return checked_tiles(local, buffer, values)
        return checked_tiles(schedule, buffer, values)[self.rectangle(schedule.mesh)]

    def plan_scatter(
        self, schedule: Schedule, name: str, memory: torch.Tensor, cut: Cut
    ) -> Callable[[torch.Tensor], object]:
        buffer = schedule.buffers[name]
        return lambda tensor: memory.copy_(
            self.local_tiles(schedule, buffer, scatter(tensor, schedule.mesh, cut[0]).tiles)
        )

    def plan_gather(self, schedule: Schedule, memory: torch.Tensor, cut: Cut) -> Callable[[], torch.Tensor]:
        made = sharding(*cut, schedule.mesh.shape)
        return lambda: made.plan_gather(self.all_gather(schedule.mesh, memory))()

    def rectangle(self, mesh: Mesh) -> tuple[slice, slice]:
        return self.shard(mesh).rectangle

    def all_gather(self, mesh: Mesh, local: torch.Tensor) -> torch.Tensor:
        """Return the values of all cores, on every rank."""
        shard = self.shard(mesh)
        tiles = local.new_empty(*mesh.shape, *local.shape[2:])
        parts = [tiles[shard.partition.rectangle(rank)].contiguous() for rank in range(self.ranks)]
        parts[self.rank] = local.contiguous()
        with naming_lost_rank(self.group):
            sent = [
                dist.broadcast(part, group=self.group, group_src=at, async_op=True) for at, part in enumerate(parts)
            ]
            for work in filter(None, sent):
                work.wait()
        for rank, part in enumerate(parts):
            tiles[shard.partition.rectangle(rank)] = part
        return tiles

    def round(self, memory: Memory, round_: Round) -> list[Task]:
        moves = self._transfer(
            [self._sent(memory, exchanges, TileMap(exchanges[0].src)) for exchanges in by_slots(round_)]
        )
        computes = [step for op in round_.locals for step in self.compute(memory, op, tuple(map(TileMap, op.ins)))]
        return [*moves[:1], *computes, *moves[1:]] if overlaps(round_) else [*moves, *computes]

    def move(self, memory: Memory, exchanges: Sequence[Exchange], src: TileMap) -> list[Task]:
        self._drop_halos(memory, exchanges[0].dst.buffer)
        return self._transfer([self._sent(memory, exchanges, src)])

    def compute(self, memory: Memory, op: Local, ins: tuple[TileMap, ...]) -> list[Task]:
        shard, steps = self.shard(memory.mesh), list[Task]()
        cores = op.cores(memory.mesh)
        reads = tuple(self._local_map(memory, tile_map, cores, number, steps) for number, tile_map in enumerate(ins))
        for out in op.outs:
            self._drop_halos(memory, out.buffer)
        local_op = shard.local(op)
        return steps if local_op is None else steps + self.inside.compute(self._local_memory(memory), local_op, reads)

    def segment(self, memory: Memory, segment: Segment, ins: tuple[TileMap, ...] = ()) -> list[Task] | None:
        """Return steps that fetch all tiles of other ranks that these products read, then run the products.

        None to run other segments, or without tile maps, round by round.
        """
        if not isinstance(segment, Products) or not ins:
            return None
        owner, steps, lie = self.shard(memory.mesh).partition.owner, list[Task](), list[list[Index]]()
        for number, (tile_map, moves) in enumerate(zip(ins, segment.shifts, strict=True)):
            send, recv = moves.ends(memory.mesh)
            homes, gives = [memory.rows_of(tile_map, np.arange(memory.mesh.cores))], send[recv.argsort()]
            for _ in range(1, segment.count):
                homes.append(homes[-1][gives])
            reads = np.zeros((self.ranks, memory.mesh.cores), bool)
            reads[owner, homes] = True
            self._halo(memory, tile_map.slot.buffer, number, reads, steps)
            lie.append(homes)
        for round_, *homes in zip(segment.rounds, *lie, strict=False):
            maps = tuple(TileMap(one.slot, each) for one, each in zip(ins, homes, strict=True))
            steps += self.fuse_tasks(memory, self.compute(memory, round_.locals[0], maps))
        return steps + [step for round_ in segment.rounds[segment.count :] for step in self.round(memory, round_)]

    def fuse_tasks(self, memory: Memory, tasks: list[Task]) -> list[Call]:
        return self.inside.fuse_tasks(self._local_memory(memory), tasks)  # transfers are calls, which stay as they are

    def _local_schedule(self, schedule: Schedule) -> Schedule:
        return replace(schedule, mesh=self.shard(schedule.mesh).mesh)

    def _local_memory(self, memory: Memory) -> Memory:
        return Memory(self.shard(memory.mesh).mesh, memory.buffers, memory.tensors, memory.workspace)

    def _sent(self, memory: Memory, exchanges: Sequence[Exchange], src: TileMap) -> tuple[Rows, Rows]:
        """Return where the tiles of exchanges that share two slots lie, and where they go."""
        ends = map(np.concatenate, zip(*(each.moves.ends(memory.mesh) for each in exchanges), strict=True))
        senders, receivers = (
            self._rows(memory, tile_map.slot, memory.rows_of(tile_map, cores))
            for tile_map, cores in zip((src, TileMap(exchanges[0].dst)), ends, strict=True)
        )
        return senders, receivers

    def _rows(self, memory: Memory, slot: Slot, rows: Index) -> Rows:
        """Return rows of `memory.rows(slot)` of all cores as rows of the ranks that hold them."""
        slots = 1 if slot.index is None else memory.buffers[slot.buffer].slots
        return Rows(memory.rows(slot), *self.shard(memory.mesh).partition.places(rows, slots))

    def _transfer(self, copies: Sequence[tuple[Rows, Rows]]) -> list[Task]:
        """Return two launches, which start and finish the transfer of all tiles; none if no tile moves."""
        transfer = Transfer(copies, self.group)
        if not transfer.bytes and not transfer.copies:
            return []
        return [Launch("", transfer.start, transfer.bytes), Launch("", transfer.finish)]

    def _local_map(self, memory: Memory, tile_map: TileMap, cores: Index, number: int, steps: list[Task]) -> TileMap:
        """Return where the rank's own `cores` read input `number`, and append fetches from other ranks to `steps`."""
        shard, slot = self.shard(memory.mesh), tile_map.slot
        if tile_map.base is None:
            return TileMap(shard.slot(slot))
        owner, slots = shard.partition.owner, memory.buffers[slot.buffer].slots
        row = np.arange(memory.mesh.cores) * slots
        row[cores] = tile_map.base[cores]
        holder, local_row = shard.partition.places(row, slots)
        if (holder[cores] == owner[cores]).all():
            return TileMap(slot, local_row[shard.cores])
        reads = np.zeros((self.ranks, memory.mesh.cores * slots), bool)
        reads[owner[cores], row[cores]] = True
        slot, halo_rows = self._halo(memory, slot.buffer, number, reads, steps)
        return TileMap(slot, halo_rows[row[shard.cores]])

    def _halo(self, memory: Memory, name: str, number: int, reads: Index, steps: list[Task]) -> tuple[Slot, Index]:
        """Return a slot with all tiles of buffer `name` that the rank reads, and for all cores' slots their rows in it.

        `reads` [ranks, cores * slots] says which tiles each rank reads, as input `number` of an operation. Steps that
        fetch them are added to `steps`, unless an earlier step has fetched them for this input.
        """
        halo, fetched = f"{name}{HIDDEN}halo{number}", memory.halos.get((name, number))
        if fetched is None or (reads & ~fetched).any():
            memory.halos[name, number] = fetched = reads
            memory.buffers[halo] = replace(memory.buffers[name], name=halo, slots=1, role="scratch")
            count = int(reads[self.rank].sum())
            if halo not in memory.tensors or memory.tensors[halo].shape[1] < count:
                memory.tensors[halo] = memory.tensors[name].new_zeros(1, count, memory.buffers[name].numel)
            ranks, row = np.nonzero(reads)
            halo_rows = np.cumsum(reads, axis=1) - 1
            target = Rows(memory.rows(Slot(halo)), ranks, halo_rows[ranks, row])
            steps += self._transfer([(self._rows(memory, Slot(name), row), target)])
        return Slot(halo), np.cumsum(fetched[self.rank]) - 1

    def _drop_halos(self, memory: Memory, name: str) -> None:
        """Forget the fetched tiles of a buffer, which is about to be written."""
        for key in [key for key in memory.halos if key[0] == name]:
            del memory.halos[key]
