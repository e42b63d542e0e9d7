"""A schedule as plain data for a page: the results of `account`, `price`, `sram` and `routes`, and its moves.

A mesh of at most `SIDE` cores a side has its rounds core by core; of a larger one, links are added up over blocks of
cores. Many rounds are added up over frames, so that every page stays small.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from operator import itemgetter
from typing import Any

import numpy as np

from wafer_triton import local
from wafer_triton.compare.operations import judged
from wafer_triton.cost.price import Prediction, intervals, price
from wafer_triton.count.account import Account, account, link_loads, per_round
from wafer_triton.count.routes import Lines, routes
from wafer_triton.draw.summaries import FIGURES, Summaries, Values
from wafer_triton.draw.tiles import moving
from wafer_triton.draw.trace_events import bounded
from wafer_triton.errors import DrawError
from wafer_triton.schedule.rounds import Exchange, Local, Round, Slot
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.schedule.sram import spans
from wafer_triton.schedule.steps import Rounds
from wafer_triton.text.quantity import Legend, quantity

SIDE = 64  # logical cores a side, up to which a page shows core by core
MOST_NUMBERS = 1_500_000  # of link heat maps over all frames
MOST_FRAMES = 400
SAME = 0.005  # a share by which numbers of cycles that a headline calls the same may differ
MOST_INTERVALS = 3000  # of a timeline
# counts that a page lists
COUNTED = (
    "rounds", "stages", "hops", "messages", "link_bytes", "busiest_link_bytes", "macs", "sram_peak_bytes",
)  # fmt: skip
LEGEND = Legend(Account)

Plain = dict[str, Any]


def scene(schedule: Schedule, name: str = "", values: Values | None = None, fills: Sequence[str] = ()) -> Plain:
    """Return a schedule for a page, called `name`; DrawError for one without rounds.

    The page shows how many slots of the buffers named in `fills` hold an entry; they begin empty.
    """
    if not schedule.rounds:
        raise DrawError(f"{schedule.name}: a page of a schedule without rounds has nothing to show; add a round")
    for unknown in (each for each in fills if each not in schedule.buffers):
        raise DrawError(f"{schedule.name}: there is no buffer {unknown!r} to fill; give {', '.join(schedule.buffers)}")
    mesh, kinds = schedule.mesh, {round_: number for number, round_ in enumerate(dict.fromkeys(schedule.rounds))}
    side = max(mesh.shape)
    block = 1 if side <= SIDE else -(-max(mesh.rows, mesh.cols) // SIDE)
    whole, cost, operation = account(schedule), price(schedule), judged(schedule)
    counts = dict(zip(schedule.rounds, per_round(schedule), strict=True))
    living = spans(schedule)
    plain: Plain = {
        "name": name or schedule.name,
        "schedule": schedule.name,
        "mesh": {"rows": mesh.rows, "cols": mesh.cols, "origin": mesh.origin, "fold": mesh.fold, "text": str(mesh)},
        "device": {"name": mesh.device.name, "sram": mesh.device.sram_bytes, "routes": mesh.device.routes},
        "detailed": side <= SIDE,
        "fills": list(fills),
        "block": block,
        "buffers": [
            {"name": key, "tile": buffer.tile, "slots": buffer.slots, "dtype": buffer.dtype, "given": buffer.given}
            | {"bytes": buffer.tile_bytes}
            | {"live": [living[key].start, living[key].end, living[key].bytes] if key in living else None}
            for key, buffer in schedule.buffers.items()
        ],
        "rounds": [kinds[round_] for round_ in schedule.rounds],
        "kinds": [
            {"label": round_.label}
            | {name: getattr(counts[round_], name) for name in ("hops", "messages", "link_bytes")}
            for round_ in kinds
        ],
        "timeline": [
            {"first": each.first, "last": each.last, "label": each.label, "start": each.start, "end": each.end}
            | {"compute": each.cost.compute_cycles, "wait": each.cost.communication_cycles}
            | {"link": each.cost.link_cycles, "bounds": each.cost.bounds}
            for each in bounded(intervals(schedule), MOST_INTERVALS)
        ],
        "frames": _frames(schedule, block),
        "account": {key: value for key, value in asdict(whole).items() if isinstance(value, int)},
        "labels": {key: [LEGEND.label(key), LEGEND.unit(key)] for key in COUNTED},
        "price": Prediction.of(cost, mesh.device).as_json()
        | {name: getattr(cost, name) for name in ("tuned_cycles", "routes", "relayed")},
        "verdict": operation.verdict,
    }
    if plain["detailed"]:
        plain |= {"moves": _moves(schedule, kinds), "routes": _routes(schedule), "moving": moving(schedule)}
    if values is not None:
        plain["values"] = {"figures": FIGURES, "start": _summed(values.start)}
        plain["values"]["rounds"] = [_summed(each) for each in values.rounds]
    return plain


def point_of(own: Plain, other: Plain | None) -> str:
    """Return the point of a scene, or of its comparison with another one, in one line."""
    if other is None:
        counted = own["account"]
        return (
            f"{own['name']}: {counted['hops']:,} hops, {quantity(counted['link_bytes'], 'B')} over links, "
            f"{own['price']['cycles']:,.0f} predicted cycles ({own['price']['tuned_cycles']:,.0f} if tuned), "
            f"{_largest(own)}"
        )
    hops, sent = ([each["account"][name] for each in (own, other)] for name in ("hops", "link_bytes"))
    cycles = [each["price"]["cycles"] for each in (own, other)]
    ratio = cycles[1] / cycles[0]
    time = "the same cycles" if abs(ratio - 1) < SAME else f"{ratio:.3g} times the cycles"
    traffic = "the same bytes" if sent[0] == sent[1] else f"{sent[1] / max(1, sent[0]):.2g} times the bytes"
    meshes = [each["mesh"]["text"] for each in (own, other)]
    where = f"{meshes[0]} cores" if meshes[0] == meshes[1] else f"{meshes[1]} cores for {meshes[0]}"
    return (
        f"{own['name']} {hops[0]:,} hops, {other['name']} {hops[1]:,}; {other['name']} has {traffic} and {time}, on "
        f"{where} ({own['name']} {_largest(own)}, {other['name']} {_largest(other)})"
    )


def _largest(scene: Plain) -> str:
    """Return the bound that takes most of a scene's predicted cycles, with its share."""
    sums = Counter[str]()
    for interval in scene["timeline"]:
        sums.update(interval["bounds"])
    name, cycles = max(sums.items(), key=itemgetter(1))
    return f"{cycles / max(1e-9, sums.total()):.0%} {name}"


def _frames(schedule: Schedule, block: int) -> list[Plain]:
    """Return bytes over links by direction, row by row, in every frame: in as many successive rounds as a page holds.

    Rounds of a frame share a picture of the links.
    """
    mesh, count = schedule.mesh, len(schedule.rounds)
    cells = -(-mesh.rows // block) * -(-mesh.cols // block)
    size = -(-count // max(8, min(MOST_FRAMES, MOST_NUMBERS // (4 * cells))))
    known: dict[tuple[Round, ...], Plain] = {}
    plain = []
    for first in range(0, count, size):
        part = schedule.rounds[first : first + size]
        if part not in known:
            loads = link_loads(replace(schedule, rounds=Rounds(part)), block)
            known[part] = {way: load.ravel().tolist() for way, load in loads.items() if load.any()}
        plain.append({"first": first, "last": min(first + size, count) - 1, "links": known[part]})
    return plain


def _moves(schedule: Schedule, rounds: Iterable[Round]) -> Plain:
    """Return the exchanges and the local operations of rounds."""
    numbers = {name: number for number, name in enumerate(schedule.buffers)}

    def slot(of: Slot) -> list[Any]:
        return [numbers[of.buffer], _listed(of.index), of.axis]

    def exchange(of: Exchange) -> Plain:
        send, recv, lines = of.moves.table
        ends = {"send": send.tolist(), "recv": recv.tolist(), "lines": _listed(lines)}
        return {"axis": of.axis, "src": slot(of.src), "dst": slot(of.dst)} | ends

    return {
        "kinds": [
            {
                "exchanges": [exchange(each) for each in round_.exchanges],
                "locals": [
                    {"op": op.op, "outs": [slot(out) for out in op.outs], "ins": [slot(given) for given in op.ins]}
                    | {
                        "where": _listed(op.where and op.where.flat(schedule.mesh)),
                        "sums": _summed_from(op),
                    }
                    for op in round_.locals
                ],
            }
            for round_ in rounds
        ]
    }


def _summed_from(op: Local) -> str | None:
    """Return where an operation takes its partial results from: all "inputs", the "output" as well, or neither."""
    if op.op in ("add", "maximum"):
        return "inputs"
    return "output" if local.find(op.op).accumulates(op.params) else None


def _listed(numbers: Any) -> Any:
    """Return an array as a list, and a number or None as it is."""
    return numbers.tolist() if isinstance(numbers, np.ndarray) else numbers


def _routes(schedule: Schedule) -> Plain:
    """Return the circuits along both axes: the routers of each, its colour on every line (-1: none)."""
    needed = routes(schedule)

    def plain(lines: Lines) -> list[list[Any]]:
        return [list(row) for row in zip(lines.low.tolist(), lines.high.tolist(), lines.colour.tolist(), strict=True)]

    return {"colours": needed.colours, "x": plain(needed.x), "y": plain(needed.y)}


def _summed(tiles: dict[str, Summaries]) -> dict[str, list[list[float | None]]]:
    """Return summaries in four digits; a number that is not finite is null, which JSON has."""
    return {
        name: [
            [float(f"{figure:.4g}") if np.isfinite(figure) else None for figure in core] for core in summary.tolist()
        ]
        for name, summary in tiles.items()
    }
