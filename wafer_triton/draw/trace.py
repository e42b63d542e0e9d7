"""A schedule drawn: its timeline round by round, how its links are loaded, what its cores hold.

`trace` gives arrays, `timeline` text, `schedule` a picture (needs matplotlib: `pip install wafer-triton[bench]`). All
of it is counted from the rounds; nothing is run.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wafer_triton.count.account import Loads, link_loads, per_round
from wafer_triton.draw.tables import cell, table
from wafer_triton.draw.units import label
from wafer_triton.errors import BackendError
from wafer_triton.schedule.rounds import Schedule
from wafer_triton.schedule.sram import spans

EACH = ("hops", "busiest_link_bytes", "flows", "macs")  # counts of a round
ADDED = ("messages", "link_bytes")  # counts that add up over rounds
COLOURS = 10  # of matplotlib, before they repeat


@dataclass(frozen=True, eq=False)
class Trace:
    """What happens in every round of a schedule, as arrays [rounds], and where, as maps."""

    labels: tuple[str, ...]
    axes: tuple[str, ...]  # the axes along which tiles move: "", "x", "y" or "xy"
    overlaps: NDArray[np.bool_]  # whether compute runs beside the exchanges
    counts: dict[str, NDArray[np.int64]]  # the fields of RoundAccount
    buffers: tuple[str, ...]
    sram: NDArray[np.int64]  # [rounds, buffers] bytes of a physical core; all cores hold the same
    links: Loads  # bytes of the whole run, by direction [rows, cols]


def trace(schedule: Schedule) -> Trace:
    """The trace of a schedule."""
    rounds = schedule.rounds
    accounts = per_round(schedule)
    return Trace(
        tuple(round_.label for round_ in rounds),
        tuple("".join(sorted({exchange.axis for exchange in round_.exchanges})) for round_ in rounds),
        np.array([bool(round_.exchanges) and bool(round_.locals) and round_.overlaps for round_ in rounds], bool),
        {name: np.array([getattr(account, name) for account in accounts], np.int64) for name in EACH + ADDED},
        tuple(schedule.buffers),
        _held(schedule),
        link_loads(schedule),
    )


def timeline(schedule: Schedule) -> str:
    """The rounds as a table: successive rounds alike in one row, their messages and bytes on all links added up."""
    traced, mesh = trace(schedule), schedule.mesh
    counts = traced.counts | {"sram_bytes": traced.sram.sum(1)}
    of_a_round = (*EACH, "sram_bytes")
    alike = list(zip(traced.labels, traced.axes, *(counts[name] for name in of_a_round), strict=True))
    rows = []
    for (step, axes, *each), same in groupby(range(len(alike)), key=alike.__getitem__):
        numbers = list(same)
        span = f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else str(numbers[0])
        beside = " beside compute" if traced.overlaps[numbers].all() else ""
        values = dict(zip(of_a_round, each, strict=True)) | {name: counts[name][numbers].sum() for name in ADDED}
        cells = (cell(name, label(name), int(value)) for name, value in values.items())
        rows.append((span, step or "-", axes + beside or "-", *cells))
    head = ("rounds", "step", "moves along", *map(label, of_a_round + ADDED))
    return table(head, rows, title=f"{schedule.name} on mesh {mesh} of {mesh.device.name}", left=3)


def schedule(schedule: Schedule, path: str | Path) -> None:
    """Draw a schedule's trace into a file; the kind of picture follows from the path's suffix (.png, .svg, .pdf).

    Raises BackendError where matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise BackendError(f"drawing needs matplotlib ({missing}): pip install 'wafer-triton[bench]'") from None
    traced = trace(schedule)
    figure = Figure(figsize=(12, 11), layout="constrained")
    figure.suptitle(f"{schedule.name} on mesh {schedule.mesh} of {schedule.mesh.device.name}")
    parts: Any = figure.subfigures(3, 1, height_ratios=(4, 4, 3))
    time, links, memory = parts
    _rounds(time, traced)
    _heat(links, traced.links)
    _memory(memory, traced)
    figure.savefig(path)


def _rounds(figure: Any, traced: Trace) -> None:
    """Counts over the rounds, the steps of the algorithm in colours."""
    shown = {"hops": "hops", "busiest_link_bytes": "bytes on the\nbusiest link", "macs": "multiply-adds"}
    many = figure.subplots(len(shown), 1, sharex=True)
    rounds, steps = np.arange(len(traced.labels)), list(dict.fromkeys(traced.labels))
    for axes, (name, unit) in zip(many, shown.items(), strict=True):
        for number, step in enumerate(steps):
            here = np.array([label == step for label in traced.labels])
            width = max(1.5, 500 / len(rounds))
            axes.vlines(
                rounds[here] + 0.5, 0, traced.counts[name][here], f"C{number % 10}", label=step or "-", lw=width
            )
        axes.set(ylabel=unit, xlim=(0, len(rounds)))
        axes.set_ylim(bottom=0)
        axes.locator_params(integer=True)
    if steps:
        legend = many[0].legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=min(8, len(steps)), fontsize="small")
        for handle in legend.legend_handles:
            handle.set_linewidth(5)


def _heat(figure: Any, loads: Loads) -> None:
    """Bytes by sending core, one map for each direction that is used."""
    if not loads:
        figure.subplots().set(title="no core sends", xticks=[], yticks=[])
        return
    top = max(int(load.max()) for load in loads.values())
    many = figure.subplots(1, len(loads), squeeze=False)[0]
    for axes, (way, load) in zip(many, loads.items(), strict=True):
        image = axes.imshow(load, vmin=0, vmax=top, interpolation="nearest")
        axes.set(title=f"to the {way}", xlabel="column", ylabel="row")
        axes.locator_params(integer=True)
    figure.colorbar(image, ax=list(many), label="bytes over the run")


def _memory(figure: Any, traced: Trace) -> None:
    """What a core holds over the rounds, the largest buffers lowest."""
    axes = figure.subplots()
    names, held = stacked(traced)
    axes.stackplot(np.arange(held.shape[1]), held, labels=names, step="post")
    axes.set(xlabel="round", ylabel="SRAM bytes per core", xlim=(0, max(1, len(traced.sram))))
    axes.locator_params(integer=True)
    if names:
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small", reverse=True)


def stacked(traced: Trace) -> tuple[list[str], NDArray[np.int64]]:
    """The buffers that a core holds, the largest first, and their bytes [buffers, rounds + 1].

    All but the `COLOURS` - 1 largest are one, so that each has a colour and the legend has room.
    """
    order = [int(i) for i in np.argsort(-traced.sram.sum(0), kind="stable") if traced.sram[:, i].any()]
    names, held = [traced.buffers[i] for i in order], traced.sram[:, order].T
    if len(order) > COLOURS:
        rest = len(order) - (COLOURS - 1)
        names = [*names[:-rest], f"{rest} smaller buffers"]
        held = np.concatenate([held[:-rest], held[-rest:].sum(0, keepdims=True)])
    return names, np.concatenate([held, held[:, -1:]], 1)  # the last round ends as well


def _held(schedule: Schedule) -> NDArray[np.int64]:
    """Bytes of every buffer in every round, [rounds, buffers]."""
    held, living = np.zeros((len(schedule.rounds), len(schedule.buffers)), np.int64), spans(schedule)
    for column, name in enumerate(schedule.buffers):
        if name in living:
            held[living[name].start : living[name].end + 1, column] = living[name].bytes
    return held
