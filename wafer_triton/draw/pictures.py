"""Pictures of one schedule, counted and priced but not run: its rounds, tiles, links, SRAM and predicted time.

Each function writes a file, `.png`, `.svg` or `.pdf`, and raises the errors of `figure.picture`. The title of a picture
is its point, such as the number of hops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wafer_triton.cost.price import Cost, Interval, intervals, price
from wafer_triton.count.account import Loads, account, link_loads
from wafer_triton.draw.figure import Numbers, byte_ticks, coloured, legend, maps, picture, whole_ticks
from wafer_triton.draw.tiles import Where, after, chosen, moving
from wafer_triton.draw.trace import Trace, held, trace
from wafer_triton.errors import DrawError
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.text.quantity import quantity

MANY_ROUNDS = 1_000  # schedules with more rounds are drawn as curves, not as bars
_NAMED = 16  # up to this number of cores a side, each core shows the name of its tile
_PANELS = 4  # buffers in one picture of a mesh


def schedule(schedule: Schedule, path: str | Path) -> None:
    """Draw a schedule at a glance: counts of its rounds by step, bytes over its links, SRAM of a core."""
    title, counted, cost = _title(schedule), account(schedule), price(schedule)
    point = f"{counted.hops:,} hops, {quantity(counted.link_bytes, 'B')}; {_cycles(cost)}"
    with picture(path, 6.6, title, point) as (figure, numbers):
        traced = trace(schedule)
        parts = figure.subfigures(3, 1, height_ratios=(3.4, 1.7, 2.2))
        _rounds(parts[0], traced, numbers)
        _links(parts[1], traced.links, numbers)
        _sram(parts[2], schedule, numbers)


def links(schedule: Schedule, path: str | Path) -> None:
    """Draw the bytes that a schedule puts on every link, a map for each direction, by the sending core."""
    title, loads = _title(schedule), link_loads(schedule)
    point = "No core sends"
    if used := np.concatenate([np.zeros(0), *(load[load > 0] for load in loads.values())]).tolist():
        most, mean = max(used), sum(used) / len(used)
        point = f"The busiest link carries {quantity(most, 'B')}, {most / mean:.2g} times the mean of links in use"
    with picture(path, 0.7 + 3.6 / max(2, len(loads)), title, point) as (figure, numbers):
        _links(figure, loads, numbers)


def sram(schedule: Schedule, path: str | Path) -> None:
    """Draw the SRAM of a core over the rounds, by buffer; all cores of a mesh hold the same."""
    title, peak, limit = _title(schedule), account(schedule).sram_peak_bytes, schedule.mesh.device.sram_bytes
    share, held = 100 * peak / limit, f"{quantity(peak, 'B')} of {quantity(limit, 'B')}"
    point = f"A core's SRAM is {share:.1f} % full at the peak: {held}"
    with picture(path, 2.2, title, point) as (figure, numbers):
        _sram(figure, schedule, numbers)


def timeline(schedule: Schedule, path: str | Path) -> None:
    """Draw a timeline of a schedule's steps in predicted cycles: computation, waits, and use of the busiest link."""
    with picture(path, 1.9, _title(schedule), _cycles(price(schedule))) as (figure, numbers):
        _timeline(figure.subplots(), intervals(schedule), numbers)


def mesh(
    schedule: Schedule, path: str | Path, *, round: int = -1, buffers: str | tuple[str, ...] | None = None
) -> None:
    """Draw the tile that every core holds after a round; its colour and name are the core where the tile began.

    `round` -1 is the start. `buffers` None takes the first four buffers whose tiles move. Raises DrawError for a round
    or a buffer that the schedule does not have.
    """
    along = moving(schedule)
    if isinstance(buffers, str):  # its letters would pass for names
        buffers = (buffers,)
    if not isinstance(buffers, tuple | list | None):
        raise DrawError(f"buffers of type {type(buffers).__name__}: give names of buffers, or None")
    names = [chosen(schedule, name) for name in buffers or tuple(along)[:_PANELS] or (None,)]
    where, (rows, cols) = after(schedule, round), schedule.mesh.shape
    when = f"after round {round} ({schedule.rounds[round].label or 'no label'})" if round >= 0 else "at the start"
    title, point = f"{_title(schedule)}, {when}", _met(where, along, names, cols)
    with picture(path, 0.8 + 4 / max(2, len(names)) * min(1.2, rows / cols), title, point) as drawn:
        figure, numbers = drawn
        many = figure.subplots(1, len(names), squeeze=False)[0]
        for axes, name in zip(many, names, strict=True):
            began = where[name]
            numbers[f"tiles of {name}"] = began.ravel().tolist()
            by_row = along.get(name) == "y"
            shown = np.ma.masked_less(began // cols if by_row else began % cols, 0)
            axes.imshow(shown.astype(float), cmap="viridis", vmin=0, vmax=max(1, (rows if by_row else cols) - 1))
            axes.set(title=f"{name}: {'row' if by_row else 'column'} where a tile began")
            axes.set(xlabel="column", ylabel="row")
            whole_ticks(axes)
            if max(rows, cols) <= _NAMED:
                _names(axes, began, shown, cols)


def _met(where: Where, along: Mapping[str, str], names: Sequence[str | None], cols: int) -> str:
    """Return the title of a mesh of tiles: the number of cores on which tiles of two buffers can be multiplied."""
    across, down = ([name for name in names if name and along.get(name) == axis] for axis in "xy")
    if len(across) != 1 or len(down) != 1:
        return ""
    column, row = where[across[0]] % cols, where[down[0]] // cols
    met, all_ = int(((column == row) & (where[across[0]] >= 0)).sum()), column.size
    cores = "every core" if met == all_ else f"{met:,} of {all_:,} cores"
    return f"On {cores} the column of {across[0]} is the row of {down[0]}, as a product needs"


def _names(axes: Any, began: NDArray[np.int64], shown: Any, cols: int) -> None:
    """Write the row and column where a tile began, in each core, white on dark and black on light."""
    middle = shown.max() / 2
    for (row, col), core in np.ndenumerate(began):
        if core >= 0:
            ink = "white" if shown[row, col] <= middle else "black"
            size = min(7.0, 60 / began.shape[1])
            axes.text(col, row, f"{core // cols},{core % cols}", ha="center", va="center", color=ink, fontsize=size)


def _title(schedule: Schedule) -> str:
    return f"{schedule.name} on mesh {schedule.mesh} of {schedule.mesh.device.name}"


def _cycles(cost: Cost) -> str:
    """Return the cycles of a price, with the bound that takes most of them."""
    name, most = max(cost.bounds.items(), key=itemgetter(1))
    return f"{cost.cycles:,.0f} predicted cycles, {100 * most / max(1e-9, cost.cycles):.0f} % {name}"


def _rounds(figure: Any, traced: Trace, numbers: Numbers) -> None:
    """Draw counts over the rounds, the steps of the algorithm in colours."""
    shown = {"hops": "longest\nmove (hops)", "busiest_link_bytes": "busiest\nlink (B)", "macs": "multiply-\nadds"}
    many = figure.subplots(len(shown), 1, sharex=True)
    steps = {label: float(traced.labels.count(label)) for label in dict.fromkeys(traced.labels)}
    colours, count = coloured(steps), len(traced.labels)
    for axes, (name, unit) in zip(many, shown.items(), strict=True):
        numbers[name] = traced.counts[name].tolist()
        bars = [colours[label] for label in traced.labels]
        middles, heights = np.arange(count) + 0.5, traced.counts[name]
        if count > MANY_ROUNDS:  # each bar would be an object
            axes.vlines(middles, 0, heights, colors=bars, linewidth=0.5)
        else:
            axes.bar(middles, heights, 1 if count > 100 else 0.85, color=bars)
        axes.set(ylabel=unit, xlim=(0, max(1, count)))
        whole_ticks(axes)
        axes.yaxis.set_major_formatter("{x:,.0f}")
    many[-1].set_xlabel("round")
    counts = zip(*(traced.counts[name] for name in shown), strict=True)
    drawn = {label for label, heights in zip(traced.labels, counts, strict=True) if any(heights)}
    legend(many[0], colours, [label for label in steps if label in drawn], beside=False)


def _links(figure: Any, loads: Loads, numbers: Numbers) -> None:
    """Draw bytes by sending core, one map for each direction in use."""
    if not loads:
        figure.subplots().set(title="no core sends", xticks=[], yticks=[])
        return
    numbers |= {f"bytes to the {way}": [float(load.sum())] for way, load in loads.items()}
    top = max(int(load.max()) for load in loads.values())
    maps(figure, {f"to the {way}": load for way, load in loads.items()}, label="bytes over the run", top=top)


def _sram(figure: Any, schedule: Schedule, numbers: Numbers) -> None:
    """Draw the SRAM of a core over the rounds, the largest buffers lowest, with its limit."""
    axes, limit = figure.subplots(), schedule.mesh.device.sram_bytes
    over_rounds = held(schedule)
    sizes = {name: float(size) for name, size in zip(schedule.buffers, over_rounds.sum(0), strict=True) if size}
    colours = coloured(sizes)
    numbers["SRAM of a core"] = over_rounds.sum(1).tolist()
    if sizes:
        columns = [list(schedule.buffers).index(name) for name in colours]
        heights = np.concatenate([over_rounds, over_rounds[-1:]])[:, columns].T  # the last round ends as well
        axes.stackplot(np.arange(heights.shape[1]), heights, colors=list(colours.values()), step="post")
        legend(axes, colours, list(colours)[::-1])  # from top to bottom, as they lie
    peak = int(over_rounds.sum(1).max(initial=0))
    axes.set(xlabel="round", ylabel="SRAM of a core", xlim=(0, max(1, len(over_rounds))))
    whole_ticks(axes)
    byte_ticks(axes.yaxis, peak)
    if 2 * peak > limit:
        axes.axhline(limit, color="black", lw=0.8, ls="--")
        axes.annotate(f"limit {quantity(limit, 'B')}", (0, limit), (3, -2), textcoords="offset points", va="top")


def _timeline(axes: Any, placed: tuple[Interval, ...], numbers: Numbers) -> None:
    """Draw three tracks: local operations, cores that wait for data or set up, the busiest link."""
    if not placed:
        raise DrawError("a timeline of a schedule without rounds: there is nothing to draw; give it a round")
    cycles = dict[str, float]()
    for each in placed:
        cycles[each.label] = cycles.get(each.label, 0.0) + each.cost.cycles
    colours = coloured(cycles)
    tracks = ("compute", "wait or set up", "busiest link")
    many: dict[tuple[int, str], list[tuple[float, float]]] = {}  # bars of one track and colour are one object
    for each in placed:
        cost, colour = each.cost, colours[each.label]
        waiting = cost.communication_cycles
        bars = ((each.start + waiting, cost.compute_cycles), (each.start, waiting), (each.start, cost.link_cycles))
        for track, bar in enumerate(bars):
            if bar[1] > 0:
                many.setdefault((track, colour), []).append(bar)
    for (track, colour), bars_ in many.items():
        edge = colour if track else "white"  # an edge would fill a thin bar
        axes.broken_barh(bars_, (track - 0.4, 0.8), facecolors=colour, edgecolors=edge, linewidth=0.4)
    numbers["end of the timeline"] = [placed[-1].end]
    numbers |= {f"cycles of {label}": [each] for label, each in cycles.items()}
    axes.set(yticks=range(3), yticklabels=tracks, ylim=(2.6, -0.6), xlim=(0, placed[-1].end or 1))
    axes.set(xlabel="cycles, predicted on the wafer")
    axes.locator_params(axis="x", nbins=5)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    legend(axes, colours, list(cycles), beside=False)
