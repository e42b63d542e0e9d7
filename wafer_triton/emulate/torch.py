"""The torch executor: all cores batched, a neighbour move an indexed copy, local operations in their fast forms.

Tiles have their buffer's dtype. An operation widens its inputs to fp32 and rounds its outputs: the values of a
core that computes in fp32 and stores in 16 bits, at the speed of fp32 on a CPU. Every view is made in the plan, so
that most steps are one call of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch

from wafer_triton.emulate.executor import Executor
from wafer_triton.emulate.parts import Memory, Products, Reduction, Segment, Step, TileMap
from wafer_triton.emulate.torch_local import Form, form
from wafer_triton.local import LocalOp, find
from wafer_triton.schedule.rounds import Cores, Exchange, Index, Local, Slot

Select: TypeAlias = "slice | torch.Tensor"
Params = Mapping[str, Any]
Tensors: TypeAlias = "list[torch.Tensor]"

COMBINE: Mapping[str, Callable[..., torch.Tensor]] = {"add": torch.add, "maximum": torch.maximum}
CPU = torch.device("cpu")
LINE = 64  # bytes of a cache line
CACHED = 2**18  # elements that are widened at once: 1 MiB of fp32, which stays in a core's cache


class TorchExecutor(Executor):
    """Runs schedules with torch on `device` ("cpu" or a CUDA device)."""

    def __init__(self, *, device: str = "cpu", exchange: str = "explicit", poison: bool = False) -> None:
        super().__init__(device, exchange=exchange, poison=poison)

    def move(self, memory: Memory, exchanges: Sequence[Exchange], src: TileMap) -> list[Step]:
        grids = [self._grid(memory, exchange, src) for exchange in exchanges]
        rest = [exchange for exchange, step in zip(exchanges, grids, strict=True) if step is None]
        return [step for step in grids if step is not None] + ([self.indexed(memory, rest, src)] if rest else [])

    def indexed(self, memory: Memory, exchanges: Sequence[Exchange], src: TileMap) -> Step:
        """Return the step of any exchanges from one slot to one: a gather of the tiles, then a scatter."""
        senders, receivers = map(memory.index, self._ends(memory, exchanges, src))
        source, target = memory.rows(src.slot), memory.rows(exchanges[0].dst)
        return lambda: target.index_copy_(0, receivers[0], source.index_select(0, senders[0]))

    def _grid(self, memory: Memory, exchange: Exchange, src: TileMap) -> Step | None:
        """Return the step of an exchange whose receivers are a grid of cores."""
        if src.base is not None or src.slot.buffer != exchange.src.buffer:
            return None
        views = self._views(memory, exchange, exchange.dst)
        if views is None:
            return None
        target, source, send = views
        if send is None:
            return partial(target.copy_, source)
        axis = 1 if exchange.axis == "x" else 0
        if target.is_contiguous() and src.slot.buffer != exchange.dst.buffer:
            return partial(torch.index_select, source, axis, send, out=target)
        return lambda: target.copy_(source.index_select(axis, send))

    def segment(self, memory: Memory, segment: Segment, ins: tuple[TileMap, ...] = ()) -> list[Step] | None:
        if isinstance(segment, Reduction):
            messages = [self._message(memory, one, segment.op) for round_ in segment.rounds for one in round_.exchanges]
            steps = [step for step in messages if step is not None]
            sends = segment.broadcast if self.exchange == "explicit" else None
            sent = [] if sends is None else self.round(memory, sends)
            return steps + sent if len(steps) == len(messages) else None
        return self._windows(memory, segment, *ins) if isinstance(segment, Products) and ins else None

    def _windows(self, memory: Memory, run: Products, a: TileMap, b: TileMap) -> list[Step] | None:
        """Return the steps of rounds around whole rings, each on a window of one copy of b along its rings."""
        names = (a.slot.buffer, b.slot.buffer, run.c)
        fp32 = all(memory.tensors[name].dtype == torch.float32 for name in names) and torch.device(self.device) == CPU
        several = any(memory.buffers[name].slots > 1 for name in names)
        # BLAS may order a sum by the place of the result in a cache line, so on the rings it must be that at home
        lines = memory.buffers[run.c].numel * torch.float32.itemsize % LINE == 0
        if run.rings is None or run.number != len(run.rings[0]) or several or not fp32 or not lines:
            return None
        side = run.number
        cores = run.rings[0][:, None] * side + run.rings[1]  # by their positions on the rings
        around = torch.from_numpy(b.homes(memory.mesh)[np.concatenate([cores[1:], cores])].ravel())
        begun, home = a.homes(memory.mesh)[cores], torch.from_numpy(cores.ravel())
        rows = [torch.from_numpy(np.roll(begun, number, axis=1).ravel()) for number in range(side)]
        memory.workspace.begin()
        tiles_a, tiles_b, c = (memory.rows(slot) for slot in (a.slot, b.slot, Slot(run.c)))
        passing, held, total = (
            memory.workspace.take(number * side * tiles.shape[1], torch.float32).view(-1, tiles.shape[1])
            for number, tiles in ((2 * side - 1, tiles_b), (side, tiles_a), (side, c))
        )
        steps: list[Step] = [partial(torch.index_select, tiles_b, 0, around, out=passing)]
        if run.add:
            steps.append(partial(torch.index_select, c, 0, home, out=total))
        for number, index in enumerate(rows):
            window = passing[(side - 1 - number) * side : (2 * side - 1 - number) * side]
            steps.append(partial(torch.index_select, tiles_a, 0, index, out=held))
            steps.append(form(find("gemm")).plan(total, held, window, **run.params, add=run.add or number > 0))
        out = memory.rows(Slot(run.out))
        if out.dtype == total.dtype:  # a gather is quicker than a scatter
            return [*steps, partial(torch.index_select, total, 0, home.argsort(), out=out)]
        return [*steps, lambda: out.index_copy_(0, home, total.to(out.dtype))]

    def _message(self, memory: Memory, exchange: Exchange, op: str) -> Step | None:
        """Return a step that combines messages where they arrive; None unless on a grid, or whole rows or columns."""
        combine, views = COMBINE[op], self._views(memory, exchange, exchange.src)
        if views is not None and views[2] is None:
            return partial(combine, views[0], views[1], out=views[0])
        if exchange.lines is not None or exchange.recv.ndim > 1 or not exchange.src.is_fixed:
            return None
        tiles, dim = _tiles(memory, exchange.src), int(exchange.axis == "x")
        send, recv = (torch.from_numpy(np.array(index)).to(self.device) for index in (exchange.send, exchange.recv))
        if op == "add" and tiles.dtype == torch.float32:
            return lambda: tiles.index_add_(dim, recv, tiles.index_select(dim, send))
        ends = recv, send
        return lambda: tiles.index_copy_(dim, recv, combine(*(tiles.index_select(dim, end) for end in ends)))

    def compute(self, memory: Memory, op: Local, ins: tuple[TileMap, ...]) -> list[Step]:
        definition, area = find(op.op), _area(op.where)
        cores = np.arange(memory.mesh.cores) if op.where is None else op.where.flat(memory.mesh)
        # with tables, slots differ from schedule to schedule
        grid = area is not None and memory.tables is None and all(out.is_fixed for out in op.outs)
        before, after = list[Step](), list[Step]()
        memory.workspace.begin()

        def tiles(each: TileMap, out: bool = False) -> torch.Tensor:
            """Return the tiles of a map where they lie, or a copy that is gathered before, and put back `after`."""
            if area is not None and grid and (view := _view(memory, each)) is not None:
                return view[area]
            index, flat = self._rows(memory, each.slot, each.homes(memory.mesh)[cores]), memory.rows(each.slot)
            held, hold = memory.index(index), memory.workspace.take(len(cores) * flat.shape[1], flat.dtype)
            hold = hold.view(len(cores), -1)
            if not out or _keeps(definition, op.params, flat.shape[1]):
                before.append(lambda: torch.index_select(flat, 0, held[0], out=hold))
            if out:
                after.append(lambda: flat.index_copy_(0, held[0], hold))
            shape = _tiles(memory, op.outs[0])[area].shape[:2] if area is not None and grid else hold.shape[:1]
            return hold.view(*shape, -1)

        outs, reads = [tiles(TileMap(out), out=True) for out in op.outs], [tiles(each) for each in ins]
        return [*before, *self._direct(memory, definition, op.params, outs, reads), *after]

    def _direct(self, memory: Memory, op: LocalOp, params: Params, outs: Tensors, reads: Any) -> list[Step]:
        """Return the steps of an operation on these very tensors, widened in parts if need be."""
        fast = form(op)
        if _as_they_are(fast, params, outs, reads):
            return [fast.plan(*outs, *reads, **params)]
        steps, keeps = list[Step](), _keeps(op, params, outs[0].shape[-1])
        rooms: list[torch.Tensor] = []
        for ends in _parts([*outs, *reads]):
            if not rooms:  # the first part is the largest
                rooms = [
                    memory.workspace.take(0 if end.dtype == torch.float32 else end.numel(), torch.float32)
                    for end in ends
                ]
            wide = [
                end if end.dtype == torch.float32 else room[: end.numel()].view(end.shape)
                for end, room in zip(ends, rooms, strict=True)
            ]
            pairs = [(fp32, end) for fp32, end in zip(wide, ends, strict=True)]
            given = pairs if keeps else pairs[len(outs) :]
            steps += [partial(fp32.copy_, end) for fp32, end in given if fp32 is not end]
            steps.append(fast.plan(*wide, **params))
            steps += [partial(end.copy_, fp32) for fp32, end in pairs[: len(outs)] if fp32 is not end]
        return steps

    def _views(
        self, memory: Memory, exchange: Exchange, to: Slot
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] | None:
        """Return the tiles of receivers and of senders and, if the latter are not a grid, their indices among these."""
        if not exchange.src.is_fixed or not to.is_fixed or exchange.recv.ndim > 1:
            return None
        lines, recv, send = (_select(index, self.device) for index in (exchange.lines, exchange.recv, exchange.send))
        if not isinstance(lines, slice) or not isinstance(recv, slice):
            return None
        at = slice(None) if isinstance(send, torch.Tensor) else send
        x = exchange.axis == "x"
        ends = ((_tiles(memory, to), recv), (_tiles(memory, exchange.src), at))
        target, source = (tiles[(lines, place) if x else (place, lines)] for tiles, place in ends)
        return target, source, send if isinstance(send, torch.Tensor) else None

    def _ends(self, memory: Memory, exchanges: Sequence[Exchange], src: TileMap) -> tuple[torch.Tensor, torch.Tensor]:
        """Row numbers of the tiles that are sent and of their targets."""
        pairs = (exchange.moves.ends(memory.mesh) for exchange in exchanges)
        senders, receivers = map(np.concatenate, zip(*pairs, strict=True))
        homes, dst = src.homes(memory.mesh)[senders], exchanges[0].dst
        return self._rows(memory, src.slot, homes), self._rows(memory, dst, receivers)

    def _rows(self, memory: Memory, slot: Slot, cores: Index) -> torch.Tensor:
        return torch.from_numpy(memory.numbers(slot, cores)).to(self.device)


def _tiles(memory: Memory, slot: Slot) -> torch.Tensor:
    """Return a fixed slot of all cores: [rows, cols, numel]."""
    tensor, numel = memory.tensors[slot.buffer], memory.buffers[slot.buffer].numel
    if slot.index is None:
        return tensor
    assert isinstance(slot.index, int)
    return tensor[..., slot.index * numel : (slot.index + 1) * numel]


def _view(memory: Memory, each: TileMap) -> torch.Tensor | None:
    """Return the tiles that cores read, [rows, cols, numel], without a copy; None if strides cannot express the map."""
    if not each.slot.is_fixed:
        return None
    tiles = _tiles(memory, each.slot)
    if each.base is None:
        return tiles
    base = each.base.reshape(memory.mesh.shape)
    first, (rows, cols), core = int(base[0, 0]), base.shape, tiles.stride(1)
    down, right = (int(along[1]) - first if len(along) > 1 else 0 for along in (base[:, 0], base[0]))
    if min(first, down, right) < 0 or (base != first + down * np.arange(rows)[:, None] + right * np.arange(cols)).any():
        return None
    start = tiles.storage_offset() + first * core
    return tiles.as_strided((rows, cols, tiles.shape[-1]), (down * core, right * core, 1), start)


def _keeps(op: LocalOp, params: Params, numel: int) -> bool:
    """Return whether outputs of `numel` elements keep old values: they are added to, or written in part."""
    return op.updates(params) or bool(params.get("size", numel) < numel)


def _as_they_are(fast: Form, params: Params, outs: Tensors, reads: Tensors) -> bool:
    """Return whether the operation takes these tensors: all fp32, all of one dtype that it takes, or only moved."""
    dtypes = {operand.dtype for operand in (*outs, *reads)}
    return fast.moves or dtypes == {torch.float32} or (len(dtypes) == 1 and fast.narrow(params))


def _parts(operands: Tensors) -> list[Tensors]:
    """Return the same tensors in slices of their first dimension, none of which widens more than the cache holds."""
    rows = operands[0].shape[0]
    most = max(operand.numel() for operand in operands)
    size = max(1, rows * CACHED // max(most, 1))
    return [[operand[start : start + size] for operand in operands] for start in range(0, rows, size)]


def _select(index: Index | None, device: str) -> Select:
    """Return a slice for an arithmetic progression, which costs no gather; else a tensor of indices."""
    if index is None:
        return slice(None)
    if (index == index[0]).all():  # one position, or one that multicasts: copies broadcast it
        return slice(int(index[0]), int(index[0]) + 1)
    steps = np.diff(index)
    if (steps == steps[0]).all() and steps[0] > 0:
        return slice(int(index[0]), int(index[-1]) + 1, int(steps[0]))
    return torch.from_numpy(index.copy()).to(device)  # schedules share index arrays, which are not to be written


def _area(where: Cores | None) -> tuple[slice, slice] | None:
    """Row and column slices of the cores, if they form a regular grid."""
    if where is None:
        return slice(None), slice(None)
    rows, cols = _select(where.rows, "cpu"), _select(where.cols, "cpu")
    return (rows, cols) if isinstance(rows, slice) and isinstance(cols, slice) and not where.paired else None
