"""A product on a mesh beside torch.matmul, timed on this machine: with tiles that move, and with elided exchange.

    >>> from wafer_triton.compare.library import bench_gemm
    >>> rows = bench_gemm(8, 256, 256, 256)
    >>> [row.name for row in rows]
    ['explicit', 'elided', 'torch.matmul']

Times are of the emulation, never of a wafer. The operands lie on the cores before, as in the program of a model, so
cutting and gathering are not timed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wafer_triton.algorithms.product import Recipe, recipe
from wafer_triton.compare.product import Compared
from wafer_triton.device import DeviceLike
from wafer_triton.device.dtype import DtypeLike, dtype_name, torch_dtype
from wafer_triton.device.mesh import as_mesh
from wafer_triton.errors import MeshError, ShapeError
from wafer_triton.text.progress import Progress, reported, silent
from wafer_triton.text.quantity import named, unit

if TYPE_CHECKING:
    from torch import Tensor

    from wafer_triton.emulate.executor import Executor

EXCHANGES = ("explicit", "elided")
MATMUL = "torch.matmul"
MOST_SECONDS = 600.0  # of the rounds of one row


@dataclass(frozen=True)
class TimedRow:
    """One row: seconds of a product on this machine, its ratio to torch.matmul, its largest error against fp64."""

    name: str = field(metadata=named("product"))
    seconds: float = field(metadata=unit("s", "median time"))
    least: float = field(metadata=unit("s", "least time"))
    ratio: float = field(metadata=unit("x", "over torch.matmul"))
    error: float = field(metadata=unit("%", "largest error"))
    rounds: int = field(metadata=unit("", "timed rounds"))
    how: str = field(metadata=named("timed"))


def bench_gemm(mesh: Any, m: int, k: int, n: int, **options: Any) -> list[TimedRow]:
    """Return rows for [m, k] x [k, n] on a mesh with explicit and with elided exchange, and by torch.matmul.

    `options` are `algorithm` ("mesh"), `dtype` ("fp32"), and the `device` of the virtual cores ("wse2"). `emulate_on`
    and `backend` are as in `ops.executor`. The rounds of a row take `seconds`, about (1).
    Raises a WaferError for a wrong mesh, size, dtype or algorithm, and for tiles that overflow a core. Raises
    ShapeError for a product of more numbers than are computed here, BackendError for an absent torch device or backend.
    """
    return _rows("gemm", mesh, ((m, k), (k, n)), **{"algorithm": "mesh", **options})


def bench_gemv(mesh: Any, k: int, n: int, **options: Any) -> list[TimedRow]:
    """Return rows for [1, k] x [k, n], as `bench_gemm`; `algorithm` is "ktree" by default."""
    return _rows("gemv", mesh, ((1, k), (k, n)), **{"algorithm": "ktree", **options})


Shapes = tuple[tuple[int, int], tuple[int, int]]


def _rows(
    name: str, mesh: Any, shapes: Shapes, /, *, algorithm: str, dtype: DtypeLike = "fp32",
    device: DeviceLike = "wse2", emulate_on: str = "auto", backend: str | None = None, seconds: float = 1.0,
    progress: Progress = silent,
) -> list[TimedRow]:  # fmt: skip
    import torch

    from wafer_triton.compare.timing import timed
    from wafer_triton.ops import executor

    wanted = Compared(name, as_mesh(mesh, device), dtype_name(dtype), shapes)
    wanted.values(True)  # raises for more numbers than are computed here
    if algorithm not in wanted.algorithms:
        raise MeshError(f"{name} algorithm {algorithm!r}: choose one of {', '.join(wanted.algorithms)}")
    if not 0 < seconds <= MOST_SECONDS:
        raise ShapeError(f"a row is timed for more than 0 s and at most {MOST_SECONDS:g} s, not for {seconds!r}")
    made = recipe(name, wanted.mesh, wanted.dtype, shapes, (("algorithm", algorithm),))
    executors = {exchange: executor(backend, exchange, emulate_on) for exchange in EXCHANGES}
    where = executors[EXCHANGES[0]].device
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=generator).to(where, torch_dtype(wanted.dtype)) for shape in shapes)
    exact, rows = a.double() @ b.double(), list[TimedRow]()
    out = a.new_empty(exact.shape)
    programs: dict[str, tuple[Callable[[], object], Callable[[], Tensor]]] = {
        MATMUL: (lambda: torch.matmul(a, b, out=out), lambda: out),
        **{exchange: _program(made, own, a, b) for exchange, own in executors.items()},
    }
    for row, (run, result) in reported("rows", programs.items(), progress):
        times = timed(where, run, seconds)
        error = float((result().double() - exact).abs().max() / exact.abs().max())
        first = rows[0].seconds if rows else times.seconds
        rows.append(TimedRow(row, times.seconds, times.least, times.seconds / first, error, times.rounds, times.how))
    return [*rows[1:], rows[0]]


def _program(
    made: Recipe, executor: Executor, a: Tensor, b: Tensor
) -> tuple[Callable[[], object], Callable[[], Tensor]]:
    """Return the run of a product whose operands lie on the cores, and a function that gathers its result."""
    from wafer_triton.device.layout import MeshTensor, scatter

    mesh, (output, pattern, shape) = made.schedule.mesh, made.output
    pairs = zip(made.inputs, (a, b), strict=True)
    placed = {name: scatter(operand, mesh, cut).tiles for (name, cut), operand in pairs}
    bound = executor.bind(made.schedule, placed)

    def result() -> Tensor:
        for name, tiles in placed.items():  # the timed runs have moved them
            bound.write(name, tiles)
        bound.execute()
        return MeshTensor(mesh, bound.read(output), pattern, shape, {}).gather()

    return bound.execute, result
