"""The torch executor: one call of torch for all cores. A move is an indexed copy, a local operation its fast form.

Memory has the buffers' dtypes. An operation widens its inputs to fp32 and rounds its outputs, as a core does that
computes in fp32 and stores 16 bits. Every view is made while planning, so that most steps are one call of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from wafer_triton.emulate.executor import Executor
from wafer_triton.emulate.parts import Memory, Products, Reduction, Segment, Task, TileMap
from wafer_triton.emulate.torch_local import Params, form
from wafer_triton.local import LocalOp, find
from wafer_triton.schedule.rounds import Exchange, Index, Local, Slot

COMBINE: Mapping[str, Callable[..., torch.Tensor]] = {"add": torch.add, "maximum": torch.maximum}
CACHE_LINE = 64  # bytes
CACHED_ELEMENTS = 2**18  # elements that are widened at once: 1 MiB of fp32, which stays in a processor's cache
GATHERED_ELEMENTS = 2**15  # elements of a that are gathered at once: small meshes pay by the call, not by the byte


class TorchExecutor(Executor):
    """Runs schedules with torch on `device` ("cpu" or a CUDA device)."""

    def move(self, memory: Memory, exchanges: Sequence[Exchange], src: TileMap) -> list[Task]:
        dst, rewritten = TileMap(exchanges[0].dst), memory.tables is not None
        senders, receivers = _ends(memory, exchanges)
        if not receivers.size and not rewritten:
            return []
        into, tiles = _view(memory, dst, receivers), _view(memory, src, senders)
        if into is not None and tiles is not None:
            return [partial(into.copy_, tiles)]
        flat, target, send = memory.rows(src.slot), memory.rows(dst.slot), self._index(memory, src, senders, True)
        if into is not None and into.is_contiguous() and src.slot.buffer != dst.slot.buffer:
            return [partial(torch.index_select, flat, 0, send[0], out=into.view(-1, flat.shape[1]))]
        recv = self._index(memory, dst, receivers, True)
        if rewritten:  # the number of messages differs from schedule to schedule
            return [lambda: target.index_copy_(0, recv[0], flat.index_select(0, send[0]))]
        memory.workspace.begin()
        copy = memory.workspace.take(senders.size * flat.shape[1], flat.dtype).view(-1, flat.shape[1])
        gather = partial(torch.index_select, flat, 0, send[0], out=copy)
        put = partial(target.index_copy_, 0, recv[0], copy) if into is None else partial(into.copy_, copy.view_as(into))
        return [lambda: (gather(), put())]

    def segment(self, memory: Memory, segment: Segment, ins: tuple[TileMap, ...] = ()) -> list[Task] | None:
        if isinstance(segment, Reduction):
            exchanges = [one for round_ in segment.rounds[: segment.count] for one in round_.exchanges]
            sends = segment.broadcast if self.exchange == "explicit" else ()
            sent = [task for round_ in sends for task in self.round(memory, round_)]
            return [self._combine(memory, one, segment.op) for one in exchanges] + sent
        return self._ring_windows(memory, segment, *ins) if isinstance(segment, Products) and ins else None

    def _ring_windows(self, memory: Memory, run: Products, a: TileMap, b: TileMap) -> list[Task] | None:
        """Return steps for products whose operands pass whole rings; None if another condition fails.

        The tiles of b are copied once, in ring order and nearly twice, so that each round multiplies by a window of
        that copy.
        """
        tiles_a, tiles_b, c = (memory.rows(slot) for slot in (a.slot, b.slot, Slot(run.c)))
        fp32 = all(tiles.dtype == torch.float32 and tiles.is_cpu for tiles in (tiles_a, tiles_b, c))
        # BLAS may order a sum by where the result lies in a cache line: it must lie there as in c's own memory
        if run.rings is None or not fp32 or c.shape[1] * c.itemsize % CACHE_LINE:
            return None
        side = run.count
        cores = run.rings[0][:, None] * side + run.rings[1]  # by their positions on the rings
        ring_order = torch.from_numpy(memory.rows_of(b, np.concatenate([cores[1:], cores])).ravel())
        first_a, core_order = memory.rows_of(a, cores), torch.from_numpy(cores.ravel())
        memory.workspace.begin()
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

    def _combine(self, memory: Memory, exchange: Exchange, op: str) -> Task:
        """Return a step that combines messages with the receivers' tiles, without a mailbox."""
        combine, moves, src = COMBINE[op], exchange.moves, TileMap(exchange.src)
        ends = _ends(memory, [exchange])
        sent, into = (_view(memory, src, cores) for cores in ends)
        if into is not None and sent is not None:
            return partial(combine, into, sent, out=into)
        tiles, dim, rows = memory.rows(src.slot), 0, [memory.rows_of(src, cores) for cores in ends]
        if moves.lines is None:  # the same on all lines, which torch gathers in half the time
            tiles, dim = memory.tensors[src.slot.buffer][..., : tiles.shape[1]], int(moves.axis == "x")
            rows = [moves.send, moves.recv]
        send, recv = (torch.from_numpy(each.flatten()).to(self.device) for each in rows)
        if op == "add" and tiles.dtype == torch.float32:
            return lambda: tiles.index_add_(dim, recv, tiles.index_select(dim, send))
        return lambda: tiles.index_copy_(dim, recv, combine(*(tiles.index_select(dim, end) for end in (recv, send))))

    def compute(self, memory: Memory, op: Local, ins: tuple[TileMap, ...]) -> list[Task]:
        definition = find(op.op)
        cores = _box(memory, op.cores(memory.mesh))
        before, after = list[Task](), list[Task]()
        memory.workspace.begin()

        def tiles(tile_map: TileMap, out: int | None = None) -> torch.Tensor:
            """Return the tiles of a map as a view, or as a copy that a step `before` gathers.

            For output number `out` a step `after` scatters the copy back.
            """
            if (view := _view(memory, tile_map, cores)) is not None:
                return view
            flat, rows = memory.rows(tile_map.slot), self._index(memory, tile_map, cores)
            copy = memory.workspace.take(cores.size * flat.shape[1], flat.dtype).view(-1, flat.shape[1])
            if out is None or definition.keeps(op.params, flat.shape[1], out):
                before.append(lambda: torch.index_select(flat, 0, rows[0], out=copy))
            if out is not None:
                after.append(lambda: flat.index_copy_(0, rows[0], copy))
            return copy.view(*cores.shape, copy.shape[1])

        outs, reads = [tiles(TileMap(out), number) for number, out in enumerate(op.outs)], [tiles(each) for each in ins]
        return [*before, *self._run_on(memory, definition, op.params, outs, reads), *after]

    def _run_on(self, memory: Memory, op: LocalOp, params: Params, outs: Any, reads: Any) -> list[Task]:
        """Return the steps of an operation on these tensors, which are widened to fp32 slice by slice if need be."""
        fast, operands, fp32 = form(op), [*outs, *reads], torch.float32
        dtypes = {operand.dtype for operand in operands}
        if fast.only_moves or dtypes == {fp32} or (len(dtypes) == 1 and fast.takes_16_bits(params)):
            return [fast.plan(*operands, **params)]
        keeps = any(op.keeps(params, out.shape[-1], number) for number, out in enumerate(outs))
        rows, most = operands[0].shape[0], max(operand.numel() for operand in operands)
        size = max(1, rows * CACHED_ELEMENTS // max(most, 1))
        # the first slices are the largest
        buffers = [memory.workspace.take(each[:size].numel() * (each.dtype != fp32), fp32) for each in operands]
        steps = list[Task]()
        for start in range(0, rows, size):
            slices = [operand[start : start + size] for operand in operands]
            wide = [
                each if each.dtype == fp32 else buffer[: each.numel()].view(each.shape)
                for each, buffer in zip(slices, buffers, strict=True)
            ]
            pairs = list(zip(wide, slices, strict=True))
            copied = pairs if keeps else pairs[len(outs) :]
            steps += [partial(widened.copy_, each) for widened, each in copied if widened is not each]
            steps.append(fast.plan(*wide, **params))
            steps += [partial(each.copy_, widened) for widened, each in pairs[: len(outs)] if widened is not each]
        return steps

    def _index(self, memory: Memory, tile_map: TileMap, cores: Index, any_length: bool = False) -> list[torch.Tensor]:
        """Return `memory.rows_of(tile_map, cores)` on the device as the one item of a list.

        With tables another schedule may replace it until a step reads it, with `any_length` by more or fewer rows.
        """
        rows = torch.from_numpy(memory.rows_of(tile_map, cores).ravel()).to(self.device)
        return [rows] if memory.tables is None else memory.tables.index(rows, any_length)


def _ends(memory: Memory, exchanges: Sequence[Exchange]) -> tuple[Index, Index]:
    """Return the senders and the receivers of messages, by ascending receiver, as in `_box`."""
    senders, receivers = map(np.concatenate, zip(*(one.moves.ends(memory.mesh) for one in exchanges), strict=True))
    order = receivers.argsort()
    receivers = _box(memory, receivers[order])
    return senders[order].reshape(receivers.shape), receivers


def _box(memory: Memory, cores: Index) -> Index:
    """Return ascending cores as [rows, columns] if they may be a rectangle; else [1, cores]."""
    row = cores // memory.mesh.shape[1]
    columns = max(1, int((row == row[:1]).sum()))
    return cores.reshape(-1, len(cores) if len(cores) % columns else columns)


def _view(memory: Memory, tile_map: TileMap, cores: Index) -> torch.Tensor | None:
    """Return the tiles of cores [m, n] as a strided view [m, n, numel]; None if the steps between them vary.

    With tables too, as slots then differ from schedule to schedule.
    """
    if memory.tables is not None:
        return None
    flat, rows = memory.rows(tile_map.slot), memory.rows_of(tile_map, cores)
    steps = rows[1:] - rows[:-1], rows[:, 1:] - rows[:, :-1]
    first, down, right = (int(ends.flat[0]) if ends.size else 0 for ends in (rows, *steps))
    if min(first, down, right) < 0 or (steps[0] != down).any() or (steps[1] != right).any():
        return None
    size = flat.stride(0)
    offset = flat.storage_offset() + first * size
    return flat.as_strided((*rows.shape, flat.shape[1]), (down * size, right * size, 1), offset)
