"""The steps of a schedule and the operations of a decoder layer, each counted, priced and judged, standing alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING

from wafer_triton.compare.product import sized, taking_part, unbounded
from wafer_triton.cost.constants import constants
from wafer_triton.cost.layers import feed_forward, prefill_head_group_choices
from wafer_triton.cost.price import Cost, price
from wafer_triton.count.account import Account, account
from wafer_triton.count.verdict import busy_share, verdict
from wafer_triton.decoder import decode, prefill
from wafer_triton.decoder.block import Block, SubLayer, schedule
from wafer_triton.device.mesh import Mesh
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.schedule.steps import Rounds, distinct, flat, uses
from wafer_triton.text.progress import Progress, reported, silent
from wafer_triton.text.quantity import figures, named, unit

if TYPE_CHECKING:
    from wafer_triton.schedule.steps import Step


@dataclass(frozen=True)
class Operation:
    """One step of a decoder in a phase: its counts, its routes, its price, its verdict by letter."""

    units_of = (Account, Cost)

    phase: str
    name: str = field(metadata=named("operation"))
    rounds: int
    stages: int
    hops: int
    routes: int
    sram_peak_bytes: int
    cycles: float = field(metadata=unit("cycles", "predicted cycles"))
    tuned_cycles: float
    verdict: dict[str, bool] = field(metadata=named("PLMR"))

    @property
    def ok(self) -> bool:
        """Whether all four letters are kept."""
        return all(self.verdict.values())


def decoder_layer(
    block: Block, tokens: int = 0, head_groups: int | None = None, progress: Progress = silent
) -> list[Operation]:
    """Return the operations of one decode layer with a full cache, of embedding and head, and of one prefill layer.

    A row of the prefill layer has `tokens` tokens; with 0 there is no such layer. It has `head_groups`, or the best
    (None). Reports "sub-layers" to `progress`. Raises MeshError when no multiple of the mesh holds the head.
    """
    mesh = block.mesh
    roomy = replace(block, mesh=unbounded(mesh))
    kind = feed_forward(block)[-1]  # experts, if there are some
    phases: dict[str, list[tuple[Block, SubLayer, tuple[int, ...]]]] = {
        "decode": [(roomy, *step) for step in decode.layer(roomy, mesh.rows * block.entries, kind)]
    }
    if block.shape.vocab_size:
        head = replace(decode.head_block(block), mesh=unbounded(decode.head_block(block).mesh))
        phases |= {"embedding": [(head, decode.embed, (1,))], "head": [(head, decode.head, (1,))]}
    if tokens:
        square = replace(roomy, mesh=roomy.mesh.square(), head_groups=1, head_tree=None)
        best = prefill_head_group_choices(square, tokens, constants(mesh.device), head_groups)[0]
        phases["prefill"] = [(best, *step) for step in prefill.layer(best, tokens, 0, kind)]
    sub_layers = [(phase, *sub_layer) for phase, several in phases.items() for sub_layer in several]
    operations = []
    with sized(f"a layer of {block.shape.name} on mesh {mesh}"):
        for phase, own, sub_layer, args in reported("sub-layers", sub_layers, progress):
            operations += [
                _judged(phase, step, replace(step.mesh, device=block.mesh.device), _busy_share(step, own))
                for step in _steps(schedule(sub_layer, own, *args))
            ]
    return operations


STEPS = 32  # of a schedule that are listed one by one; a schedule with alternating labels has as many as rounds


def operations(schedule: Schedule) -> list[Operation]:
    """Return the steps of a schedule by their labels, and the whole, each counted, priced and judged alone.

    A schedule of more than `STEPS` steps is listed as a whole.
    """
    steps = list(islice(_steps(schedule), STEPS + 1))
    listed = steps if 1 < len(steps) <= STEPS else []
    return [
        *(_judged("step", step, schedule.mesh, taking_part(step)) for step in listed),
        judged(schedule),
    ]


def judged(schedule: Schedule) -> Operation:
    """Return a whole schedule, counted, priced and judged, standing alone."""
    return _judged("whole", schedule, schedule.mesh, taking_part(schedule))


def _judged(phase: str, step: Schedule, mesh: Mesh, share: float) -> Operation:
    counted, cost = account(step), price(step)
    return Operation(
        phase=phase,
        name=step.name,
        verdict=verdict(counted, mesh, constants(mesh.device).of(step.family), cost.routes, share),
        **figures(Operation, cost, counted),
    )


def _steps(whole: Schedule) -> Iterator[Schedule]:
    """Yield the runs of rounds that carry one label, as schedules of their own."""
    for label, same in groupby(_labelled(whole.rounds.steps), key=itemgetter(0)):
        rounds = Rounds(step for _, step in same)
        touched = uses(rounds.steps)
        held = {name: it for name, it in whole.buffers.items() if name in touched or it.role != "input"}
        yield replace(whole, name=label, buffers=held, rounds=rounds)


def _labelled(steps: Iterable[Step]) -> Iterator[tuple[str, Step]]:
    """Yield each step with its label; rounds of a section under several labels come one by one."""
    for step in steps:
        labels = {one.round.label for one in distinct((step,))}
        if len(labels) == 1:
            yield labels.pop(), step
        else:
            yield from ((round_.label, round_) for round_ in flat((step,)))


HEADS = ("qkv", "bias", "head norm", "rope", "scores", "softmax", "attention", "output projection")
FFN = ("gate and up", "silu", "down")


def _busy_share(step: Schedule, block: Block) -> float:
    """Return the share of columns that hold some of the width that lies along x; without one, the share of rows."""
    rows, cols = step.mesh.shape
    if step.name in HEADS:
        return block.layout.busy_columns / cols
    if step.name in FFN:
        e = block.shape.experts
        return busy_share(block.shape.intermediate_size if e is None else e.width, cols)
    return busy_share(block.shape.hidden_size, rows)
