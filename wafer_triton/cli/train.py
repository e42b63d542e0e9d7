"""`wafer-triton plan-training`: plans of training on wafers of dies, in predicted wafer time."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wafer_triton.cli.cap import positive
from wafer_triton.cli.options import Command, count, option, path, tell
from wafer_triton.errors import ConfigError, DeviceError
from wafer_triton.text.quantity import Legend, numbered, quantity, unit
from wafer_triton.text.table import Table

if TYPE_CHECKING:
    from wafer_triton.train.dies import Wafer
    from wafer_triton.train.planner import TrainingPlan

WORKLOAD = "gpt3-6.7b"  # that is planned unless another is given


def plan_training(args: argparse.Namespace) -> int:
    """plan the training of a workload on wafers of dies, with every baseline beside it, in predicted wafer time"""
    from wafer_triton.train.planner import BASELINES, PLANNED, demand, plan

    device, work = wafer_of(args), workload_of(args)
    recompute = ("none", "selective", "full") if args.recompute is None else (args.recompute,)
    shared = {"wafers": args.wafers, "recompute": recompute, "objective": args.objective}
    best = demand(plan(work, device, PLANNED, **shared))
    plans: list[TrainingPlan] = [best]
    failures: dict[str, str] = {}
    for strategy in () if args.no_baselines else BASELINES:
        try:
            plans.append(plan(work, device, strategy, **shared))
        except ConfigError as error:
            failures[strategy.name] = str(error).split(": ", 1)[1]
    failures |= {each.strategy: each.why for each in plans if each.why}
    rows = [_row(each, best) for each in plans if not each.why]
    texts: list[str | Table] = [
        Table(rows, LEGEND, title=f"{_title(best)}: a step, predicted on the wafer, and the HBM that a die holds"),
        *(f"{name} does not fit: {why}" for name, why in failures.items()),
        Table.rows(
            ("operator", "tuple", "placement"),
            [(name, str(own.split), str(own.placed)) for name, own in best.operators.items()],
            title=f"planned, {numbered(best.micro_batches, 'micro-batches')}, {_layers(best)}", left=3,
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
        f"{best.tried:,} options were priced; the plan is the best of all whose layers are of one or two kinds, "
        f"over all tuples and rectangular placements"
    )
    answer = {"plans": [_answer(each) for each in plans], "does_not_fit": failures}
    spaced = [part for text in texts for part in ("", text)]
    return tell(args.json, answer, *spaced[1:])


def wafer_of(args: argparse.Namespace) -> Wafer:
    """Return the wafer with the changes that options make."""
    from wafer_triton.train.dies import wafer

    device = wafer(args.wafer)
    changes: dict[str, Any] = {"forwarding": args.forwarding} if args.forwarding else {}
    if args.link_rate:
        changes["link_bytes_per_second"] = args.link_rate * 1e12
    if args.failed:
        links = []
        for text in args.failed:
            found = re.fullmatch(r"(\d+),(\d+)-(\d+),(\d+)", text)
            if not found:
                raise DeviceError(f"--failed {text!r}: give two neighbouring dies by row and column, such as 0,0-0,1")
            row, col, to_row, to_col = map(int, found.groups())
            links.append(((row, col), (to_row, to_col)))
        changes["failed"] = frozenset(links)
    return replace(device, **changes)


def workload_of(args: argparse.Namespace) -> Any:
    """Return the workload by name, or of a config.json, with its batch."""
    from wafer_triton.train.workload import Workload, workload

    if args.config is None:
        return workload(WORKLOAD if args.workload is None else args.workload, args.sequence, args.batch)
    if args.workload is not None:
        raise ConfigError(f"--workload {args.workload}: --config {args.config} stands in its place; give one of them")
    from wafer_triton.shape.read import shape_of

    shape = shape_of(args.config)
    if shape.experts is not None or shape.head_dim * shape.num_attention_heads != shape.hidden_size:
        raise ConfigError(
            f"{args.config}: training is planned for dense decoders whose heads together are as wide as the model"
        )
    if not shape.vocab_size:
        raise ConfigError(f"{args.config}: vocab_size is missing; training is planned with embedding and head")
    whole = Workload(
        shape.name, shape.num_hidden_layers, shape.hidden_size, shape.num_attention_heads, shape.num_key_value_heads,
        shape.intermediate_size, shape.vocab_size, True,
    )  # fmt: skip
    return workload(whole, args.sequence, args.batch)


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
    on = best.wafer.name if best.wafers == 1 else f"{best.wafers} x {best.wafer.name}"
    return f"{best.work.name}, {best.work.batch} x {best.work.sequence} tokens on {on} ({best.wafer.forwarding})"


def _layers(best: TrainingPlan) -> str:
    assert best.mix is not None
    kinds = zip(best.mix.counts, best.recompute, strict=True)
    return ", ".join(f"{numbered(number, 'layers')} with {kind} recompute" for number, kind in kinds)


def _answer(each: TrainingPlan) -> dict[str, Any]:
    if each.why:
        return {"strategy": each.strategy, "why": each.why, "solver_seconds": each.solver_seconds}
    assert each.mix is not None
    return {
        "strategy": each.strategy, "seconds": each.seconds, "parts": each.parts, "bytes": each.held,
        "joules": each.joules, "watts": each.watts, "tokens_per_second": each.tokens_per_second,
        "link_bytes": each.link_bytes, "hottest_link": each.hottest, "micro_batches": each.micro_batches,
        "wafers": each.wafers, "layers": dict(zip(each.recompute, each.mix.counts, strict=True)),
        "operators": {
            name: {"tuple": str(own.split), "placement": str(own.placed)} for name, own in each.operators.items()
        },
        "solver_seconds": each.solver_seconds, "options": each.tried,
    }  # fmt: skip


COMMANDS = (
    Command(
        "plan-training",
        plan_training,
        (
            option(
                "--workload",
                metavar="NAME",
                help=f"gpt3-6.7b, gpt3-76b, gpt3-175b, llama2-7b, llama3-70b or opt-175b (default: {WORKLOAD})",
            ),
            option("--config", type=path, metavar="PATH", help="a Llama-like config.json in place of --workload"),
            option("--sequence", type=count, metavar="N", help="tokens of a sample (default: the workload's)"),
            option("--batch", type=count, metavar="N", help="samples of a step (default: the workload's)"),
            option(
                "--wafer", default="wafer-48", help="a preset: wafer-48 (6 x 8 dies) or wafer-32 (default: %(default)s)"
            ),
            option("--wafers", type=count, default=1, metavar="N", help="in a pipeline (default: %(default)s)"),
            option("--forwarding", choices=("cut", "store"), help="how several hops go (default: the wafer's)"),
            option(
                "--link-rate", type=positive, metavar="TB/S", help="of a link in one direction (default: the wafer's)"
            ),
            option("--failed", action="append", metavar="R,C-R,C", help="a broken link between two dies; repeatable"),
            option("--recompute", choices=("none", "selective", "full"), help="of all layers (default: the fastest)"),
            option("--objective", default="time", choices=("time", "energy"), help="default: %(default)s"),
            option("--no-baselines", action="store_true", help="the plan alone"),
        ),
    ),
)
