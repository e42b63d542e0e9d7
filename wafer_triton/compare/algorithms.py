"""Algorithms for one product side by side, each counted, priced and judged.

`wafer_triton.count.verdict` judges letter by letter (PLMR). Beside the verdict stand errors, hops, routes, links, SRAM
and the cycles that the same rounds are predicted to take on the wafer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wafer_triton.algorithms.product import Recipe
from wafer_triton.compare.product import Compared, taking_part, understood
from wafer_triton.cost.constants import constants
from wafer_triton.cost.price import Cost, price
from wafer_triton.count.account import Account, account
from wafer_triton.count.verdict import latency, verdict
from wafer_triton.device import DeviceLike
from wafer_triton.device.dtype import DtypeLike, storage_name
from wafer_triton.device.layout import axes, letters
from wafer_triton.device.mesh import as_mesh
from wafer_triton.errors import ScheduleError
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.text.progress import Progress, reported, silent
from wafer_triton.text.quantity import figures, named, unit
from wafer_triton.text.table import Results, Table
from wafer_triton.verify.intent import Intent


@dataclass(frozen=True)
class AlgorithmRow:
    """One algorithm: counts of its schedule, its error against fp64 (None: not computed), its verdict by letter."""

    units_of = (Account, Cost)

    algorithm: str
    rounds: int
    stages: int
    hops: int
    routes: int
    busiest_link_bytes: int
    sram_peak_bytes: int
    cycles: float = field(metadata=unit("cycles", "predicted cycles"))
    tuned_cycles: float
    error: float | None = field(metadata=unit("%", "largest error"))
    verdict: dict[str, bool] = field(metadata=named("PLMR"))


def compare_gemm(
    mesh: Any, m: int, k: int, n: int, *, device: DeviceLike = "wse2", dtype: DtypeLike = "fp16",
    values: bool | None = None, progress: Progress = silent,
) -> Results[AlgorithmRow]:  # fmt: skip
    """Return rows for [m, k] x [k, n] by MeshGEMM, Cannon, SUMMA and all-gather.

    `values` says whether errors are computed; None computes them where that takes no more than seconds, see
    `Product.values`. Raises a WaferError for a wrong mesh, size or dtype, and for values that do not fit this machine;
    SRAM is no limit here. Reports "algorithms" and "values" to `progress`.
    """
    return _beside(Compared("gemm", as_mesh(mesh, device), storage_name(dtype), ((m, k), (k, n))), {}, values, progress)


def compare_gemv(
    mesh: Any, k: int, n: int, *, device: DeviceLike = "wse2", dtype: DtypeLike = "fp16", values: bool | None = None,
    progress: Progress = silent,
) -> Results[AlgorithmRow]:  # fmt: skip
    """Return rows for [k] x [k, n] by MeshGEMV's K-tree and other all-reduces; keywords as in `compare_gemm`."""
    return _beside(Compared("gemv", as_mesh(mesh, device), storage_name(dtype), ((1, k), (k, n))), {}, values, progress)


def _beside(
    product: Compared, own: Mapping[str, Recipe], values: bool | None, progress: Progress
) -> Results[AlgorithmRow]:
    """Return rows for recipes of the user's own, and for all algorithms of a product."""
    mesh, wanted = product.mesh, product.values(values)
    recipes, counts, costs = {}, {}, {}
    for name in reported("algorithms", (*own, *product.algorithms), progress):
        recipes[name] = own[name] if name in own else product.by(name)
        counts[name], costs[name] = account(recipes[name].schedule), price(recipes[name].schedule)
    c = constants(mesh.device)
    best = min(latency(counted, c) for counted in counts.values())
    errors = _errors(recipes, product, progress) if wanted else {}
    rows = [
        AlgorithmRow(
            algorithm=name,
            error=errors.get(name),
            verdict=verdict(counted, mesh, c, costs[name].routes, _busy(recipes[name], product), best),
            **figures(AlgorithmRow, costs[name], counted),
        )
        for name, counted in counts.items()
    ]
    return Results(rows, Table.of(rows))


def compare_own(
    schedules: Mapping[str, tuple[Schedule, Intent | None]], *, values: bool | None = None, progress: Progress = silent,
) -> Results[AlgorithmRow]:  # fmt: skip
    """Return rows for schedules of the user's own, by name, and for the built-in algorithms of their operation.

    The operation follows from the intent's partition specs: a product of two matrices, of a vector and a matrix, or a
    sum over mesh lines. Mesh, sizes and dtype are the schedule's. Where a spec has no "slot", the slots of a core hold
    the same tile and the built-in algorithms have one of them; where an intent is `on` some cores, as of a reduce to a
    root, the built-in algorithms still leave the result on all. The title of the table then says so. Raises
    ScheduleError for any other operation, for several operations, or for no intent.
    """
    known = {name: understood(schedule, intent) for name, (schedule, intent) in schedules.items()}
    (first, (_, product)), *others = known.items()
    for name, (_, operation) in others:
        if operation != product:
            raise ScheduleError(
                f"{name} and {first} are {_said(operation)} and {_said(product)}: compare schedules of one operation"
            )
    rows = _beside(product, {f"{name} (own)": own for name, (own, _) in known.items()}, values, progress)
    notes = list[str]()
    for name, (schedule, intent) in schedules.items():
        assert intent is not None  # else `understood` raises
        notes += [
            f"the {slots} slots of {buffer} hold the same tile, as its spec has no 'slot'; built-in algorithms have one"
            for buffer, slots in intent.equal_slots(schedule).items()
        ]
        notes += [
            f"{name} leaves {buffer} on {cores.flat(schedule.mesh).size} of {schedule.mesh.cores} cores, built-in "
            f"algorithms leave it on all"
            for buffer, cores in intent.on.items()
        ]
    rows.table.title = "; ".join(notes)
    return rows


def _said(operation: Compared) -> str:
    shapes = " x ".join(str(list(shape)) for shape in operation.shapes)
    return f"{operation.name} {shapes} in {operation.dtype} on mesh {operation.mesh} of {operation.mesh.device.name}"


def _busy(built: Recipe, product: Compared) -> float:
    """Return the share of cores with weights in their tiles, of which the last are padded; of a sum taking part."""
    if product.name == "all_reduce":
        return taking_part(built.schedule)
    (name, pattern), mesh = built.inputs[1], built.schedule.mesh
    lines, sides = letters(pattern), {"y": (mesh.rows, mesh.fold[0]), "x": (mesh.cols, mesh.fold[1])}
    share = 1.0
    for axis, size, held in zip(axes(pattern), product.shapes[1], built.schedule.buffers[name].tile, strict=True):
        if axis in lines:  # else all cores hold it
            cores, fold = sides[lines[axis]]
            share *= -(-size // (held * fold)) / cores
    return share


def _errors(recipes: Mapping[str, Recipe], product: Compared, progress: Progress) -> dict[str, float]:
    """Return the largest error of each algorithm against fp64, relative to the largest value, on one random product."""
    import torch

    from wafer_triton.device.dtype import torch_dtype
    from wafer_triton.ops import executor, run

    generator, dtype = torch.Generator().manual_seed(0), torch_dtype(product.dtype)
    a, b = (torch.randn(shape, generator=generator).to(dtype) for shape in product.shapes)
    exact = a.double() @ (b.double().mT if product.transposed else b.double())
    errors = {}
    for name, built in reported("values", recipes.items(), progress):
        got = run(built, (a, b), executor(emulate_on="cpu")).gather().double()
        errors[name] = float((got - exact).abs().max() / exact.abs().max())
    return errors
