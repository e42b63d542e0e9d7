"""Algorithms for one product side by side, and the operations of a decoder layer, each counted, priced and judged.

`wafer_triton.count.verdict` judges letter by letter (PLMR). Beside the verdict stand errors, hops, routes, links, SRAM
and the cycles that the same rounds are predicted to take on the wafer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from wafer_triton.cost.constants import constants
from wafer_triton.cost.layers import feed_forward, prefill_head_group_choices
from wafer_triton.cost.price import price, tally
from wafer_triton.count.account import account
from wafer_triton.count.verdict import busy_share, latency, verdict
from wafer_triton.device import Device
from wafer_triton.mesh import Mesh, as_mesh
from wafer_triton.operation import Product, sized, unbounded, understood
from wafer_triton.report import COUNT_SECONDS, Announce, Progress, emulation_seconds, silent, unannounced
from wafer_triton.schedule import decode, prefill
from wafer_triton.schedule.block import Block, Part, schedule
from wafer_triton.schedule.product import Recipe
from wafer_triton.schedule.repeat import Rounds, comings, flat, uses
from wafer_triton.schedule.rounds import Schedule
from wafer_triton.verify.provenance import Intent

if TYPE_CHECKING:
    from wafer_triton.schedule.repeat import Step


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
    mesh: Any, m: int, k: int, n: int, *, device: str | Device = "wse2", dtype: str = "fp16",
    values: bool | None = None, progress: Progress = silent, announce: Announce = unannounced,
) -> list[Row]:  # fmt: skip
    """Rows for [m, k] x [k, n] by MeshGEMM, Cannon, SUMMA and all-gather.

    `values` says whether errors are computed; None computes them where that takes no more than seconds, see
    `Product.values`. Raises a WaferError for a wrong mesh, size or dtype, and for values that do not fit this machine;
    SRAM is no limit here. Reports "algorithms" and "values" to `progress`.
    """
    return _beside(Product("gemm", as_mesh(mesh, device), dtype, ((m, k), (k, n))), {}, values, progress, announce)


def compare_gemv(
    mesh: Any, k: int, n: int, *, device: str | Device = "wse2", dtype: str = "fp16", values: bool | None = None,
    progress: Progress = silent, announce: Announce = unannounced,
) -> list[Row]:  # fmt: skip
    """Rows for [k] x [k, n] by MeshGEMV's K-tree and the other all-reduces; keywords are those of `compare_gemm`."""
    return _beside(Product("gemv", as_mesh(mesh, device), dtype, ((1, k), (k, n))), {}, values, progress, announce)


def _beside(
    product: Product, own: Mapping[str, Recipe], values: bool | None, progress: Progress, announce: Announce
) -> list[Row]:
    """Rows for recipes of the user's own, and for all algorithms of a product."""
    mesh, wanted = product.mesh, product.values(values)
    names = (*own, *product.algorithms)
    if product.name == "gemm":
        announce(COUNT_SECONDS * len(names) * mesh.square().cores)
    recipes, tallies = {}, {}
    for number, name in enumerate(names):
        recipes[name] = own[name] if name in own else product.by(name)
        tallies[name] = tally(recipes[name].schedule)
        progress("algorithms", number + 1, len(names))
    best = min(latency(counted.account, mesh) for counted in tallies.values())
    if wanted:
        rounds = sum(counted.account.rounds for counted in tallies.values())
        cores = recipes[names[0]].schedule.mesh.cores
        announce(emulation_seconds(rounds, cores, len(names) * product.macs))
    errors = {}
    for number, (name, error) in enumerate(_errors(recipes, product) if wanted else ()):
        errors[name] = error
        progress("values", number + 1, len(names))
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
            verdict=verdict(counted.account, mesh, counted.cost.routes, _busy(recipes[name], product), best),
        )
        for name, counted in tallies.items()
    ]


def compare_own(
    name: str, schedule: Schedule, intent: Intent | None, *, values: bool | None = None, progress: Progress = silent,
    announce: Announce = unannounced,
) -> list[Row]:  # fmt: skip
    """Rows for a schedule of the user's own, called `name`, and for the built-in algorithms of its operation.

    The intent's cuts say which operation it is: a product of two matrices, of a vector and a matrix, or a sum over
    lines, on the mesh and of the sizes and dtype of the schedule. Raises ScheduleError for any other, or for no intent.
    """
    own, product = understood(schedule, intent)
    return _beside(product, {f"{name} (own)": own}, values, progress, announce)


def _busy(built: Recipe, product: Product) -> float:
    """The share of cores that hold some of the weights, which are cut both ways with padded ends; all of a sum's."""
    if product.name == "all_reduce":
        return 1.0
    tile = built.schedule.buffers[built.inputs[1][0]].tile
    rows, cols = built.schedule.mesh.shape
    used = [-(-size // share) for size, share in zip(product.shapes[1], tile, strict=True)]
    return min(1.0, used[0] * used[1] / (rows * cols))


def _errors(recipes: Mapping[str, Recipe], product: Product) -> Iterator[tuple[str, float]]:
    """The largest error of each algorithm against fp64, relative to the largest value, on one random product."""
    import torch

    from wafer_triton.dtype import torch_dtype
    from wafer_triton.ops import executor, run

    generator, dtype = torch.Generator().manual_seed(0), torch_dtype(product.dtype)
    a, b = (torch.randn(shape, generator=generator).to(dtype) for shape in product.shapes)
    exact = a.double() @ (b.double().mT if product.transposed else b.double())
    for name, built in recipes.items():
        got = run(built, (a, b), executor(emulate_on="cpu")).gather().double()
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


def decoder_layer(
    block: Block, tokens: int = 0, head_groups: int | None = None, progress: Progress = silent
) -> list[Operation]:
    """The operations of one decode layer with a full cache, of embedding and head, and of one prefill layer.

    A row of the prefill layer has `tokens` tokens; with 0 there is no such layer. It has `head_groups`, or the best
    (None). Reports "parts" to `progress`. Raises MeshError when no multiple of the mesh holds the head.
    """
    mesh = block.mesh
    roomy = replace(block, mesh=unbounded(mesh))
    head = replace(decode.head_block(block), mesh=unbounded(decode.head_block(block).mesh))
    kind = feed_forward(block)[-1]  # experts, if there are some
    phases: dict[str, list[tuple[Block, Part, tuple[int, ...]]]] = {
        "decode": [(roomy, *step) for step in decode.layer(roomy, mesh.rows * block.entries, kind)],
        "embedding": [(head, decode.embed, (1,))],
        "head": [(head, decode.head, (1,))],
    }
    if tokens:
        square = replace(roomy, mesh=roomy.mesh.square(), head_groups=1, head_tree=None)
        best = prefill_head_group_choices(square, tokens, constants(mesh.device), head_groups)[0]
        phases["prefill"] = [(best, *step) for step in prefill.layer(best, tokens, 0, kind)]
    parts = [(phase, *part) for phase, several in phases.items() for part in several]
    operations = []
    with sized(f"a layer of {block.shape.name} on mesh {mesh}"):
        for number, (phase, own, part, args) in enumerate(parts):
            operations += [
                _judged(phase, step, replace(step.mesh, device=block.mesh.device), _busy_share(step, own))
                for step in _steps(schedule(part, own, *args))
            ]
            progress("parts", number + 1, len(parts))
    return operations


STEPS = 32  # of a schedule that are told one by one; one whose labels alternate has as many as rounds


def operations(schedule: Schedule) -> list[Operation]:
    """The steps of a schedule, which its labels name, and the whole: counted, priced and judged, each standing alone.

    A schedule of more than `STEPS` steps is told as a whole.
    """
    steps = list(islice(_steps(schedule), STEPS + 1))
    told = steps if 1 < len(steps) <= STEPS else []
    return [
        *(_judged("step", step, schedule.mesh, _taking_part(step)) for step in told),
        judged(schedule),
    ]


def judged(schedule: Schedule) -> Operation:
    """A whole schedule, counted, priced and judged, standing alone."""
    return _judged("whole", schedule, schedule.mesh, _taking_part(schedule))


def _taking_part(schedule: Schedule) -> float:
    """The share of cores that compute, send or receive anything."""
    if any(op.where is None for round_ in schedule.rounds for op in round_.locals):
        return 1.0
    busy = np.zeros(schedule.mesh.cores, bool)
    for round_ in schedule.rounds:
        moving = (side for exchange in round_.exchanges for side in (exchange.senders, exchange.receivers))
        for cores in (*(op.where for op in round_.locals if op.where is not None), *moving):
            busy[cores.flat(schedule.mesh)] = True
    return float(busy.mean())


def _judged(phase: str, step: Schedule, mesh: Mesh, share: float) -> Operation:
    counted, cost = account(step), price(step)
    return Operation(
        phase, step.name, counted.rounds, counted.stages, counted.hops, cost.routes, counted.sram_peak_bytes,
        cost.cycles, verdict(counted, mesh, cost.routes, share),
    )  # fmt: skip


def _steps(whole: Schedule) -> Iterator[Schedule]:
    """The runs of rounds that carry one label, as schedules of their own."""
    for label, same in groupby(_labelled(whole.rounds.steps), key=itemgetter(0)):
        rounds = Rounds(step for _, step in same)
        touched = uses(rounds.steps)
        held = {name: it for name, it in whole.buffers.items() if name in touched or it.role != "input"}
        yield replace(whole, name=label, buffers=held, rounds=rounds)


def _labelled(steps: Iterable[Step]) -> Iterator[tuple[str, Step]]:
    """Each step with its label; of rounds that come together under several labels, each by itself."""
    for step in steps:
        labels = {coming.round.label for coming in comings((step,))}
        if len(labels) == 1:
            yield labels.pop(), step
        else:
            yield from ((round_.label, round_) for round_ in flat((step,)))


HEADS = ("qkv", "bias", "head norm", "rope", "scores", "softmax", "attention", "output projection")
FFN = ("gate and up", "silu", "down")


def _busy_share(step: Schedule, block: Block) -> float:
    """The share of the columns that hold some of the width which the operation cuts along x; else that of the rows."""
    rows, cols = step.mesh.shape
    if step.name in HEADS:
        return block.layout.busy / cols
    if step.name in FFN:
        e = block.shape.experts
        return busy_share(block.shape.intermediate_size if e is None else e.width, cols)
    return busy_share(block.shape.hidden_size, rows)
