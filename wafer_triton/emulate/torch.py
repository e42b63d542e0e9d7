"""The torch executor: one call of torch for all cores. A move is an indexed copy, a local operation its fast form.

Memory has the buffers' dtypes. An operation widens its inputs to fp32 and rounds its outputs, as a core does that
computes in fp32 and stores 16 bits. Every view is made while planning, so that most steps are one call of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch

from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.executor import Executor
from wafer_triton.emulate.parts import Memory, Products, Reduction, Segment, Task, TileMap
from wafer_triton.emulate.torch_local import Form, form
from wafer_triton.local import LocalOp, find
from wafer_triton.schedule.rounds import Exchange, Index, Local, Slot

Params = Mapping[str, Any]
Tensors: TypeAlias = "list[torch.Tensor]"
Shape = tuple[int, int]
Steps = tuple[Shape, Shape, int]  # of `_strides`

COMBINE: Mapping[str, Callable[..., torch.Tensor]] = {"add": torch.add, "maximum": torch.maximum}
CPU = torch.device("cpu")
CACHE_LINE = 64  # bytes
CACHED_ELEMENTS = 2**18  # elements that are widened at once: 1 MiB of fp32, which stays in a processor's cache
GATHERED_ELEMENTS = 2**15  # elements of a that are gathered at once: small meshes pay by the call, not by the byte


class TorchExecutor(Executor):
    """Runs schedules with torch on `device` ("cpu" or a CUDA device)."""

    def __init__(self, *, device: str = "cpu", exchange: str = "explicit", poison: bool = False) -> None:
        super().__init__(device, exchange=exchange, poison=poison)

    def move(self, memory: Memory, exchanges: Sequence[Exchange], src: TileMap) -> list[Task]:
        dst, flat = exchanges[0].dst, memory.rows(src.slot)
        senders, receivers = _ends(memory, exchanges)
        if not receivers.size and memory.tables is None:
            return []
        box = None if memory.tables is not None else _rectangle(receivers, memory.mesh)
        into = None if box is None else _view(memory, TileMap(dst), box)
        if into is not None and (tiles := _view(memory, src, senders.reshape(into.shape[:2]))) is not None:
            return [partial(into.copy_, tiles)]
        send = self._row_index(memory, src, senders)
        if into is not None and into.is_contiguous() and src.slot.buffer != dst.buffer:
            return [partial(torch.index_select, flat, 0, send[0], out=into.view(-1, flat.shape[1]))]
        recv, target = self._row_index(memory, TileMap(dst), receivers), memory.rows(dst)
        if memory.tables is not None:  # with tables, their number differs from schedule to schedule
            return [lambda: target.index_copy_(0, recv[0], flat.index_select(0, send[0]))]
        memory.workspace.begin()
        held = memory.workspace.take(senders.size * flat.shape[1], flat.dtype).view(-1, flat.shape[1])
        gather = partial(torch.index_select, flat, 0, send[0], out=held)
        put = partial(target.index_copy_, 0, recv[0], held) if into is None else partial(into.copy_, held.view_as(into))
        return [lambda: (gather(), put())]

    def segment(self, memory: Memory, segment: Segment, ins: tuple[TileMap, ...] = ()) -> list[Task] | None:
        if isinstance(segment, Reduction):
            messages = [self._combine(memory, one, segment.op) for round_ in segment.rounds for one in round_.exchanges]
            steps = [step for step in messages if step is not None]
            sends = segment.broadcast if self.exchange == "explicit" else None
            sent = [] if sends is None else self.round(memory, sends)
            return steps + sent if len(steps) == len(messages) else None
        return self._ring_windows(memory, segment, *ins) if isinstance(segment, Products) and ins else None

    def _ring_windows(self, memory: Memory, run: Products, a: TileMap, b: TileMap) -> list[Task] | None:
        """Return steps for products whose operands pass whole rings; None if another condition fails.

        The tiles of b are copied once, in ring order and nearly twice, so that each round multiplies by a window of
        that copy.
        """
        names = (a.slot.buffer, b.slot.buffer, run.c)
        fp32 = all(memory.tensors[name].dtype == torch.float32 for name in names) and torch.device(self.device) == CPU
        # BLAS may order a sum by where the result lies in a cache line: it must lie there as in c's own memory
        lines = memory.buffers[run.c].numel * torch.float32.itemsize % CACHE_LINE == 0
        if run.rings is None or run.count != len(run.rings[0]) or not fp32 or not lines:
            return None
        side = run.count
        cores = run.rings[0][:, None] * side + run.rings[1]  # by their positions on the rings
        ring_order = torch.from_numpy(b.homes(memory.mesh)[np.concatenate([cores[1:], cores])].ravel())
        first_a, core_order = a.homes(memory.mesh)[cores], torch.from_numpy(cores.ravel())
        memory.workspace.begin()
        tiles_a, tiles_b, c = (memory.rows(slot) for slot in (a.slot, b.slot, Slot(run.c)))
        together = max(1, min(side, GATHERED_ELEMENTS // tiles_a.numel()))  # rounds of a gather
        ring_b, rounds_a, total = (
            memory.workspace.take(number * side * tiles.shape[1], torch.float32).view(-1, tiles.shape[1])
            for number, tiles in ((2 * side - 1, tiles_b), (together * side, tiles_a), (side, c))
        )
        steps: list[Task] = [partial(torch.index_select, tiles_b, 0, ring_order, out=ring_b)]
        if run.add:
            steps.append(partial(torch.index_select, c, 0, core_order, out=total))
        for number in range(side):
            if number % together == 0:
                shifts = range(number, min(number + together, side))
                index = torch.from_numpy(np.concatenate([np.roll(first_a, shift, axis=1).ravel() for shift in shifts]))
                steps.append(partial(torch.index_select, tiles_a, 0, index, out=rounds_a[: len(index)]))
            round_a = rounds_a[number % together * cores.size :][: cores.size]
            window = ring_b[(side - 1 - number) * side : (2 * side - 1 - number) * side]
            steps.append(form(find("gemm")).plan(total, round_a, window, **run.params, add=run.add or number > 0))
        out = memory.rows(Slot(run.out))
        if out.dtype == total.dtype:  # a gather is quicker than a scatter
            return [*steps, partial(torch.index_select, total, 0, core_order.argsort(), out=out)]
        return [*steps, lambda: out.index_copy_(0, core_order, total.to(out.dtype))]

    def _combine(self, memory: Memory, exchange: Exchange, op: str) -> Task | None:
        """Return a step that combines messages with the receivers' tiles, without a mailbox.

        None unless the tiles are strided views, or the messages are the same on all mesh rows or columns.
        """
        combine, moves = COMBINE[op], exchange.moves
        senders, receivers = _ends(memory, [exchange])
        src = TileMap(exchange.src)
        box = _rectangle(receivers, memory.mesh)
        into = None if box is None else _view(memory, src, box)
        if into is not None and (tiles := _view(memory, src, senders.reshape(into.shape[:2]))) is not None:
            return partial(combine, into, tiles, out=into)
        if moves.lines is not None or not exchange.src.is_fixed:
            return None
        tiles, dim = _tiles(memory, exchange.src), int(moves.axis == "x")
        send, recv = (torch.from_numpy(np.array(index)).to(self.device) for index in (moves.send, moves.recv))
        if op == "add" and tiles.dtype == torch.float32:
            return lambda: tiles.index_add_(dim, recv, tiles.index_select(dim, send))
        ends = recv, send
        return lambda: tiles.index_copy_(dim, recv, combine(*(tiles.index_select(dim, end) for end in ends)))

    def compute(self, memory: Memory, op: Local, ins: tuple[TileMap, ...]) -> list[Task]:
        definition = find(op.op)
        cores = np.arange(memory.mesh.cores) if op.where is None else op.where.flat(memory.mesh)
        # with tables, slots differ from schedule to schedule
        box = None if memory.tables is not None else _rectangle(cores, memory.mesh)
        steps = None if box is None else _strides(box)
        if steps is None or not all(out.is_fixed for out in op.outs):
            box = None
        before, after = list[Task](), list[Task]()
        memory.workspace.begin()

        def tiles(tile_map: TileMap, out: int | None = None) -> torch.Tensor:
            """Return the tiles of a map as a view, or as a copy that a step `before` gathers.

            For output number `out` a step `after` scatters the copy back.
            """
            flat = memory.rows(tile_map.slot)
            if box is not None and (view := _view(memory, tile_map, box, steps)) is not None:
                return view
            rows = self._row_index(memory, tile_map, cores)
            copy = memory.workspace.take(cores.size * flat.shape[1], flat.dtype).view(len(cores), -1)
            if out is None or definition.keeps(op.params, flat.shape[1], out):
                before.append(lambda: torch.index_select(flat, 0, rows[0], out=copy))
            if out is not None:
                after.append(lambda: flat.index_copy_(0, rows[0], copy))
            return copy if box is None else copy.view(*box.shape, -1)

        outs, reads = [tiles(TileMap(out), number) for number, out in enumerate(op.outs)], [tiles(each) for each in ins]
        return [*before, *self._run_on(memory, definition, op.params, outs, reads), *after]

    def _run_on(self, memory: Memory, op: LocalOp, params: Params, outs: Tensors, reads: Any) -> list[Task]:
        """Return the steps of an operation on these tensors, which are widened to fp32 slice by slice if need be."""
        fast = form(op)
        if _runs_unwidened(fast, params, outs, reads):
            return [fast.plan(*outs, *reads, **params)]
        keeps = any(op.keeps(params, out.shape[-1], number) for number, out in enumerate(outs))
        steps = list[Task]()
        buffers: list[torch.Tensor] = []
        for slices in _slices([*outs, *reads]):
            if not buffers:  # the first part is the largest
                buffers = [
                    memory.workspace.take(0 if tensor.dtype == torch.float32 else tensor.numel(), torch.float32)
                    for tensor in slices
                ]
            wide = [
                tensor if tensor.dtype == torch.float32 else buffer[: tensor.numel()].view(tensor.shape)
                for tensor, buffer in zip(slices, buffers, strict=True)
            ]
            pairs = [(fp32, tensor) for fp32, tensor in zip(wide, slices, strict=True)]
            copied = pairs if keeps else pairs[len(outs) :]
            steps += [partial(fp32.copy_, tensor) for fp32, tensor in copied if fp32 is not tensor]
            steps.append(fast.plan(*wide, **params))
            steps += [partial(tensor.copy_, fp32) for fp32, tensor in pairs[: len(outs)] if fp32 is not tensor]
        return steps

    def _row_index(self, memory: Memory, tile_map: TileMap, cores: Index) -> list[torch.Tensor]:
        """Return `memory.rows_of(tile_map, cores)` on the device, in a list as of `Memory.index`."""
        return memory.index(torch.from_numpy(memory.rows_of(tile_map, cores)).to(self.device))


def _ends(memory: Memory, exchanges: Sequence[Exchange]) -> tuple[Index, Index]:
    """Return the senders and the receivers of messages, by ascending receiver."""
    senders, receivers = map(np.concatenate, zip(*(one.moves.ends(memory.mesh) for one in exchanges), strict=True))
    order = receivers.argsort()
    return senders[order], receivers[order]


def _rectangle(cores: Index, mesh: Mesh) -> Index | None:
    """Return ascending cores as [rows, cols] if they are some mesh rows times some mesh columns; else None."""
    rows = 1 + np.count_nonzero(np.diff(cores // mesh.shape[1]))
    box = cores.reshape(rows, -1) if len(cores) % rows == 0 else None
    return None if box is None or (box - box[:, :1] != box[0] - box[0, 0]).any() else box


def _tiles(memory: Memory, slot: Slot) -> torch.Tensor:
    """Return a view of one slot, the same on all cores: [rows, cols, numel]."""
    tensor, numel = memory.tensors[slot.buffer], memory.buffers[slot.buffer].numel
    if slot.index is None:
        return tensor
    assert isinstance(slot.index, int)
    return tensor[..., slot.index * numel : (slot.index + 1) * numel]


def _view(memory: Memory, tile_map: TileMap, cores: Index, steps: Steps | None = None) -> torch.Tensor | None:
    """Return a strided view [rows, cols, numel] of the tiles of `cores` [rows, cols]; None if there is none.

    `steps` are `_strides(cores)`, if they are known.
    """
    slot, base = tile_map.slot, tile_map.base
    if not slot.is_fixed:
        return None
    at = _strides(base[cores]) if base is not None else steps or _strides(cores)
    if at is None:
        return None
    sides, (down, right), first = at
    tiles, slots = _tiles(memory, slot), memory.buffers[slot.buffer].slots
    step = tiles.stride(1) // (1 if base is None else slots)  # from core to core, or from row to row
    return tiles.as_strided(
        (*sides, tiles.shape[-1]), (down * step, right * step, 1), tiles.storage_offset() + first * step
    )


def _strides(cores: Index) -> Steps | None:
    """Return rows and columns of `cores`, the steps down and right, and the first core; None if these vary."""
    (rows, cols), first = cores.shape, int(cores[0, 0])
    down, right = (int(along[1]) - first if len(along) > 1 else 0 for along in (cores[:, 0], cores[0]))
    if (
        min(first, down, right) < 0
        or (cores != first + down * np.arange(rows)[:, None] + right * np.arange(cols)).any()
    ):
        return None
    return (rows, cols), (down, right), first


def _runs_unwidened(fast: Form, params: Params, outs: Tensors, reads: Tensors) -> bool:
    """Return whether a form takes these tensors without widening: all fp32, of a dtype that it takes, or moved only."""
    dtypes = {operand.dtype for operand in (*outs, *reads)}
    return fast.only_moves or dtypes == {torch.float32} or (len(dtypes) == 1 and fast.takes_16_bits(params))


def _slices(operands: Tensors) -> list[Tensors]:
    """Return the tensors cut along their first dimension, into slices of at most `CACHED_ELEMENTS` if possible."""
    rows = operands[0].shape[0]
    most = max(operand.numel() for operand in operands)
    size = max(1, rows * CACHED_ELEMENTS // max(most, 1))
    return [[operand[start : start + size] for operand in operands] for start in range(0, rows, size)]
