"""The torch executor: all cores batched, a neighbour move an indexed copy, local operations in their fast forms.

Tiles lie in their buffer's dtype. An operation widens what it reads to fp32 and rounds what it writes, which gives the
values of a core that computes in fp32 and stores in 16 bits, at the speed of fp32 on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch

from wafer_triton.dtype import torch_dtype
from wafer_triton.emulate import columns
from wafer_triton.emulate.executor import Executor
from wafer_triton.emulate.fast import Form, form
from wafer_triton.emulate.launches import ComputeShifts, combining, compute_shifts, mailboxes, sends_of
from wafer_triton.emulate.steps import Memory, Place, Step
from wafer_triton.local import LocalOp, find
from wafer_triton.schedule.rounds import Buffer, Cores, Exchange, Index, Local, Round, Schedule, Slot

Select: TypeAlias = "slice | torch.Tensor"
Params = Mapping[str, Any]
Tensors: TypeAlias = "list[torch.Tensor]"
Many: TypeAlias = "tuple[Exchange, ...]"
Ends: TypeAlias = "tuple[torch.Tensor, torch.Tensor]"  # row numbers of what is sent, and of where it goes
Take: TypeAlias = "Callable[[], torch.Tensor]"
Pairs: TypeAlias = "list[tuple[torch.Tensor, torch.Tensor]]"
_Part: TypeAlias = "tuple[Tensors, Tensors]"  # outputs and inputs
_Wide: TypeAlias = "tuple[Tensors, Pairs, Pairs]"  # fp32 operands; which are widened from what, and rounded to what


class TorchExecutor(Executor):
    """Runs schedules with torch on `device` ("cpu" or a CUDA device)."""

    def __init__(self, *, device: str = "cpu", exchange: str = "explicit", poison: bool = False) -> None:
        super().__init__(exchange=exchange, poison=poison)
        self._device = device
        self._room = torch.empty(0, device=device)
        # by the first of some exchanges, and by the others
        self._known: WeakKeyDictionary[Exchange, dict[Many, Ends]] = WeakKeyDictionary()

    @property
    def device(self) -> str:
        return self._device

    def storage(self, buffer: Buffer) -> torch.dtype:
        return torch_dtype(buffer.dtype)

    def move(self, memory: Memory, exchanges: Sequence[Exchange], src: Place) -> Step:
        grids = [self._grid(memory, exchange, src) for exchange in exchanges]
        rest = [exchange for exchange, step in zip(exchanges, grids, strict=True) if step is None]
        steps = [step for step in grids if step is not None] + ([self.indexed(memory, rest, src)] if rest else [])
        return steps[0] if len(steps) == 1 else lambda: [step() for step in steps]

    def indexed(self, memory: Memory, exchanges: Sequence[Exchange], src: Place) -> Step:
        """The step of any exchanges from one slot to one: a gather of what is sent, a scatter to where it goes."""
        sent, got = self._ends(memory, exchanges, src)
        source, target = memory.rows(src.slot), memory.rows(exchanges[0].dst)
        return lambda: target.index_copy_(0, got, source.index_select(0, sent))

    def _grid(self, memory: Memory, exchange: Exchange, src: Place) -> Step | None:
        """The step of an exchange whose receivers are a grid of cores."""
        views = self._views(memory, exchange, exchange.dst) if src.lies_in(exchange.src) else None
        if views is None:
            return None
        target, source, send = views
        if send is None:
            return lambda: target.copy_(source)
        axis = 1 if exchange.axis == "x" else 0
        if target.is_contiguous() and src.slot.buffer != exchange.dst.buffer:
            return lambda: torch.index_select(source, axis, send, out=target)
        return lambda: target.copy_(source.index_select(axis, send))

    def fuse(self, memory: Memory, schedule: Schedule, rounds: tuple[Round, ...]) -> tuple[int, list[Step]] | None:
        sends = sends_of(rounds[0], memory.mesh) or {}
        if len(sends) == 2:  # of a large matrix alone is the run of rounds worth finding
            large = memory.tensors[sends[1][0].src.buffer].numel() >= columns.LARGE
            run = compute_shifts(schedule, rounds) if large else None
            sweep = None if run is None else self._sweep(memory, run)
            if run is None or sweep is None:
                return None
            a, b = ((_tiles(memory, first), _tiles(memory, second)) for first, second in (run.a, run.b))
            return run.number, [sweep.explicit(a, b, memory.tensors[run.c])]
        step = self._messages(memory, schedule, rounds[0])
        return None if step is None else (1, [step])

    def _messages(self, memory: Memory, schedule: Schedule, round_: Round) -> Step | None:
        """A round of a tree whose messages do without mailboxes: they are added where they arrive.

        Nobody adds to what it sends in the same round.
        """
        pairs = combining(round_)
        if pairs is None or any(op.op != "add" for _, op in pairs):
            return None
        if not {exchange.dst.buffer for exchange, _ in pairs} <= mailboxes(schedule):
            return None
        if all(exchange.recv.ndim == 1 for exchange, _ in pairs):
            views = [self._views(memory, exchange, exchange.src) for exchange, _ in pairs]
            moves = [(view[0], view[1]) for view in views if view is not None and view[2] is None]
            if len(moves) == len(pairs):
                return lambda: [target.add_(source) for target, source in moves]
        home = [replace(exchange, dst=exchange.src) for exchange, _ in pairs]
        sent, got = self._ends(memory, home, Place(home[0].src))
        acc = memory.rows(pairs[0][0].src)
        if len(got.unique()) == len(got):
            return lambda: acc.index_add_(0, got, acc.index_select(0, sent))
        sizes = [len(exchange.receivers.flat(memory.mesh)) for exchange in home]

        def step() -> None:  # a core that gets two messages adds them in the order of the round
            for target, message in zip(got.split(sizes), acc.index_select(0, sent).split(sizes), strict=True):
                acc.index_add_(0, target, message)

        return step

    def _sweep(self, memory: Memory, run: ComputeShifts) -> columns.Sweep | None:
        """With explicit and elided exchange alike, as the last bit depends on which products are computed together."""
        fp32 = memory.tensors[run.c].dtype == torch.float32 and run.params.get("accumulate", "fp32") == "fp32"
        a, b = (memory.buffers[pair[0].buffer] for pair in (run.a, run.b))
        if not fp32 or torch.device(self.device).type != "cpu" or a.slots > 1 or b.slots > 1:
            return None
        return columns.plan(memory.mesh, run, (a.numel, b.numel), partial(form(find("gemm")).run, **run.params))

    def products(self, memory: Memory, run: ComputeShifts, a: Place, b: Place) -> Step | None:
        """A round gathers the tiles that the cores hold by then; only whose they are moves on, not the tiles."""
        definition, shape = find("gemm"), memory.mesh.shape
        starts = [place.flat(shape) for place in (a, b)]
        gives = [torch.from_numpy(np.argsort(to)).to(self.device) for to in run.to]
        lie = [self._rows_of(memory, place.slot, np.arange(memory.mesh.cores))[1] for place in (a, b)]
        if any(memory.buffers[place.slot.buffer].slots > 1 for place in (a, b)):
            return None
        sweep = self._sweep(memory, run)
        if sweep is not None:
            return sweep.elided(lie[0], lie[1], (starts[0], starts[1]), memory.tensors[run.c], memory.tensors[run.out])
        begins = [torch.from_numpy(start).to(self.device) for start in starts]
        hold = [torch.empty_like(tiles) for tiles in lie]
        c, out = _tiles(memory, Slot(run.c)), _tiles(memory, Slot(run.out))
        reads = [tiles.view(*shape, -1) for tiles in hold]
        first, rest = (self._direct(definition, {**run.params, "add": add}, [c], reads) for add in (run.add, True))

        def step() -> None:
            held = list(begins)
            for number in range(run.number):
                for i in (0, 1):
                    torch.index_select(lie[i], 0, held[i], out=hold[i])
                    held[i] = held[i].index_select(0, gives[i])
                (rest if number else first)()
            if run.out != run.c:
                out.copy_(c)

        return step

    def _direct(self, op: LocalOp, params: Params, outs: Tensors, reads: Tensors) -> Step:
        """A step that runs an operation on these very tensors, widened if need be."""
        fast = form(op)
        if _as_they_are(fast, params, outs, reads):
            return lambda: fast.run(*outs, *reads, **params)
        keeps = _keeps(op, params, outs[0].shape[-1])
        return _run_widened(fast, params, keeps, [self._wide(part) for part in _parts(outs, reads)])

    def compute(self, memory: Memory, op: Local, ins: tuple[Place, ...]) -> Step:
        definition, params = find(op.op), dict(op.params)
        fast, area = form(definition), _area(op.where)
        cores = np.arange(memory.mesh.cores) if op.where is None else op.where.flat(memory.mesh)
        takes = [self._rows(memory, place, slot, cores) for place, slot in zip(ins, op.ins, strict=True)]
        if area is not None and all(out.is_fixed for out in op.outs):
            outs = [_tiles(memory, out)[area] for out in op.outs]
            views = [_view(memory, place, fast.repeated) for place in ins]
            kept = [None if view is None else view[area] for view in views]
            reads = [view for view in kept if view is not None]
            if len(reads) == len(ins):
                return self._direct(definition, params, outs, reads)
            if op.where is None or op.where.axis == "x":  # the order of rows and columns, as gathered
                return self._beside(definition, params, outs, kept, takes)
        places = [self._rows_of(memory, out, cores) for out in op.outs]
        keeps = _keeps(definition, params, places[0][1].shape[1])

        def gathered() -> None:
            results = [flat.index_select(0, rows) if keeps else flat.new_empty(len(cores), flat.shape[1])
                       for rows, flat in places]  # fmt: skip
            given = [take() for take in takes]
            if _as_they_are(fast, params, results, given):
                fast.run(*results, *given, **params)
            else:
                _run_widened(fast, params, keeps, [self._wide((results, given))])()
            for (rows, flat), result in zip(places, results, strict=True):
                flat.index_copy_(0, rows, result)

        return gathered

    def _beside(
        self, op: LocalOp, params: Params, outs: Tensors, kept: list[torch.Tensor | None], takes: list[Take]
    ) -> Step:
        """A step that gathers the inputs which lie elsewhere; of those that are `kept` here it makes no copy."""
        fast, keeps = form(op), _keeps(op, params, outs[0].shape[-1])
        grid, ways = outs[0].shape[:2], list(zip(kept, takes, strict=True))
        # the dtypes never change, so that which way they go is known before
        as_they_are = _as_they_are(fast, params, outs, [take() if own is None else own for own, take in ways])

        def step() -> None:
            reads = [take().view(*grid, -1) if own is None else own for own, take in ways]
            if as_they_are:
                fast.run(*outs, *reads, **params)
            else:
                _run_widened(fast, params, keeps, [self._wide((outs, reads))])()

        return step

    def _wide(self, part: _Part) -> _Wide:
        """Operands in fp32: themselves, or room for them in a piece of memory that all steps use in turn."""
        outs, reads = part
        operands = [*outs, *reads]
        sizes = [operand.numel() for operand in operands if operand.dtype != torch.float32]
        size = sum(sizes)
        if self._room.numel() < size:  # steps planned before keep theirs
            self._room = torch.empty(size, device=self.device)
        rooms = iter(self._room[:size].split(sizes))
        wide = [x if x.dtype == torch.float32 else next(rooms).view(x.shape) for x in operands]
        pairs = list(zip(operands, wide, strict=True))
        widened = [(fp32, given) for given, fp32 in pairs[len(outs) :] if given is not fp32]
        return wide, widened, [(given, fp32) for given, fp32 in pairs[: len(outs)] if given is not fp32]

    def _views(
        self, memory: Memory, exchange: Exchange, to: Slot
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] | None:
        """The receivers' tiles of `to`, and what the senders have or, where they are no grid, of whom to pick whom."""
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

    def _ends(self, memory: Memory, exchanges: Sequence[Exchange], src: Place) -> Ends:
        """Row numbers of the tiles that are sent and of where they go; found once, however often it is bound."""
        known, others = self._known.setdefault(exchanges[0], {}), tuple(exchanges[1:])
        in_place = src.lies_in(exchanges[0].src)
        if in_place and others in known:
            return known[others]
        pairs = [(exchange.senders.flat(memory.mesh), exchange.receivers.flat(memory.mesh)) for exchange in exchanges]
        senders, receivers = map(np.concatenate, zip(*pairs, strict=True))
        at = senders if src.is_own else src.flat(memory.mesh.shape)[senders]
        ends = self._rows_of(memory, src.slot, at)[0], self._rows_of(memory, exchanges[0].dst, receivers)[0]
        if in_place:
            known[others] = ends
        return ends

    def _rows_of(self, memory: Memory, slot: Slot, cores: Index) -> tuple[torch.Tensor, torch.Tensor]:
        """Row numbers of a slot's tiles in the buffer as [rows, numel], and that view."""
        rows = cores
        if slot.index is not None:
            rows = cores * memory.buffers[slot.buffer].slots + slot.of_cores(cores, memory.mesh)
        return torch.from_numpy(rows).to(self.device), memory.rows(slot)

    def _rows(self, memory: Memory, place: Place, slot: Slot, cores: Index) -> Take:
        """A function that gathers the tiles of `cores` from where they lie."""
        at = cores if place.is_own else place.flat(memory.mesh.shape)[cores]
        rows, flat = self._rows_of(memory, place.slot, at)
        return lambda: flat.index_select(0, rows)


def _tiles(memory: Memory, slot: Slot) -> torch.Tensor:
    """A fixed slot of all cores: [rows, cols, numel]."""
    tensor, numel = memory.tensors[slot.buffer], memory.buffers[slot.buffer].numel
    if slot.index is None:
        return tensor
    assert isinstance(slot.index, int)
    return tensor[..., slot.index * numel : (slot.index + 1) * numel]


def _view(memory: Memory, place: Place, repeated: bool) -> torch.Tensor | None:
    """The tiles of a place [rows, cols, numel] without a copy: those of the cores themselves or, if `repeated` may be,
    rows or columns of which all others hold the tiles.
    """
    if not place.slot.is_fixed or not (place.is_own or repeated):
        return None
    tiles = _tiles(memory, place.slot)
    if place.is_own:
        return tiles
    rows, cols = memory.mesh.shape
    homes = place.flat(memory.mesh.shape).reshape(rows, cols)
    row, col = homes[:, :1] // cols, homes[:1] % cols
    if (homes != row * cols + col).any():  # as where some have their own
        return None
    at = [_select(index.ravel(), "cpu") for index in (row, col)]
    return tiles[at[0], at[1]].expand(rows, cols, -1) if all(isinstance(index, slice) for index in at) else None


def _keeps(op: LocalOp, params: Params, numel: int) -> bool:
    """Whether outputs of `numel` elements must hold what they held before: they are added to, or written in part."""
    return op.updates(params) or bool(params.get("size", numel) < numel)


def _as_they_are(fast: Form, params: Params, outs: list[torch.Tensor], reads: list[torch.Tensor]) -> bool:
    """Whether the operation may have these tensors: all are fp32, all of one dtype that it takes, or it only moves."""
    dtypes = {operand.dtype for operand in (*outs, *reads)}
    return fast.moves or dtypes == {torch.float32} or (len(dtypes) == 1 and fast.narrow(params))


def _run_widened(fast: Form, params: Params, keeps: bool, parts: list[_Wide]) -> Step:
    """A step that widens what is read, runs the operation, and rounds what it wrote, part by part."""

    def step() -> None:
        for outs, reads, writes in parts:
            for wide, narrow in reads:
                wide.copy_(narrow)
            if keeps:
                for narrow, wide in writes:
                    wide.copy_(narrow)
            fast.run(*outs, **params)
            for narrow, wide in writes:
                narrow.copy_(wide)

    return step


_CACHED = 2**18  # elements that are widened at once: 1 MiB of fp32, which stays in a core's cache


def _parts(outs: list[torch.Tensor], reads: list[torch.Tensor]) -> list[_Part]:
    """The same tensors in slices of their first dimension, none of which widens more than the cache holds."""
    rows = outs[0].shape[0]
    most = max(operand.numel() for operand in (*outs, *reads))
    size = max(1, rows * _CACHED // max(most, 1))
    cuts = [slice(start, start + size) for start in range(0, rows, size)]
    return [([out[cut] for out in outs], [read[cut] for read in reads]) for cut in cuts]


def _select(index: Index | None, device: str) -> Select:
    """A slice for an arithmetic progression, which costs no gather; else a tensor of indices."""
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
    if where.at.ndim > 1:
        return None
    along, across = _select(where.at, "cpu"), _select(where.lines, "cpu")
    if not isinstance(along, slice) or not isinstance(across, slice):
        return None
    return (across, along) if where.axis == "x" else (along, across)
