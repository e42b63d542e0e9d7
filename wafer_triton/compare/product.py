"""Operations that several algorithms compute, and which of them a schedule of the user's own is, by its intent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wafer_triton.algorithms import gemm, trees
from wafer_triton.algorithms.product import Recipe, recipe
from wafer_triton.device.dtype import STORED, dtype_name
from wafer_triton.device.layout import MESH_AXES, axes, letters
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import ScheduleError, ShapeError, SramError, check_counts, plain, shown
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.verify.intent import Intent
from wafer_triton.verify.specs import PartitionSpec, cuts, cuts_slots

Shapes = tuple[tuple[int, ...], ...]

MOST_VALUES = 64 * 64  # up to this number of logical cores values are computed by default,
MOST_MACS = 2**34  # and multiply-adds of the product
MOST_NUMBERS = 2**28  # of operands and result together, in fp64 2 GiB, of which there are several copies
MOST_SIZES = 2**40  # numbers of one matrix, far above any model's


@dataclass(frozen=True)
class Compared:
    """An operation that algorithms are compared for: a name of `recipe`, a mesh, a dtype, shapes and options."""

    name: str
    mesh: Mesh
    dtype: str
    shapes: Shapes
    options: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "shapes", tuple(tuple(map(plain, shape)) for shape in self.shapes))
        if self.name == "all_reduce":
            return
        m, k, n = self.sizes
        m, k, n = check_counts(m=m, k=k, n=n)
        if max(m * k, k * n, m * n) > MOST_SIZES:
            raise ShapeError(
                f"a product of {m:,} x {k:,} x {n:,} has matrices of more than {MOST_SIZES:,} numbers; take smaller "
                f"sizes"
            )

    @property
    def transposed(self) -> bool:
        """Whether the second matrix is given transposed."""
        return ("transposed", "b") in self.options

    @property
    def sizes(self) -> tuple[int, int, int]:
        """m, k and n of a product."""
        m, k = self.shapes[0]
        return m, k, self.shapes[1][0 if self.transposed else 1]

    @property
    def algorithms(self) -> tuple[str, ...]:
        """The built-in algorithms."""
        return tuple(gemm.ALGORITHMS) if self.name == "gemm" else trees.ALGORITHMS

    def by(self, algorithm: str) -> Recipe:
        """Return the recipe by an algorithm, whose SRAM has no limit."""
        options = (("algorithm", algorithm), *self.options)
        with sized(f"a {self.name} of {' x '.join(map(str, self.shapes))} on mesh {self.mesh}"):
            return recipe(self.name, unbounded(self.mesh), self.dtype, self.shapes, options)

    def values(self, wanted: bool | None) -> bool:
        """Return whether values are computed, as `wanted` or by default; ShapeError if they do not fit this machine."""
        if self.name == "all_reduce":
            return False
        if self.dtype in STORED:
            if wanted:
                dtype_name(self.dtype)  # raises
            return False
        m, k, n = self.sizes
        numbers = m * k + k * n + m * n
        if wanted and numbers > MOST_NUMBERS:
            raise ShapeError(
                f"values of a product of {m:,} x {k:,} x {n:,}: {numbers:,} numbers are more than the "
                f"{MOST_NUMBERS:,} that are computed here; leave out --values, or take smaller sizes"
            )
        grid = self.mesh.square() if self.name == "gemm" else self.mesh
        small = grid.cores <= MOST_VALUES and m * k * n <= MOST_MACS and numbers <= MOST_NUMBERS
        return small if wanted is None else wanted


def unbounded(mesh: Mesh) -> Mesh:
    """Return the mesh with unbounded SRAM: an overflow is a finding here, not an error."""
    return replace(mesh, device=mesh.device.unbounded())


def taking_part(schedule: Schedule) -> float:
    """Return the share of physical cores that compute, send or receive anything; 1 where nothing is to do."""
    if not schedule.rounds or any(op.where is None for round_ in schedule.rounds for op in round_.locals):
        return 1.0
    mesh = schedule.mesh
    busy = np.zeros(mesh.cores, bool)
    for round_ in schedule.rounds:
        for op in round_.locals:
            busy[op.cores(mesh)] = True
        for exchange in round_.exchanges:
            busy[exchange.moves.senders.flat(mesh)] = busy[exchange.moves.receivers.flat(mesh)] = True
    return float(busy.reshape(mesh.rows, mesh.fold[0], mesh.cols, mesh.fold[1]).any((1, 3)).mean())


@contextmanager
def sized(what: str) -> Iterator[None]:
    """Raise ShapeError where sizes exceed even an unbounded SRAM, which has a largest number of bytes."""
    try:
        yield
    except SramError:
        raise ShapeError(f"{what}: a core would hold more than a TiB; take smaller sizes or a larger mesh") from None


def understood(schedule: Schedule, intent: Intent | None) -> tuple[Recipe, Compared]:
    """Return a schedule as a recipe, and the operation that it computes."""
    if intent is None:
        raise ScheduleError(f"{schedule.name}: which operation it is, only an Intent says; return (Schedule, Intent)")
    try:
        if len(intent.given) == 2:
            return _product(schedule, intent)
        return _sum(schedule, intent)
    except (ShapeError, KeyError, ValueError, TypeError):
        raise ScheduleError(
            f"{schedule.name}: neither a product nor a sum follows from {_said(intent.given)} -> "
            f"{_said(intent.result)}; give partition specs of a product, such as '(y m) (x k)' and '(y k) (x n)' -> "
            f"'(y m) (x n)', or 'm (y k)' and '(y k) (x n)' -> 'm (x n)', or of a sum, such as {{'i': 'y', 'j': 'x'}} "
            f"-> {{'i': 'y'}}; `sweep` and `draw --beside` put other algorithms of your own beside each other"
        ) from None


def _said(specs: Mapping[str, PartitionSpec]) -> str:
    """Return partition specs as text, without the numbers of arrays."""
    return shown({
        name: spec if isinstance(spec, str) else {
            letter: at if isinstance(at, str | int) else "an array" for letter, at in spec.items()
        }
        for name, spec in specs.items()
    })  # fmt: skip


def _product(schedule: Schedule, intent: Intent) -> tuple[Recipe, Compared]:
    ((out, spec),) = ((name, _pattern(spec)) for name, spec in intent.result.items())
    operands = [(name, _pattern(spec)) for name, spec in intent.given.items()]
    m, n = axes(spec)
    first, second = sorted(operands, key=lambda operand: m not in axes(operand[1]))  # which has the rows of the result
    (k,) = set(axes(first[1])) - {m}
    order = axes(second[1])
    name = "gemm" if m in letters(first[1]) else "gemv"
    if axes(first[1]) != [m, k] or order not in ([k, n], [n, k]) or (name == "gemv" and order == [n, k]):
        raise ValueError
    shapes = tuple(_whole(schedule, *operand) for operand in (first, second))
    options: tuple[tuple[str, Any], ...] = (("transposed", "b"),) if order == [n, k] else ()
    if name == "gemv":
        options = (("axis", letters(first[1])[k]),)
    built = Recipe(schedule, (first, second), (out, spec, (shapes[0][0], shapes[1][order.index(n)])))
    return built, Compared(name, schedule.mesh, schedule.buffers[first[0]].dtype, shapes, options)


def _sum(schedule: Schedule, intent: Intent) -> tuple[Recipe, Compared]:
    ((name, given),) = intent.given.items()
    specs = [cuts(name, spec) for spec in (given, intent.result[name])]
    ((_, axis),) = ((letter, axis) for letter, axis in specs[0].items() if letter not in specs[1])
    if axis not in MESH_AXES or len(intent.result) != 1:
        raise ValueError
    buffer, mesh = schedule.buffers[name], schedule.mesh
    built = Recipe(schedule, ((name, ""),), (name, "", ()))
    # without a letter of slots all slots of a core hold the same tile
    slots = (buffer.slots,) if cuts_slots(name, given) else ()
    shape = (*mesh.shape, *slots, *buffer.tile)
    return built, Compared("all_reduce", mesh, buffer.dtype, (shape,), (("axis", str(axis)),))


def _pattern(spec: Any) -> str:
    """Return a partition spec that is a pattern; ValueError for a table of letters, which does not order them."""
    if not isinstance(spec, str):
        raise ValueError(spec)
    return spec


def _whole(schedule: Schedule, name: str, spec: str) -> tuple[int, ...]:
    """Return the shape of an operand in whole tiles, which is cut by a pattern."""
    held, lines = schedule.buffers[name].tile, letters(spec)
    return tuple(
        size * (schedule.mesh.length(lines[axis]) if axis in lines else 1)
        for axis, size in zip(axes(spec), held, strict=True)
    )
