"""The reference: the definition of the machine, which runs any schedule and has no fast path.

A round goes in three parts. Every tile that the round sends is read; then every tile is written where it is received;
then the local operations run, one after the other, each on all of its cores. A core reads its tiles widened to fp32,
computes as `wafer_triton.local` defines, and rounds results to the buffer's dtype. The other executors are
tested against this one.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from wafer_triton.device.dtype import torch_dtype
from wafer_triton.device.modes import plain
from wafer_triton.errors import ShapeError
from wafer_triton.local import find
from wafer_triton.schedule.rounds import Index, Local, Slot
from wafer_triton.schedule.schedule import Schedule


class Reference:
    """A schedule on memory of its own: `tensors` [rows, cols, *tile], or [rows, cols, slots, *tile], are copied in.

    With `runs` all of them have one more dimension in front: that many runs, each on its own values, go side by side.
    All other memory is NaN, or zero with `poison=False`. With `exact` memory and arithmetic are fp64, and nothing that
    is computed is rounded. Raises ShapeError for a missing tensor.
    """

    @plain()
    def __init__(
        self, schedule: Schedule, tensors: Mapping[str, Tensor], *, poison: bool = True, exact: bool = False,
        runs: int | None = None,
    ) -> None:  # fmt: skip
        self.schedule, self.mesh, self.exact = schedule, schedule.mesh, exact
        self.runs = () if runs is None else (runs,)
        self.memory: dict[str, Tensor] = {}  # [cores * slots, numel], after the dimension of runs
        self.rounds_done = 0
        for name, buffer in schedule.buffers.items():
            dtype = torch_dtype(buffer.dtype)
            shape = (*self.runs, self.mesh.cores * buffer.slots, buffer.numel)
            if name not in tensors and buffer.given:
                raise ShapeError(f"{schedule.name}: no tensor given for {buffer.role} buffer {name!r}")
            stored = torch.float64 if exact else dtype
            if name in tensors:  # given values are rounded in any case
                self.memory[name] = tensors[name].to("cpu", dtype).reshape(shape).to(stored, copy=True)
            else:
                self.memory[name] = torch.full(shape, float("nan") if poison else 0.0, dtype=stored)

    @plain()
    def run(self, until: int | None = None) -> None:
        """Execute the rounds that are left, or those before round `until` (from 0)."""
        for round_ in self.schedule.rounds[self.rounds_done : until]:
            ends = [exchange.moves.ends(self.mesh) for exchange in round_.exchanges]
            sent = [self.tiles(each.src, senders) for each, (senders, _) in zip(round_.exchanges, ends, strict=True)]
            for exchange, (_, receivers), tiles in zip(round_.exchanges, ends, sent, strict=True):
                self.put(exchange.dst, receivers, tiles)
            for op in round_.locals:
                self.compute(op)
            self.rounds_done += 1

    def compute(self, op: Local) -> None:
        """Run a local operation on its cores; outputs are read too, as it may add to them or write a part."""
        cores = op.cores(self.mesh)
        wide = torch.float64 if self.exact else torch.float32
        outs, ins = ([self.tiles(slot, cores).to(wide) for slot in slots] for slots in (op.outs, op.ins))
        params = dict(op.params)
        if self.exact and "accumulate" in params:  # the operation itself rounds
            params["accumulate"] = "fp32"
        definition = find(op.op)
        definition.clear(outs, params)
        definition.run(*outs, *ins, **params)
        for slot, tiles in zip(op.outs, outs, strict=True):
            self.put(slot, cores, tiles)

    def tiles(self, slot: Slot, cores: Index) -> Tensor:
        """Return a copy of these cores' tiles [cores, numel] in a slot, or of the whole buffer as one tile."""
        tiles = self.memory[slot.buffer][..., self.cells(slot, cores), :]
        return tiles.flatten(-2) if slot.index is None else tiles

    def put(self, slot: Slot, cores: Index, tiles: Tensor) -> None:
        """Write tiles [cores, numel] into a slot of these cores, rounded to the buffer's dtype."""
        memory, cells = self.memory[slot.buffer], self.cells(slot, cores)
        memory[..., cells, :] = tiles.to(memory.dtype).view(*self.runs, *cells.shape, memory.shape[-1])

    def cells(self, slot: Slot, cores: Index) -> Index:
        """Return where these cores' tiles lie in memory, [cores] or [cores, slots]."""
        return self.schedule.cells(slot, cores)

    def read(self, name: str) -> Tensor:
        """Return a buffer's values in the form of given ones: [rows, cols, *tile], or [rows, cols, slots, *tile]."""
        dims = self.schedule.buffers[name].dims
        return self.memory[name].clone().view(*self.runs, *self.mesh.shape, *dims)
