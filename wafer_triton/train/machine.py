"""A machine of dies: tensors in every die's HBM, schedules that run on slices of them in SRAM, and a count of both.

A tensor in HBM is [rows, cols, ...], one part for every die. A machine runs schedules on an executor of the project or,
if it is `exact`, in fp64 on the reference. It counts every run, so that a training step is priced by its runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.executor import Executor
from wafer_triton.emulate.reference import Reference
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.errors import HbmError, MeshError, ShapeError, check_counts, check_type, shown
from wafer_triton.local import find
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.train.cost import DieCost, total
from wafer_triton.train.dies import Wafer

if TYPE_CHECKING:
    from wafer_triton.emulate.executor import Program


class Machine:
    """A `mesh` of a wafer's dies; with `exact` values are fp64, else fp32 on `executor` (default: torch on the CPU).

    Local operations of training have no Triton kernel: beside a Triton executor torch runs them on the same device.
    Raises MeshError for a mesh of another device than the wafer's.
    """

    def __init__(self, on: Wafer, mesh: Mesh, executor: Executor | None = None, exact: bool = False) -> None:
        if mesh.device != on.device():
            raise MeshError(
                f"Machine: mesh {mesh} is of device {mesh.device.name}, not of wafer {on.name}; take a mesh of the "
                f"wafer, as wafer.mesh({mesh.rows}, {mesh.cols}) gives it"
            )
        self.wafer, self.mesh, self.exact = on, mesh, exact
        self.executor = executor or TorchExecutor()
        torch_already = isinstance(self.executor, TorchExecutor)
        self._beside = self.executor if torch_already else TorchExecutor(device=self.executor.device)
        self.ran: Counter[Schedule] = Counter()
        self.dtype = torch.float64 if exact else torch.float32
        self._programs: dict[Schedule, Program] = {}
        self._local: dict[tuple[object, ...], Schedule] = {}

    @property
    def cost(self) -> DieCost:
        """Return the predicted cost of all runs so far, one after the other."""
        return total(self.ran, self.wafer)

    def demand(self, mesh: Mesh) -> None:
        """Raise MeshError unless `mesh` is the mesh of the machine."""
        if mesh != self.mesh:
            raise MeshError(
                f"mesh {mesh} of {mesh.device.name} is not the machine's {self.mesh} of {self.mesh.device.name}; build "
                f"groups and machine on one mesh"
            )

    def run(self, schedule: Schedule, **tensors: Tensor) -> dict[str, Tensor]:
        """Run a schedule on input buffers by name and return its output buffers, [rows, cols, ...] each.

        Raises MeshError for a schedule on another mesh, ShapeError for missing, unknown or misshapen tensors.
        """
        self._demand(schedule, tensors)
        self.ran[schedule] += 1
        outs = [buffer for buffer in schedule.buffers.values() if buffer.role == "output"]
        if self.exact:
            machine = Reference(schedule, tensors, exact=True)
            for name, given in tensors.items():  # unrounded
                machine.memory[name][:] = given.reshape(machine.memory[name].shape)
            machine.run()
            return {buffer.name: machine.read(buffer.name) for buffer in outs}
        shaped = {name: given.reshape(*given.shape[:2], -1) for name, given in tensors.items()}
        if schedule not in self._programs:
            self._programs[schedule] = self._executor(schedule).bind(schedule, shaped)
        else:
            for name, given in shaped.items():
                self._programs[schedule].write(name, given)
        program = self._programs[schedule]
        program.run()
        return {buffer.name: program.read(buffer.name).cpu() for buffer in outs}

    def _demand(self, schedule: Schedule, tensors: Mapping[str, Tensor]) -> None:
        self.demand(schedule.mesh)
        inputs = {name: buffer for name, buffer in schedule.buffers.items() if buffer.given}
        if inputs.keys() != tensors.keys():
            raise ShapeError(
                f"{schedule.name}: tensors for {', '.join(tensors) or 'no buffer'}; give one for each of its inputs, "
                f"{', '.join(inputs) or 'none'}"
            )
        for name, given in tensors.items():
            wanted = [*self.mesh.shape, *(inputs[name].slots,) * (inputs[name].slots > 1), *inputs[name].tile]
            size = inputs[name].slots * inputs[name].numel
            if not isinstance(given, Tensor) or given.shape[:2] != self.mesh.shape or given[0, 0].numel() != size:
                has = list(given.shape) if isinstance(given, Tensor) else shown(given)
                raise ShapeError(f"{schedule.name}: {name} is {has}; give a tensor {wanted}")

    def _executor(self, schedule: Schedule) -> Executor:
        ops = [find(op.op) for round_ in schedule.rounds for op in round_.locals]
        own = any(op.run.__module__ == "wafer_triton.train.operations" for op in ops)
        return self._beside if own else self.executor

    def local(
        self, op: str, outs: Mapping[str, tuple[int, ...]], ins: Mapping[str, Tensor], **params: Any
    ) -> dict[str, Tensor]:
        """Run one local operation on all dies: `outs` has the tile of every output, `ins` the inputs, in order."""
        for name, given in ins.items():
            check_type(f"{op}: {name}", given, Tensor, ShapeError)
        key = (op, *outs.items(), *((name, given.shape[2:]) for name, given in ins.items()), *sorted(params.items()))
        if key not in self._local:
            b = Builder(self.mesh, op)
            for name, given in ins.items():
                b.buffer(name, tuple(given.shape[2:]) or (1,), "fp32", "input")
            for name, tile in outs.items():
                b.buffer(name, tile, "fp32", "output")
            b.round(b.local(op, list(outs), list(ins), **params), label=op)
            self._local[key] = b.build()
        return self.run(self._local[key], **ins)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """Return a + b on every die."""
        tile = tuple(a.shape[2:])
        return self.local("add", {"out": tile}, {"a": a, "b": b}, size=a[0, 0].numel())["out"]

    def zeros(self, *tile: int) -> Tensor:
        """Return zeros [rows, cols, *tile] in HBM."""
        check_counts(**{f"zeros: side {number} of a tile": side for number, side in enumerate(tile)})
        return torch.zeros(*self.mesh.shape, *tile, dtype=self.dtype)

    def check_hbm(self, held: Mapping[str, int]) -> int:
        """Return the sum of `held`, bytes by name; HbmError, with these names, if it exceeds a die's HBM."""
        return check_hbm(self.wafer, held)


def check_hbm(on: Wafer, held: Mapping[str, int]) -> int:
    """Return the sum of `held`, bytes by name; HbmError, which names the largest first, unless a die's HBM holds it."""
    size = sum(held.values())
    if size > on.hbm_bytes:
        parts = ", ".join(
            f"{name} {part:,} B" for name, part in sorted(held.items(), key=lambda item: -item[1]) if part
        )
        raise HbmError(
            f"wafer {on.name}: every die needs {size:,} B, {size - on.hbm_bytes:,} B over its {on.hbm_bytes:,} B of "
            f"HBM: {parts}; take more dies, recompute activations, or split weights and optimizer over more dies"
        )
    return size
