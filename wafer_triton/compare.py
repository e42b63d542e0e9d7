"""All algorithms for one product side by side: values, hops, routes, links, SRAM, and a PLMR verdict letter by letter.

The verdict, per letter (WaferLLM, OSDI'25, section 3):
- P: at least half of the cores hold some of the operands, not padding alone;
- L: the critical path (hops, routing stages and the words that pass the busiest link one by one, in cycles) is at most
  twice that of the best algorithm in the comparison;
- M: a core's buffers fit its SRAM;
- R: the routes fit the router.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from wafer_triton.count.account import Account, account
from wafer_triton.count.routes import routes
from wafer_triton.device import Device
from wafer_triton.mesh import Mesh, as_mesh
from wafer_triton.schedule import gemm, reduce
from wafer_triton.schedule.product import Recipe, recipe

Shapes = tuple[tuple[int, int], ...]

MOST_VALUES = 64 * 64  # cores up to which values are computed unless asked otherwise
PLMR = (
    "P: half of the cores or more take part; L: the critical path is short; M: buffers fit a core's SRAM; R: routes "
    "fit a router; - in place of a letter that is not kept"
)
LATENCY_RATIO = 2.0
BUSY_SHARE = 0.5


@dataclass(frozen=True)
class Row:
    """One algorithm: counts of its schedule, its error against fp64 (None: not computed), its verdict by letter."""

    algorithm: str
    rounds: int
    stages: int
    hops: int
    routes: int
    busiest_link_bytes: int
    sram_peak_bytes: int
    error: float | None
    verdict: dict[str, bool]


def compare_gemm(
    mesh: Any, m: int, k: int, n: int, *, device: str | Device = "wse2", dtype: str = "fp16", values: bool | None = None
) -> list[Row]:
    """Rows for [m, k] x [k, n] by MeshGEMM, Cannon, SUMMA and all-gather; `values` None computes on small meshes."""
    on = as_mesh(mesh, device)
    return _compare("gemm", on, ((m, k), (k, n)), tuple(gemm.ALGORITHMS), dtype, values)


def compare_gemv(
    mesh: Any, k: int, n: int, *, device: str | Device = "wse2", dtype: str = "fp16", values: bool | None = None
) -> list[Row]:
    """Rows for [k] x [k, n] by MeshGEMV's K-tree and the other all-reduces."""
    on = as_mesh(mesh, device)
    return _compare("gemv", on, ((1, k), (k, n)), reduce.ALGORITHMS, dtype, values)


def _compare(
    name: str, mesh: Mesh, shapes: Shapes, algorithms: tuple[str, ...], dtype: str, values: bool | None
) -> list[Row]:
    # an algorithm that does not fit is a result here, so nothing limits its buffers while it is counted
    roomy = replace(mesh, device=replace(mesh.device, sram_bytes=1 << 60))
    made = {one: recipe(name, roomy, dtype, shapes, (("algorithm", one),)) for one in algorithms}
    counts = {one: account(found.schedule) for one, found in made.items()}
    latency = {one: _latency(mesh.device, found) for one, found in counts.items()}
    wanted = mesh.cores <= MOST_VALUES if values is None else values
    errors = dict(_errors(made, shapes, dtype)) if wanted else {}
    rows = []
    for one, count in counts.items():
        needed = routes(made[one].schedule).colours
        rows.append(
            Row(
                algorithm=one,
                rounds=count.rounds,
                stages=count.stages,
                hops=count.hops,
                routes=needed,
                busiest_link_bytes=count.busiest_link_bytes,
                sram_peak_bytes=count.sram_peak_bytes,
                error=errors.get(one),
                verdict={
                    "P": _busy_share(made[one], shapes) >= BUSY_SHARE,
                    "L": latency[one] <= LATENCY_RATIO * min(latency.values()),
                    "M": count.sram_peak_bytes <= mesh.device.sram_bytes,
                    "R": mesh.device.routes is None or needed <= mesh.device.routes,
                },
            )
        )
    return rows


def _latency(device: Device, count: Account) -> float:
    """Cycles of the critical path but for compute: hops, routing stages and serialised words."""
    return (
        count.hops * device.hop_cycles
        + count.stages * device.stage_cycles
        + count.serial_bytes / device.link_bytes_per_cycle
    )


def _busy_share(made: Recipe, shapes: Shapes) -> float:
    """The share of cores with some of the weights: the matrix cut both ways, ragged ends padded."""
    tile = made.schedule.buffers[made.inputs[1][0]].tile
    rows, cols = made.schedule.mesh.shape
    used = [-(-size // share) for size, share in zip(shapes[1], tile, strict=True)]
    return used[0] * used[1] / (rows * cols)


def _errors(made: dict[str, Recipe], shapes: Shapes, dtype: str) -> Iterator[tuple[str, float]]:
    """Each algorithm's largest error against fp64, relative to the largest value, on one random product."""
    import torch

    from wafer_triton.dtype import torch_dtype
    from wafer_triton.ops import executor, run

    generator = torch.Generator().manual_seed(0)
    operands = tuple(torch.randn(shape, generator=generator).to(torch_dtype(dtype)) for shape in shapes)
    exact = operands[0].double() @ operands[1].double()
    for name, found in made.items():
        got = run(found, operands, executor()).gather().double()
        yield name, float((got - exact).abs().max() / exact.abs().max())
