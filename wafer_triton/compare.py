"""Algorithms for one product side by side, and the operations of a decoder layer, each counted, priced and judged.

`wafer_triton.count.verdict` judges letter by letter (PLMR). Beside the verdict stand errors, hops, routes, links, SRAM
and the cycles that the same rounds are predicted to take on the wafer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from wafer_triton.cost.price import price, tally
from wafer_triton.count.account import account
from wafer_triton.count.verdict import busy_share, latency, verdict
from wafer_triton.device import Device
from wafer_triton.mesh import Mesh, as_mesh
from wafer_triton.schedule import decode, gemm, prefill, reduce
from wafer_triton.schedule.block import Block, Part, schedule
from wafer_triton.schedule.product import Recipe, recipe
from wafer_triton.schedule.rounds import Schedule

Shapes = tuple[tuple[int, int], ...]

MOST_VALUES = 64 * 64  # cores up to which values are computed unless given


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
    cycles: float  # predicted on the wafer
    error: float | None
    verdict: dict[str, bool]


def compare_gemm(
    mesh: Any, m: int, k: int, n: int, *, device: str | Device = "wse2", dtype: str = "fp16", values: bool | None = None
) -> list[Row]:
    """Rows for [m, k] x [k, n] by MeshGEMM, Cannon, SUMMA and all-gather.

    `values` says whether errors are computed; None computes them on up to `MOST_VALUES` cores. Raises a WaferError for
    a wrong mesh, size or dtype; SRAM is no limit here.
    """
    mesh = as_mesh(mesh, device)
    return _compare("gemm", mesh, ((m, k), (k, n)), tuple(gemm.ALGORITHMS), dtype, values)


def compare_gemv(
    mesh: Any, k: int, n: int, *, device: str | Device = "wse2", dtype: str = "fp16", values: bool | None = None
) -> list[Row]:
    """Rows for [k] x [k, n] by MeshGEMV's K-tree and the other all-reduces; keywords are those of `compare_gemm`."""
    mesh = as_mesh(mesh, device)
    return _compare("gemv", mesh, ((1, k), (k, n)), reduce.ALGORITHMS, dtype, values)


def _compare(
    kind: str, mesh: Mesh, shapes: Shapes, algorithms: tuple[str, ...], dtype: str, values: bool | None
) -> list[Row]:
    recipes = {name: recipe(kind, _unbounded(mesh), dtype, shapes, (("algorithm", name),)) for name in algorithms}
    tallies = {name: tally(product.schedule) for name, product in recipes.items()}
    best = min(latency(counted.account, mesh) for counted in tallies.values())
    wanted = mesh.cores <= MOST_VALUES if values is None else values
    errors = dict(_errors(recipes, shapes, dtype)) if wanted else {}
    return [
        Row(
            algorithm=name,
            rounds=counted.account.rounds,
            stages=counted.account.stages,
            hops=counted.account.hops,
            routes=counted.cost.routes,
            busiest_link_bytes=counted.account.busiest_link_bytes,
            sram_peak_bytes=counted.account.sram_peak_bytes,
            cycles=counted.cost.cycles,
            error=errors.get(name),
            verdict=verdict(counted.account, mesh, counted.cost.routes, _busy(recipes[name], shapes), best),
        )
        for name, counted in tallies.items()
    ]


def _unbounded(mesh: Mesh) -> Mesh:
    """The mesh with SRAM for anything: what does not fit is a finding here, not an error."""
    return replace(mesh, device=mesh.device.unbounded())


def _busy(product: Recipe, shapes: Shapes) -> float:
    """The share of cores that hold some of the weights, which are cut both ways with padded ends."""
    tile = product.schedule.buffers[product.inputs[1][0]].tile
    rows, cols = product.schedule.mesh.shape
    used = [-(-size // share) for size, share in zip(shapes[1], tile, strict=True)]
    return used[0] * used[1] / (rows * cols)


def _errors(products: dict[str, Recipe], shapes: Shapes, dtype: str) -> Iterator[tuple[str, float]]:
    """Each algorithm's largest error against fp64, relative to the largest value, on one random product."""
    import torch

    from wafer_triton.dtype import torch_dtype
    from wafer_triton.ops import executor, run

    generator = torch.Generator().manual_seed(0)
    operands = tuple(torch.randn(shape, generator=generator).to(torch_dtype(dtype)) for shape in shapes)
    exact = operands[0].double() @ operands[1].double()
    for name, product in products.items():
        got = run(product, operands, executor()).gather().double()
        yield name, float((got - exact).abs().max() / exact.abs().max())


@dataclass(frozen=True)
class Operation:
    """One step of a decoder in a phase: its counts, its routes, its price, its verdict by letter."""

    phase: str
    name: str
    rounds: int
    stages: int
    hops: int
    routes: int
    sram_peak_bytes: int
    cycles: float  # predicted on the wafer
    verdict: dict[str, bool]

    @property
    def ok(self) -> bool:
        """Whether all four letters are kept."""
        return all(self.verdict.values())


def decoder_layer(block: Block, tokens: int = 0) -> list[Operation]:
    """The operations of one decode layer with a full cache, of embedding and head, and of one prefill layer.

    A row of the prefill layer has `tokens` tokens; with 0 there is no such layer. Raises MeshError when no multiple of
    the mesh holds the head.
    """
    mesh = block.mesh
    unbounded = replace(block, mesh=_unbounded(mesh))
    head = replace(decode.head_block(block), mesh=_unbounded(decode.head_block(block).mesh))
    phases: dict[str, list[tuple[Block, Part, tuple[int, ...]]]] = {
        "decode": [(unbounded, *step) for step in decode.layer(unbounded, mesh.rows * block.entries)],
        "embedding": [(head, decode.embed, (1,))],
        "head": [(head, decode.head, (1,))],
    }
    if tokens:
        square = replace(unbounded, mesh=unbounded.mesh.square())
        phases["prefill"] = [(square, *step) for step in prefill.layer(tokens)]
    return [
        _operation(phase, step, block)
        for phase, parts in phases.items()
        for own, part, args in parts
        for step in _steps(schedule(part, own, *args))
    ]


def _steps(whole: Schedule) -> Iterator[Schedule]:
    """The runs of rounds that carry one label, as schedules of their own."""
    for label, rounds in groupby(whole.rounds, key=lambda round_: round_.label):
        yield replace(whole, name=label, rounds=tuple(rounds))


def _operation(phase: str, step: Schedule, block: Block) -> Operation:
    counted, cost = account(step), price(step)
    limits = replace(step.mesh, device=block.mesh.device)
    return Operation(
        phase, step.name, counted.rounds, counted.stages, counted.hops, cost.routes, counted.sram_peak_bytes,
        cost.cycles, verdict(counted, limits, cost.routes, _busy_share(step, block)),
    )  # fmt: skip


HEADS = ("qkv", "bias", "head norm", "rope", "scores", "softmax", "attention", "output projection")
FFN = ("gate and up", "silu", "down")


def _busy_share(step: Schedule, block: Block) -> float:
    """The share of the columns that hold some of the width which the operation cuts along x; else that of the rows."""
    rows, cols = step.mesh.shape
    if step.name in HEADS:
        return busy_share(block.shape.head_dim // 2, cols)
    if step.name in FFN:
        return busy_share(block.shape.intermediate_size, cols)
    return busy_share(block.shape.hidden_size, rows)
