"""`wafer-triton plan-training`: plans of training on wafers of dies, in predicted wafer time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wafer_triton.cli.answer import tell
from wafer_triton.cli.app import given, made
from wafer_triton.errors import ConfigError, DeviceError
from wafer_triton.text.quantity import Legend, numbered, quantity, unit
from wafer_triton.text.table import Table

if TYPE_CHECKING:
    from wafer_triton.train.dies import Link, Wafer
    from wafer_triton.train.planner import TrainingPlan

WORKLOAD = "gpt3-6.7b"  # that is planned unless another is given


def _plan_training(
    *, workload: str | None = None, config: Path | None = None, sequence: int | None = None, batch: int | None = None,
    wafer: str = "wafer-48", wafers: int = 1, forwarding: str | None = None, link_rate: float | None = None,
    failed: Sequence[str] = (), recompute: str | None = None, objective: str = "time", no_baselines: bool = False,
    json: bool = False,
) -> int:  # fmt: skip
    from wafer_triton.train.planner import BASELINES, PLANNED, demand, plan

    device = wafer_of(wafer, forwarding, link_rate, failed)
    work = workload_of(workload, config, sequence, batch)
    kinds = ("none", "selective", "full") if recompute is None else (recompute,)
    shared: dict[str, Any] = {"wafers": wafers, "recompute": kinds, "objective": objective}
    best = demand(plan(work, device, PLANNED, **shared))
    plans = [best, *(plan(work, device, strategy, **shared) for strategy in (() if no_baselines else BASELINES))]
    failures = {each.strategy: each.why for each in plans if each.why}
    rows = [_row(each, best) for each in plans if not each.why]
    texts: list[str | Table] = [
        Table(rows, LEGEND, title=f"{_title(best)}: a step, predicted on the wafer; {COLUMNS}"),
        *(f"{name} does not fit: {why}" for name, why in failures.items()),
        Table.rows(
            ("operator", "tuple", "placement"),
            [(name, str(own.split), str(own.placed)) for name, own in best.operators.items()],
            title=f"planned, {numbered(best.case.micro_batches, 'micro-batches')}, {_layers(best)}", left=3,
        ),
        "a die holds " + ", ".join(f"{quantity(size, 'B')} {name}" for name, size in best.held.items())
        + f"; {quantity(device.hbm_bytes - best.bytes, 'B')} of HBM are left",
    ]  # fmt: skip
    if best.hottest:
        (start, end), size = best.hottest
        texts.append(
            f"the hottest link, {start} to {end}, carries {quantity(size, 'B')} a step, "
            f"{quantity(size / device.link_bytes_per_second / best.seconds, '%')} of its capacity"
        )
    texts.append(
        f"{best.tried:,} options were priced; the plan is the best of all whose layers are of one kind, and up to "
        "one re-sharding of those of two kinds, over all tuples and rectangular placements"
    )
    answer = {"plans": [_answer(each) for each in plans], "does_not_fit": failures}
    spaced = [part for text in texts for part in ("", text)]
    return tell(json, answer, *spaced[1:])


plan_training = made(_plan_training, words={"batch": (int, "sequences of a step (default: the workload's)")})


def wafer_of(name: str, forwarding: str | None, link_rate: float | None, failed: Sequence[str]) -> Wafer:
    """Return the wafer with the changes that options make."""
    from wafer_triton.train.dies import wafer

    links = frozenset(map(_link, failed))
    changes = given(forwarding=forwarding, link_bytes_per_second=link_rate and link_rate * 1e12)
    return replace(wafer(name), failed=links, **changes)


def _link(text: str) -> Link:
    ends = re.fullmatch(r"(\d+),(\d+)-(\d+),(\d+)", text)
    if not ends:
        raise DeviceError(f"--failed {text!r}: give two neighbouring dies by row and column, such as 0,0-0,1")
    row, col, to_row, to_col = map(int, ends.groups())
    return (row, col), (to_row, to_col)


def workload_of(name: str | None, config: Path | None, sequence: int | None, batch: int | None) -> Any:
    """Return the workload by name, or of a config.json, with its batch."""
    from wafer_triton.train.workload import Workload, workload

    if config is None:
        return workload(WORKLOAD if name is None else name, sequence, batch)
    if name is not None:
        raise ConfigError(f"--workload {name}: --config {config} stands in its place; give one of them")
    from wafer_triton.shape.read import shape_of

    shape = shape_of(config)
    if shape.experts is not None or shape.head_dim * shape.num_attention_heads != shape.hidden_size:
        raise ConfigError(
            f"{config}: training is planned for dense decoders whose heads together are as wide as the model"
        )
    if not shape.vocab_size:
        raise ConfigError(f"{config}: vocab_size is missing; training is planned with embedding and head")
    whole = Workload(
        shape.name, shape.num_hidden_layers, shape.hidden_size, shape.num_attention_heads, shape.num_key_value_heads,
        shape.intermediate_size, shape.vocab_size, True,
    )  # fmt: skip
    return workload(whole, sequence, batch)


COLUMNS = "held: HBM of a die in use; x: over the planned step"
PARTS = ("compute", "exposed", "re-shard", "HBM", "bubbles")  # of a step
LEGEND = Legend(
    dict.fromkeys(("step", *PARTS), unit("s")),
    {"held": unit("B"), "power": unit("W"), "tokens/s": unit("tokens/s"), "x": unit("x")},
)


def _row(each: TrainingPlan, best: TrainingPlan) -> dict[str, Any]:
    return {
        "strategy": each.strategy, "step": each.seconds, **dict(zip(PARTS, each.parts.values(), strict=True)),
        "held": each.bytes, "power": each.watts, "tokens/s": each.tokens_per_second, "x": each.seconds / best.seconds,
    }  # fmt: skip


def _title(best: TrainingPlan) -> str:
    case, wafer, work = best.case, best.case.wafer, best.case.work
    on = wafer.name if case.wafers == 1 else f"{case.wafers} x {wafer.name}"
    return f"{work.name}, {work.batch} x {work.sequence} tokens on {on} ({wafer.forwarding})"


def _numbers(plan: TrainingPlan) -> dict[str, list[int]]:
    """Return the numbers of layers of each kind of recompute; two kinds of layers may have one."""
    numbers: dict[str, list[int]] = {}
    for kind, number in zip(plan.recompute, plan.mix.counts, strict=True):
        numbers.setdefault(kind, []).append(number)
    return numbers


def _layers(best: TrainingPlan) -> str:
    return ", ".join(
        f"{numbered(sum(of), 'layers')} with {kind} recompute"
        + (f" ({' and '.join(map(str, of))}, sharded in different ways)" if len(of) > 1 else "")
        for kind, of in _numbers(best).items()
    )


def _answer(each: TrainingPlan) -> dict[str, Any]:
    if each.why:
        return {"strategy": each.strategy, "why": each.why, "solver_seconds": each.solver_seconds}
    return {
        "strategy": each.strategy, "seconds": each.seconds, "parts": each.parts, "bytes": each.held,
        "joules": each.joules, "watts": each.watts, "tokens_per_second": each.tokens_per_second,
        "link_bytes": each.link_bytes, "hottest_link": each.hottest, "micro_batches": each.case.micro_batches,
        "wafers": each.case.wafers, "layers": {kind: sum(of) for kind, of in _numbers(each).items()},
        "operators": {
            name: {"tuple": str(own.split), "placement": str(own.placed)} for name, own in each.operators.items()
        },
        "solver_seconds": each.solver_seconds, "options": each.tried,
    }  # fmt: skip
