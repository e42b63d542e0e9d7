"""The Triton executor: one program instance is one core, mailboxes lie in global memory.

A launch is a round, or the rounds that `launches` finds to go together. A kernel sees pointers, tables and sizes, never
a schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from wafer_triton.emulate.executor import Executor
from wafer_triton.emulate.graph import Graph
from wafer_triton.emulate.plan import Launch, Memory, Step, TileMap
from wafer_triton.emulate.program import Program
from wafer_triton.emulate.segments import Products, Segment, Tree, shifts
from wafer_triton.errors import BackendError
from wafer_triton.kernels import table
from wafer_triton.kernels._common import INTERPRET, Operand
from wafer_triton.kernels.chain import Stretch, chain, flags_of, number_of
from wafer_triton.kernels.chain import Tree as ReduceTree
from wafer_triton.kernels.compute_shift import one_round, residency, several_rounds
from wafer_triton.kernels.elided import Labels, elided
from wafer_triton.kernels.exchange import Moves
from wafer_triton.kernels.exchange import exchange as exchange_kernel
from wafer_triton.kernels.parts import LocalKernel
from wafer_triton.kernels.parts import launch as launch_parts
from wafer_triton.kernels.protocol import SLOTS, window
from wafer_triton.kernels.waiting import Watch
from wafer_triton.schedule.rounds import Buffer, Exchange, Index, Local, Round, Schedule, Slot

LAUNCHES = ("auto", "persistent", "rounds")
MARGIN = 8  # of the programs that a GPU holds, one in so many is not counted on for windows: others may be on it


class TritonExecutor(Executor):
    """Runs schedules on a CUDA device, or on the CPU under TRITON_INTERPRET=1 (small meshes).

    `launch` is how compute-shift rounds run: "persistent", all in one launch, for which the whole mesh must fit on the
    GPU at once; "rounds", one by one; or "auto", as many in a launch as are safe. `shuffle` is a seed for the order of
    the cores in every launch, to show that it does not matter. Raises BackendError where Triton cannot run.
    """

    def __init__(
        self,
        *,
        device: str | None = None,
        exchange: str = "explicit",
        launch: str = "auto",
        poison: bool = False,
        shuffle: int | None = None,
    ) -> None:
        super().__init__(exchange=exchange, poison=poison)
        if launch not in LAUNCHES:
            raise BackendError(f"launch {launch!r}: choose one of {', '.join(LAUNCHES)}")
        self.launch = launch
        interpreted = bool(INTERPRET.value)
        self._device = device or ("cpu" if interpreted else "cuda")
        if torch.device(self._device).type == "cpu" and not interpreted:
            raise BackendError("the Triton backend runs on a CPU only under TRITON_INTERPRET=1; set it, or use torch")
        if torch.device(self._device).type != "cpu" and not torch.cuda.is_available():
            raise BackendError("the Triton backend found no GPU; use backend='torch', or set TRITON_INTERPRET=1")
        self._among: WeakKeyDictionary[Memory, list[Any]] = WeakKeyDictionary()
        self._random = None if shuffle is None else np.random.default_rng(shuffle)

    @property
    def device(self) -> str:
        return self._device

    @cached_property
    def watch(self) -> Watch:
        """What looks after launches whose programs wait for each other."""
        return Watch(self.device)

    def check(self) -> None:
        recording = torch.device(self.device).type == "cuda" and torch.cuda.is_current_stream_capturing()
        if "watch" in self.__dict__ and not recording:
            self.watch.check()

    def admit(self, schedule: Schedule, fresh: list[Buffer]) -> None:
        on_gpu = torch.device(self.device).type == "cuda"
        if on_gpu and any(buffer.dtype == "bf16" for buffer in fresh) and not torch.cuda.is_bf16_supported(False):
            name = torch.cuda.get_device_name(self.device)
            raise BackendError(f"{schedule.name}: {name} has no bf16 arithmetic; use fp16 or fp32, or backend='torch'")
        super().admit(schedule, fresh)

    def on_device(self) -> AbstractContextManager[object]:
        """Triton launches on the current GPU, whichever the tensors lie on."""
        return torch.cuda.device(self.device) if torch.device(self.device).index is not None else nullcontext()

    @property
    def graphs(self) -> bool:
        return torch.device(self.device).type == "cuda"

    def capture(self, run: Step, compiled: bool = False) -> Step:
        return Graph(run, self.on_device, compiled) if self.graphs else run

    def rebind(self, program: Program, schedule: Schedule) -> None:
        if program.tables is None or program.tables.schedule is None:
            super().rebind(program, schedule)
            return
        if program.tables.schedule is not schedule:  # another program that shares them may have been here first
            self.plan(program, schedule)
        program.schedule = schedule

    def move(self, memory: Memory, exchanges: Sequence[Exchange], src: TileMap) -> Step:
        """The messages of exchanges of a round from one slot to one slot."""
        ends = [(exchange.receivers.flat(memory.mesh), exchange.senders.flat(memory.mesh)) for exchange in exchanges]
        receivers, senders = map(np.concatenate, zip(*ends, strict=True))
        order = self._order(len(receivers))
        room = 0 if memory.tables is None else memory.mesh.cores - len(receivers)  # other schedules may send more
        recv, send = (
            self._table(memory, np.pad(cores[order], (0, room), constant_values=-1)) for cores in (receivers, senders)
        )
        sent, dst = exchanges[0].src, exchanges[0].dst
        target, source = self._operand(memory, TileMap(dst)), self._operand(memory, src)
        buffer = memory.buffers[sent.buffer]
        numel = buffer.numel * (buffer.slots if sent.index is None else 1)
        return Launch("exchange", partial(exchange_kernel, [Moves(target, source, recv, send)], [numel]))

    def compute(self, memory: Memory, op: Local, ins: tuple[TileMap, ...]) -> Step:
        kernel, cores = table.find(op.op), self._cores(memory, op)
        outs, reads = self._operands(memory, op, ins)
        if not isinstance(kernel, LocalKernel):
            return Launch(op.op, partial(kernel, outs, reads, cores, **op.params))
        part = kernel.part(outs, reads, **op.params)
        self._among.setdefault(memory, []).append(part)
        return Launch(op.op, partial(launch_parts, (part,), cores, self._among[memory]))

    def _operands(
        self, memory: Memory, op: Local, ins: tuple[TileMap, ...]
    ) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
        outs = tuple(self._operand(memory, TileMap(out)) for out in op.outs)
        return outs, tuple(self._operand(memory, place) for place in ins)

    def segment(self, memory: Memory, segment: Segment, ins: tuple[TileMap, ...] = ()) -> list[Step] | None:
        if isinstance(segment, Products):
            return self._elided(memory, segment, *ins) if ins else self._shifts(memory, segment)
        if isinstance(segment, Tree):
            sends = segment.broadcast if self.exchange == "explicit" else None
            return [self._tree(memory, segment), *(self.round(memory, sends) if sends is not None else [])]
        return None

    def _shifts(self, memory: Memory, run: Products) -> list[Step]:
        mesh, number = memory.mesh, run.number
        c, out = (self._operand(memory, TileMap(Slot(name))) for name in (run.c, run.out))
        a, b = (
            (self._operand(memory, TileMap(first)), self._operand(memory, TileMap(second)))
            for first, second in (run.a, run.b)
        )
        to_a, to_b = run.to
        order = self._order(mesh.cores)
        cores, sends = self._table(memory, order), (self._table(memory, to_a), self._table(memory, to_b))
        neighbours = self._table(memory, np.stack([to_a, to_b, np.argsort(to_a), np.argsort(to_b)], axis=1))
        counters = torch.zeros(SLOTS, mesh.cores, dtype=torch.int32, device=self.device)
        round_of = lambda core, round_: run.start + round_  # noqa: E731
        alarm = self.watch.alarm("compute-shift", mesh.shape[1], [counters], round_of)
        shared = (a, b, neighbours, counters, cores, alarm)
        most, fits, tight = 0, 0, False
        if self.launch != "rounds":
            # all rounds in one launch, else by launches of three kinds, of which the worst counts
            alone: dict[str, Any] = {**run.params, "add": run.add}
            fits = residency(c, out, *shared, **alone)
            if 0 < fits < mesh.cores:  # values on the stack cost less than several launches
                tight = residency(c, out, *shared, **alone, tight=True) >= mesh.cores
                fits = mesh.cores if tight else fits
            if fits < mesh.cores and self.launch == "auto":
                ways = [(c, run.add), (c, True), (out, True)]
                fits = min(residency(c, end, *shared, **{**run.params, "add": add}) for end, add in ways)
                fits = min(fits, mesh.cores - 1) - fits // MARGIN
        most = window((to_a, to_b), order, fits, number) if fits else 1
        if self.launch == "persistent" and not fits and torch.device(self.device).type == "cpu":
            raise BackendError("launch='persistent' needs a GPU, as programs wait for each other; use launch='auto'")
        if self.launch == "persistent" and most < number:
            raise BackendError(
                f"launch='persistent': {self.device} holds {fits} programs of this kernel at once, the mesh of "
                f"{mesh.shape[0]} x {mesh.shape[1]} needs {mesh.cores}; use launch='auto', or a smaller mesh or tile"
            )

        steps: list[Step] = []
        for start in range(0, number, most):
            rounds, here, there = min(most, number - start), start % SLOTS, (start + 1) % SLOTS
            params: dict[str, Any] = {**run.params, "add": run.add or start > 0}
            target = out if start + rounds == number else c
            chosen = params | {"rounds": rounds, "here": here, "whole": fits >= mesh.cores, "tight": tight}
            launch = partial(several_rounds, c, target, *shared, **chosen)
            if most == 1:
                launch = partial(one_round, c, target, a[here], b[here], a[there], b[there], *sends, cores, **params)
            steps.append(Launch(f"compute-shift, {rounds} round{'s' * (rounds > 1)} in a launch", launch))
        return steps

    def _elided(self, memory: Memory, run: Products, a: TileMap, b: TileMap) -> list[Step] | None:
        """One launch for a run of compute-shift rounds around whole rings, see `kernels.elided`."""
        rings = run.rings
        if rings is None or run.number != memory.mesh.shape[0] or run.params.get("heads", 1) > 1:
            return None
        rows, cols = rings
        side = np.arange(len(rows))
        shape = memory.mesh.shape
        # [position, label]: the core that holds the tile which carries that label along this row, or column
        back = (side[None, :] - side[:, None]) % len(side)
        of_a = a.flat(shape).reshape(shape)[rows[:, None], cols[back]]
        of_b = b.flat(shape).reshape(shape)[rows[back], cols[:, None]]
        c, out, x, y = (self._operand(memory, TileMap(slot)) for slot in (Slot(run.c), Slot(run.out), a.slot, b.slot))
        tables = (
            self._table(memory, rows),
            self._table(memory, cols),
            self._labels(memory, of_a),
            self._labels(memory, of_b),
        )
        launch = partial(elided, c, out, x, y, *tables, add=run.add, **run.params)
        return [Launch(f"MeshGEMM, {run.number} rounds in a launch", launch)]

    def _labels(self, memory: Memory, lie: Index) -> Labels:
        first, table = lie[:, 0] - lie[0, 0], lie[0]
        if (first[:, None] + table == lie).all():
            return Labels(self._table(memory, first), self._table(memory, table), 0)
        return Labels(self._table(memory, np.zeros_like(first)), self._table(memory, lie), len(lie))

    def round(self, memory: Memory, round_: Round) -> list[Step]:
        sends = shifts(round_, memory.mesh)
        if not sends:
            return super().round(memory, round_)
        (op,) = round_.locals
        out, a, b = (self._operand(memory, TileMap(slot)) for slot in (*op.outs, *op.ins))
        targets, tables = {0: a, 1: b}, {}
        for number, (exchange, to) in sends.items():
            targets[number] = self._operand(memory, TileMap(exchange.dst))
            tables[number] = self._table(memory, to)
        cores, ends = self._cores(memory, op), (targets[0], targets[1], tables.get(0), tables.get(1))
        run = partial(one_round, out, out, a, b, *ends, cores, **op.params)
        return [Launch("compute-shift, 1 round in a launch", run)]

    def _tree(self, memory: Memory, tree: Tree) -> Step:
        acc = self._operand(memory, TileMap(Slot(tree.acc)))
        numel, cores, slots = memory.buffers[tree.acc].numel, memory.mesh.cores, int(tree.children.max())
        mailbox = torch.full((cores, slots, numel), self.unwritten, dtype=acc.tensor.dtype, device=self.device)
        ties = self._order(cores)
        order = self._table(memory, ties[np.argsort(tree.sent[ties], kind="stable")])
        tables = [self._table(memory, index) for index in (tree.children, tree.parent, tree.slot)]
        box = Operand(mailbox, 0, slots * numel)
        found = ReduceTree(acc, box, tables[0], tables[1], tables[2], slots, numel, tree.op)
        flags = flags_of(cores, slots, self.device)
        round_of = lambda core, number: tree.start + tree.round_of(core, number_of(number)[1])  # noqa: E731
        what = f"reduce tree, {len(tree.rounds)} rounds in a launch"
        alarm = self.watch.alarm(what, memory.mesh.shape[1], [flags], round_of)
        return Launch(what, partial(chain, [Stretch(order, flags, (), found)], alarm))

    def _operand(self, memory: Memory, place: TileMap) -> Operand:
        buffer, tensor = memory.buffers[place.slot.buffer], memory.tensors[place.slot.buffer]
        whole = buffer.slots * buffer.numel
        varies = memory.tables is not None and buffer.slots > 1 and place.slot.index is not None
        if place.slot.is_fixed and not varies:
            index = None if place.is_own else self._table(memory, place.flat(memory.mesh.shape))
            return Operand(tensor, int(place.slot.index or 0) * buffer.numel, whole, index)
        assert place.is_own, "slots that differ between cores are never elided"
        every = np.arange(memory.mesh.cores)
        rows = every * buffer.slots + place.slot.of_cores(every, memory.mesh)
        return Operand(tensor, 0, buffer.numel, self._table(memory, rows))

    def _cores(self, memory: Memory, op: Local) -> torch.Tensor:
        cores = np.arange(memory.mesh.cores) if op.where is None else op.where.flat(memory.mesh)
        return self._table(memory, cores[self._order(len(cores))])

    def _order(self, size: int) -> Index:
        return np.arange(size) if self._random is None else self._random.permutation(size)

    def _table(self, memory: Memory, values: Index) -> torch.Tensor:
        table = torch.from_numpy(values.astype(np.int32))
        return table.to(self.device) if memory.tables is None else memory.tables.put(table, self.device)


def available() -> bool:
    """Whether Triton kernels can run here: a CUDA device, or the interpreter."""
    return torch.cuda.is_available() or bool(INTERPRET.value)
