"""The computed tables of docs/temp.md: training on wafers of dies, and the sources of TEMP's gain."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from wafer_triton.count.account import account, per_round
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import ConfigError, SramError
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Slot
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.schedule.stream import Group, Stream, groups, relay, stream
from wafer_triton.schedule.stream_rounds import gather
from wafer_triton.train.dies import Wafer, wafer
from wafer_triton.train.flows import all_gather, all_to_all, bisection_bytes, ring_flows
from wafer_triton.train.mapping import dimension_ordered, permute, route
from wafer_triton.train.options import ParallelSizes
from wafer_triton.train.placement import fixed, placements
from wafer_triton.train.planner import BASELINES, PLANNED, Placer, Strategy, TrainingPlan, plan
from wafer_triton.train.product import Team, product
from wafer_triton.train.workload import WORKLOADS, workload

PAGE = Path(__file__).resolve().parents[1] / "temp.md"
WAFERS = {name: "wafer-48" if "175b" in name else "wafer-32" for name in WORKLOADS}
MODES = ("cut", "store")
RATES = (4, 2, 1)  # TB/s of a link
BLOCK = 4


@lru_cache(maxsize=256)
def planned(name: str, mode: str, strategy: Strategy = PLANNED, tera: float = 4.0) -> TrainingPlan | None:
    """Return a plan; None where no tuple divides."""
    device = replace(wafer(WAFERS[name]), forwarding=mode, link_bytes_per_second=tera * 1e12)
    try:
        return plan(workload(name), device, strategy)
    except ConfigError:
        return None


def _rows(device: Wafer, split: ParallelSizes) -> tuple:
    return (fixed(device, split.sizes),)


def _tensor8(split: ParallelSizes) -> bool:
    return split.tensor == 8 and split.sequence and split.stream == split.context == 1 and split.sharded <= 1


def _stream8(split: ParallelSizes) -> bool:
    return split.stream == 8 and split.tensor == split.context == 1 and split.sharded <= 1


def _best(device: Wafer, split: ParallelSizes) -> tuple:
    return placements(device, split.sizes)


def _strategy(name: str, allowed: Callable[[ParallelSizes], bool], placer: Placer) -> Strategy:
    return Strategy(name, allowed, placer)


STEPS = (
    _strategy("TP 8 + SP, row by row", _tensor8, _rows),
    _strategy("TP 8 + SP, best rings", _tensor8, _best),
    _strategy("stream 8, row by row", _stream8, _rows),
    _strategy("stream 8, best rings", _stream8, _best),
    PLANNED,
)


def gathered(b: Builder, moves: Stream, dies: Sequence[Group]) -> Schedule:
    """Return the gather stream of blocks of one element."""
    own, out = b.buffer("own", (1,), "fp32", "input"), b.buffer("out", (1,), "fp32", "output", moves.size)
    gather(b, moves, dies, own, lambda t, block, where: [b.local("copy", Slot(out, t), block, where, size=1)])
    return b.build()


def streams(size: int) -> list[str]:
    """Return rows of the table of streams for N dies."""
    rows = []
    cases = [("turning relay", "relay", (1, size), relay(size))]
    cases += [("relay, needed", "relay", (1, size), relay(size).needed())]
    cases += [("cycle", "cycle", (2, size // 2), stream("cycle", size))]
    cases += [(kind, kind, (1, size), stream(kind, size)) for kind in ("interleaved", "wrap")]
    for name, kind, shape, moves in cases:
        mesh = Mesh(*shape)
        schedule = gathered(Builder(mesh, name), moves, groups(mesh, kind, *shape))
        counts, rounds = account(schedule), per_round(schedule)
        lanes = sum(buffer.startswith("own.") for buffer in schedule.buffers)
        numbers = (counts.stages, max(each.hops for each in rounds), counts.flows, counts.link_bytes // BLOCK, lanes)
        rows.append(f"| {size} | {name} | " + " | ".join(map(str, numbers)) + " |")
    return rows


def mapped() -> list[str]:
    """Return rows of the table of mapping: seconds of the busiest link over its bound, XY and mapped."""
    five = replace(wafer("wafer-48"), name="5 x 5", rows=5, cols=5)
    broken = replace(five, failed=frozenset({((2, 2), (2, 3))}))
    rows = []
    for name, device, flows, bound in (
        ("all-gather, 5 x 5", five, all_gather(five, 25.0), 12.0),
        ("all-gather, 5 x 5, one failed link", broken, all_gather(broken, 25.0), 12.0),
        ("all-to-all, 5 x 5", five, all_to_all(five, 1.0), bisection_bytes(5, 5, 1.0)),
    ):
        xy, best = dimension_ordered(device, flows), route(device, flows)
        loads = [max(each.loads.values()) for each in (xy, best)]
        rows.append(f"| {name} | {bound:.0f} | {loads[0]:.0f} | {loads[1]:.0f} |")
    two = replace(wafer("wafer-48"), name="2 x 4", rows=2, cols=4)
    ring = [(0, 3), (1, 2), (0, 2), (1, 3)]
    before = dimension_ordered(two, ring_flows([ring], 1.0)).objective[1]
    (order,), after = permute(two, [ring])
    assert len(order) == 4
    rows.append(f"| ring of four dies on 2 x 4, links of a step | 4 | {before:.0f} | {after.objective[1]:.0f} |")
    return rows


def report(name: str, mode: str) -> str:
    """Return a row of the report: the plan, and every baseline's seconds over it."""
    best = planned(name, mode)
    assert best is not None
    cells = [_ratio(planned(name, mode, each), best, lambda one: one.seconds) for each in BASELINES]
    return f"| {name} | {mode} | {best.seconds:.3f} | {best.bytes / 1e9:.1f} | " + " | ".join(cells) + " |"


def held(name: str, mode: str) -> str:
    """Return a row of memory and energy: the plan's bytes, then its joules, over each baseline's."""
    best = planned(name, mode)
    assert best is not None
    others = [planned(name, mode, each) for each in BASELINES]
    bytes_ = [_share(best, other, lambda one: one.bytes) for other in others]
    joules = [_share(best, other, lambda one: one.joules) for other in others]
    cells = [each if each == "-" else f"{each}, {power}" for each, power in zip(bytes_, joules, strict=True)]
    return f"| {name} | {mode} | " + " | ".join(cells) + " |"


def apart(name: str, mode: str, tera: float) -> str:
    """Return a row of the gain taken apart: seconds of every step of it."""
    found = [planned(name, mode, each, tera) for each in STEPS]
    cells = ["/" if each is None else "-" if each.why else f"{each.seconds:.3f}" for each in found]
    return f"| {name} | {mode} | {tera:g} | " + " | ".join(cells) + " |"


def holds(name: str) -> str:
    """Return a row of the ratio of the first step of the gain to the last, by forwarding and rate."""
    cells = []
    for mode in MODES:
        for tera in RATES:
            best = planned(name, mode, PLANNED, tera)
            assert best is not None
            cells.append(_ratio(planned(name, mode, STEPS[0], tera), best, lambda one: one.seconds))
    return f"| {name} | " + " | ".join(cells) + " |"


def _ratio(one: TrainingPlan | None, best: TrainingPlan, number: Callable[[TrainingPlan], float]) -> str:
    return "/" if one is None else "-" if one.why else f"{number(one) / number(best):.2f}"


def _share(best: TrainingPlan, one: TrainingPlan | None, number: Callable[[TrainingPlan], float]) -> str:
    return "/" if one is None else "-" if one.why else f"{number(best) / number(one):.0%}"


def refused() -> str:
    """Return the refusal of GPT-3 175B's first feed-forward product."""
    team = Team(wafer("wafer-48").mesh(1, 8), "relay", 1, 8)
    try:
        product(team, "w", "forward", 2048 // 8, 12288, 4 * 12288 // 8, "bf16")
    except SramError as error:
        return str(error)
    raise AssertionError("the whole product fits")


def tables() -> Iterator[tuple[str, list[str]]]:
    """Yield the head and the rows of every computed table of the page."""
    small = [name for name in WORKLOADS if WAFERS[name] == "wafer-32"]
    baselines = " | ".join(each.name for each in BASELINES)
    every = [(name, mode) for name in WORKLOADS for mode in MODES]
    yield (
        "| N | stream | rounds | hops of a transfer | blocks a link and round | block-hops | slots beside own |",
        [row for size in (4, 8, 16) for row in streams(size)],
    )
    yield "| phase | bound | XY | mapped |", mapped()
    yield f"| workload | forwarding | plan, s | GB a die | {baselines} |", [report(*each) for each in every]
    yield f"| workload | forwarding | {baselines} |", [held(*each) for each in every]
    yield (
        "| workload | forwarding | TB/s | " + " | ".join(each.name for each in STEPS) + " |",
        [apart(name, mode, tera) for name in small for mode in MODES for tera in (4, 1)],
    )
    yield (
        "| workload | " + " | ".join(f"{mode}, {tera} TB/s" for mode in MODES for tera in RATES) + " |",
        [holds(name) for name in small],
    )


def renewed(text: str, head: str, rows: list[str]) -> str:
    """Return a page with new rows below the head of a table."""
    old = re.compile(rf"({re.escape(head)}\n[^\n]*\n)(\|[^\n]*\n)*")
    assert len(old.findall(text)) == 1, f"one table has the head {head}"
    return old.sub(lambda found: found[1] + "".join(f"{row}\n" for row in rows), text)


def page(text: str) -> str:
    """Return the page with computed tables and the quoted refusal."""
    for head, rows in tables():
        text = renewed(text, head, rows)
    return re.sub(r"^> .*", lambda _: f"> {refused()}", text, flags=re.MULTILINE)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
