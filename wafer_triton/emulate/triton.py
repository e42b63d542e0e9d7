"""The Triton executor: a program instance is a core, or several where tiles are tiny; mailboxes are in global memory.

A launch runs local operations, and a reduce tree after them; or messages; or compute-shift rounds (see `fuse`). Kernels
take pointers, tables and sizes, never a schedule.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from functools import cached_property, partial

import numpy as np
import torch
from triton.runtime._async_compile import AsyncCompileMode

from wafer_triton import local
from wafer_triton.emulate import fuse
from wafer_triton.emulate.executor import Executor
from wafer_triton.emulate.fuse import Fold, Group, LocalTask, Messages, Sums, TreeTask
from wafer_triton.emulate.parts import Call, Launch, Memory, Products, Reduction, Segment, Task, TileMap
from wafer_triton.errors import BackendError
from wafer_triton.kernels import table
from wafer_triton.kernels._common import INTERPRET, Operand, compiling, load_kernel, target
from wafer_triton.kernels.compute_shift import products
from wafer_triton.kernels.elided import Labels, elided
from wafer_triton.kernels.exchange import Copies, exchange
from wafer_triton.kernels.fused import FusedOp, Grid, LocalKernel, grid_of, launch
from wafer_triton.kernels.gemm import chains, in_turn
from wafer_triton.kernels.tree import Receivers, TreeTables, fold, reduce_tree
from wafer_triton.kernels.waiting import EMPTY, Watch
from wafer_triton.schedule.rounds import HIDDEN, Buffer, Exchange, Index, Local, Slot
from wafer_triton.schedule.schedule import Schedule

MAX_SLOT_BYTES = 2**30  # of all slots of a product's operands, as many rounds as fit
MIN_CAPABILITY = 70  # compute capability times ten of the first GPUs whose atomics have a scope


class TritonExecutor(Executor):
    """Runs schedules on a CUDA device, or on the CPU under TRITON_INTERPRET=1 (small meshes).

    `shuffle` is a seed by which the order of cores in every launch is shuffled: results must not depend on it. Raises
    BackendError where Triton cannot run.
    """

    def __init__(
        self, *, device: str | None = None, exchange: str = "explicit", poison: bool = False, shuffle: int | None = None
    ) -> None:  # fmt: skip
        interpreted = bool(INTERPRET.value)
        super().__init__(device or ("cpu" if interpreted else "cuda"), exchange=exchange, poison=poison)
        kind = torch.device(self.device).type
        self.graphs = self.on_gpu
        if kind == "cpu" and not interpreted:
            raise BackendError("the Triton backend runs on a CPU only under TRITON_INTERPRET=1; set it, or use torch")
        if kind != "cpu" and not torch.cuda.is_available():
            raise BackendError("the Triton backend found no GPU; use backend='torch', or set TRITON_INTERPRET=1")
        self._random = None if shuffle is None else np.random.default_rng(shuffle)
        self._core_tables: dict[int, torch.Tensor] = {}

    @cached_property
    def watch(self) -> Watch:
        """Where launches whose programs wait for each other report a wait that took too long."""
        return Watch(self.device)

    def check(self) -> None:
        recording = self.graphs and torch.cuda.is_current_stream_capturing()
        if "watch" in self.__dict__ and not recording:
            self.watch.check()

    def check_allocation(self, schedule: Schedule, fresh: list[Buffer]) -> None:
        if self.graphs:
            on, gpu = target(), f"{schedule.name}: {torch.cuda.get_device_name(self.device)}"
            if on is not None and on.backend == "cuda" and on.arch < MIN_CAPABILITY:
                raise BackendError(
                    f"{gpu} has compute capability {on.arch / 10}, and kernels need {MIN_CAPABILITY / 10} or later; "
                    f"use backend='torch'"
                )
            if any(buffer.dtype == "bf16" for buffer in fresh) and not torch.cuda.is_bf16_supported(False):
                raise BackendError(f"{gpu} has no bf16 arithmetic; use fp16 or fp32, or backend='torch'")
        super().check_allocation(schedule, fresh)

    def precompile(self, steps: Iterable[Call], progress: Callable[[int, int], object] | None = None) -> int:
        if INTERPRET.value:  # nothing to compile
            return 0
        with ThreadPoolExecutor(os.cpu_count()) as threads, self.on_device(), compiling():
            # a kernel that fails here fails again where it is launched
            with AsyncCompileMode(threads, ignore_errors=True) as kernels:
                for step in steps:
                    if isinstance(step, Launch):
                        step()
                for done, kernel in enumerate(as_completed(kernels.raw_futures), start=1):
                    if self.graphs and kernel.exception() is None:
                        threads.submit(load_kernel, kernel.result(), torch.cuda.current_device())
                    if progress is not None:
                        progress(done, len(kernels.raw_futures))
            return len(kernels.raw_futures)

    def move(self, memory: Memory, exchanges: Sequence[Exchange], src: TileMap) -> list[Task]:
        """Return the exchanges as `Messages` of each axis, which `fuse_tasks` makes launches."""
        dst, size = exchanges[0].dst, memory.rows(src.slot).shape[1]
        ends = self._operand(memory, src.slot, src.base), self._operand(memory, dst)
        names = frozenset({src.slot.buffer}), frozenset({dst.buffer})
        moves = {axis: tuple(one.moves for one in exchanges if one.axis == axis) for axis in "xy"}
        return [Messages(axis, size, ((along, *ends),), *names) for axis, along in moves.items() if along]

    def _copies(self, memory: Memory, messages: Messages) -> Copies:
        """Return the operands and tables of messages; equal moves share a row of ends, unless tables are rewritten."""
        rewritten, along_x = memory.tables is not None, messages.axis == "x"
        lines, length = memory.mesh.shape[:: 1 if along_x else -1]
        operands, places, routes = list[Operand](), list[tuple[int, ...]](), list[Index]()
        ends, rows = list[Index](), dict[object, Index]()

        def place(x: Operand) -> tuple[int, int]:
            number = next((at for at, y in enumerate(operands) if x.tensor is y.tensor and x.index is y.index), None)
            if number is None:
                number = len(operands)
                operands.append(x._replace(offset=0))
            return number, x.offset // messages.size

        for moves, src, dst in messages.steps:
            ways, route = (*place(src), *place(dst)), None
            for each in moves:
                send, recv, at = each.table
                table = np.stack(np.atleast_2d(send, recv), axis=1)
                if rewritten:  # room for another schedule, which may send more
                    table, sent = np.full((lines, 2, length), -1), table
                    table[slice(None) if at is None else at, :, : sent.shape[2]] = sent
                    at = None
                if route is None or (route[at] >= 0).any():
                    route = np.full(lines, -1)
                    routes.append(route)
                    places.append(ways)
                if (key := (each, rewritten and len(routes))) not in rows:
                    rows[key] = sum(map(len, ends)) + np.arange(len(table))
                    ends.append(table)
                route[slice(None) if at is None else at] = rows[key]
        number = max(table.shape[2] for table in ends)
        padded = [np.pad(table, ((0, 0), (0, 0), (0, number - table.shape[2])), constant_values=-1) for table in ends]
        put, all_ends = partial(self._table, memory), np.concatenate(padded)[..., self._order(number)]
        tables = put(np.array(places)), put(np.stack(routes)), put(all_ends)
        strides = (length, 1) if along_x else (1, lines)
        return Copies(tuple(operands), *tables, len(places), number, lines, *strides)

    def compute(self, memory: Memory, op: Local, ins: tuple[TileMap, ...]) -> list[Task]:
        kernel, where = table.find(op.op), None if op.where is None else op.cores(memory.mesh)
        outs = tuple(self._operand(memory, out) for out in op.outs)
        reads = tuple(self._operand(memory, each.slot, each.base) for each in ins)
        if not isinstance(kernel, LocalKernel):
            return [Launch(op.op, partial(kernel, outs, reads, self._cores(memory, where), **op.params))]
        remote = [(each.slot.buffer, each.base) for each in ins if each.base is not None]
        written, definition = tuple(out.buffer for out in op.outs), local.find(op.op)
        read = {slot.buffer for slot in definition.sources(op.params, op.outs, op.ins)}
        in_place = any(
            name in read or (held := memory.buffers[name]).slots > 1 or definition.keeps(op.params, held.numel, number)
            for number, name in enumerate(written)
        )
        fused_op = kernel.fused(outs, reads, **op.params)
        return [LocalTask(op.op, fused_op, written, tuple(remote), where, in_place)]

    def segment(self, memory: Memory, segment: Segment, ins: tuple[TileMap, ...] = ()) -> list[Task] | None:
        if isinstance(segment, Products):
            return self._elided(memory, segment, *ins) if ins else self._windows(memory, segment)
        return self._tree(memory, segment) if isinstance(segment, Reduction) else None

    def _tree(self, memory: Memory, tree: Reduction) -> list[Task]:
        acc = memory.buffers[tree.acc]
        mapped = self.exchange == "elided" and tree.broadcast
        if mapped and acc.slots == 1 and (folded := fuse.as_fold(tree, acc.numel)):  # a tile map has those of one slot
            memory.scratch_like(tree.acc, tree.sums).fill_(self.unwritten)
            memory.separate_sums.add(tree)
            return [folded]
        if self.exchange == "elided" or not tree.broadcast:
            return [TreeTask(tree)]
        spans = fuse.tree_spans(tree.roots)
        return [TreeTask(tree, spans), *(() if spans else self.round(memory, *tree.broadcast))]

    def fuse_tasks(self, memory: Memory, tasks: list[Task]) -> list[Call]:
        all_ops = [task.op for task in tasks if isinstance(task, LocalTask)]
        result: list[Call] = []
        if self.exchange == "elided":
            tasks = fuse.with_sums(tasks)
        for group in fuse.group_tasks(tasks):
            match group:
                case [Messages(), *_]:
                    moves, sizes = [self._copies(memory, one) for one in group], [one.size for one in group]
                    steps = max(one.steps for one in moves)
                    what = f"exchange, {steps} steps" if steps > 1 else "exchange"
                    result.append(Launch(what, partial(exchange, moves, sizes)))
                case [Sums(), *_]:
                    result.append(self._sums_launch(memory, group, all_ops))
                case Group():
                    result += self._launches(memory, group, all_ops)
                case _:
                    result.append(group)
        return result

    def _launches(self, memory: Memory, group: Group, all_ops: Sequence[FusedOp]) -> list[Call]:
        """Return the launches of a group: of each fold that is not at the head, then of the local steps and tree."""
        ops = [task.op for task in group.tasks]
        if group.tree is not None:  # without folds
            return [self._tree_launch(memory, group, group.tree, ops, all_ops)]
        heads, grid = fuse.head_folds(group, memory.mesh)
        fold_launches = [self._fold_launch(memory, one) for one in group.folds if one not in heads]
        if not ops:
            return fold_launches
        if self.exchange == "elided" and memory.tables is None:
            ops = in_turn(ops, memory.mesh.cores)
        if heads:
            ops = [self._fold_op(memory, one, one.size) for one in heads] + ops
            order = self._order(memory.mesh.cores)
            cores = self._table(memory, order[np.argsort(heads[0].tree_of[order], kind="stable")])
        else:
            cores = self._cores(memory, group.tasks[0].cores)
        return [*fold_launches, Launch(replace(group, folds=heads).what, partial(launch, ops, cores, all_ops, grid))]

    def _sums_launch(self, memory: Memory, sums: Sequence[Sums], all_ops: Sequence[FusedOp]) -> Call:
        put, product = partial(self._table, memory), sums[0].product
        *rows, lengths, turns = map(np.concatenate, zip(*(one.tables for one in sums), strict=True))
        out, a, b = (each._replace(index=put(table)) for each, table in zip(product.args, rows, strict=True))
        first = np.append(0, np.cumsum(lengths))
        op = chains(product, out, a, b, put(first), put(first[:-1] + turns))
        what = f"sums of {len(sums)} products"
        return Launch(what, partial(launch, [op], put(self._order(len(lengths))), all_ops))

    def _fold_op(self, memory: Memory, one: Fold, step: int) -> FusedOp:
        total, parts = (self._operand(memory, Slot(name)) for name in (one.tree.sums, one.tree.acc))
        tables = (self._table(memory, each) for each in (one.first, one.roots, one.tree_of, one.number))
        return fold(total, parts, *tables, order=one.order, pairs=one.pairs, size=one.size, op=one.tree.op, step=step)

    def _fold_launch(self, memory: Memory, fold_step: Fold) -> Call:
        """Return a launch that folds alone; the first cores of each tree fold a multiple of 32 columns each."""
        step = 32 * -(-fold_step.size // (32 * len(fold_step.order)))
        folding = np.flatnonzero(fold_step.number < -(-fold_step.size // step))
        cores = self._table(memory, folding[self._order(len(folding))])
        return Launch("fold", partial(launch, [self._fold_op(memory, fold_step, step)], cores, (), Grid()))

    def _tree_launch(
        self, memory: Memory, group: Group, task: TreeTask, ops: Sequence[FusedOp], all_ops: Sequence[FusedOp]
    ) -> Call:
        """Return the launch of a reduce tree, with the operations of the group before it."""
        tree, spans, put = task.tree, task.spans, partial(self._table, memory)
        cores, slots, numel = memory.mesh.cores, int(tree.children.max()), memory.buffers[tree.acc].numel
        acc = sums = self._operand(memory, Slot(tree.acc))
        if spans and (writers := [n for n, task in enumerate(group.tasks) if tree.acc in task.outs]):
            memory.workspace.begin()
            acc = acc._replace(tensor=memory.workspace.take(acc.tensor.numel(), acc.tensor.dtype))
            ops = [*ops[: writers[0]], *(op.with_memory(sums.tensor, acc.tensor) for op in ops[writers[0] :])]
        bits = torch.int32 if acc.tensor.dtype.itemsize == 4 else torch.int16
        mailbox = torch.full((cores * slots * numel,), EMPTY.value, dtype=bits, device=self.device)
        # a core that fills up a block computes what it also does in its own place there: not where it would do it twice
        levels = np.bincount(tree.send_round).tolist() if any(task.in_place for task in group.tasks) else ()
        grid = grid_of(ops, cores, levels)
        order = task.blocks(self._order(cores), grid.cores_per_block)
        tables = TreeTables(
            acc, Operand(mailbox, 0, slots * numel), put(order), put(tree.children), put(tree.parent), put(tree.slot),
            slots, numel, tree.op,
        )  # fmt: skip
        receivers = Receivers(sums, put(spans[0]), put(spans[1]), spans[2]) if spans else None

        def round_of(core: int, slot: int) -> int:
            return tree.start + int(tree.send_round[(tree.parent == core) & (tree.slot == slot)].max(initial=0))

        alarm = self.watch.alarm(group.what, memory.mesh.shape[1], partial(mailbox.fill_, EMPTY.value), round_of)
        run = partial(reduce_tree, tables, ops, alarm, receivers, all_ops, grid)
        return Launch(f"{group.what} in a launch", run)

    def _windows(self, memory: Memory, run: Products) -> list[Task] | None:
        """Return, for each window of rounds, its exchange, and a launch of the products of what arrived.

        The tile of round t arrives in slot t % `window` of its core. The first move copies a core's own tile there, and
        the last ones leave in the buffers of a and b what the last round does. None if a is b, or of another dtype.
        """
        hands, space = (run.a, run.b), list[str]()
        dtypes = {memory.buffers[first.buffer].dtype for first, _ in hands}
        if run.a == run.b or len(dtypes) > 1:
            return None
        most = max(2, MAX_SLOT_BYTES // sum(memory.tensors[first.buffer].nbytes for first, _ in hands))
        window = -(-run.count // -(-run.count // most))
        memory.workspace.begin()
        for first, _ in hands:
            name, tiles = f"{run.c}{HIDDEN}{first.buffer}", memory.tensors[first.buffer]
            memory.buffers[name] = replace(memory.buffers[first.buffer], name=name, role="scratch", slots=window)
            memory.tensors[name] = memory.workspace.take(window * tiles.numel(), tiles.dtype).view(*tiles.shape[:2], -1)
            space.append(name)
        c, out, a, b = (self._operand(memory, Slot(name)) for name in (run.c, run.out, *space))
        tasks: list[Task] = []
        for begin in range(0, run.count, window):
            end = min(begin + window, run.count)
            for hand, shift, name in zip(hands, run.shifts, space, strict=True):
                slots = [Slot(name, number) for number in range(window)]
                stay = replace(shift, send=shift.recv)
                steps = [
                    (shift if t else stay, slots[t % window - 1] if t else hand[0], slots[t % window])
                    for t in range(begin, end)
                ]
                if end == run.count:
                    last = slots[(end - 1) % window]
                    steps += [(stay, last, hand[(end - 1) % 2]), (shift, last, hand[end % 2])]
                tasks += [task for step in steps for task in self.move(memory, [Exchange(*step)], TileMap(step[1]))]
            target, add = out if end == run.count else c, run.add or begin > 0
            launched = partial(
                products, c, target, a, b, self._cores(memory), rounds=end - begin, add=add, **run.params
            )
            tasks.append(Launch(f"compute-shift, {end - begin} rounds in a launch", launched))
        return tasks

    def _elided(self, memory: Memory, run: Products, a: TileMap, b: TileMap) -> list[Task] | None:
        """Return one launch for products whose operands pass whole rings, see `kernels.elided`; else None."""
        if run.rings is None or run.params.get("heads", 1) > 1:
            return None
        rows, cols = run.rings
        side = len(rows)
        # [position, label]: the core that holds the tile with this label for this row, or column
        back = (np.arange(side) - np.arange(side)[:, None]) % side
        of_a = memory.rows_of(a, rows[:, None] * side + cols[back])
        of_b = memory.rows_of(b, rows[back] * side + cols[:, None])
        c, out = (self._operand(memory, Slot(name)) for name in (run.c, run.out))
        x, y = (self._operand(memory, each.slot) for each in (a, b))
        tables = self._table(memory, rows), self._table(memory, cols)
        labels = self._labels(memory, of_a), self._labels(memory, of_b)
        launched = partial(elided, c, out, x, y, *tables, *labels, add=run.add, **run.params)
        return [Launch(f"MeshGEMM, {run.count} rounds in a launch", launched)]

    def _labels(self, memory: Memory, rows: Index) -> Labels:
        first, one_row = rows[:, 0] - rows[0, 0], rows[0]
        if (first[:, None] + one_row == rows).all():
            return Labels(self._table(memory, first), self._table(memory, one_row), 0)
        return Labels(self._table(memory, np.zeros_like(first)), self._table(memory, rows), len(rows))

    def _operand(self, memory: Memory, slot: Slot, base: Index | None = None) -> Operand:
        """Return where cores find their tiles of a slot, or row base[i] of its buffer's."""
        buffer, tensor = memory.buffers[slot.buffer], memory.tensors[slot.buffer]
        varies = memory.tables is not None and buffer.slots > 1 and slot.index is not None
        if base is None and slot.is_fixed and not varies:
            return Operand(tensor, int(slot.index or 0) * buffer.numel, buffer.slots * buffer.numel)
        rows = memory.rows_of(TileMap(slot, base), np.arange(memory.mesh.cores))
        return Operand(tensor, 0, buffer.numel, self._table(memory, rows))

    def _cores(self, memory: Memory, where: Index | None = None) -> torch.Tensor:
        """Return a table int32 of cores (None: all) on the device, shuffled if the executor shuffles."""
        count = memory.mesh.cores
        if where is not None or self._random is not None or memory.tables is not None:
            cores = np.arange(count) if where is None else where
            return self._table(memory, cores[self._order(len(cores))])
        if count not in self._core_tables:
            self._core_tables[count] = self._table(memory, np.arange(count))
        return self._core_tables[count]

    def _order(self, size: int) -> Index:
        return np.arange(size) if self._random is None else self._random.permutation(size)

    def _table(self, memory: Memory, values: Index) -> torch.Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(values, dtype=np.int32))
        return tensor.to(self.device) if memory.tables is None else memory.tables.put(tensor, self.device)
