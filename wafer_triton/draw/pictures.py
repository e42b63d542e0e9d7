"""Pictures of one schedule, counted and priced but not run: bytes over its links, and its predicted time.

Each function draws into a file, `.png`, `.svg` or `.pdf`, or into Axes, and returns the figure; `out` and errors are as
in `figure.picture`. The title of a picture is its point, such as the load of the busiest link.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from wafer_triton.cost.price import Cost, Interval, intervals, price
from wafer_triton.count.account import Loads, link_loads
from wafer_triton.draw.figure import AMOUNTS, Numbers, Out, coloured, legend, picture, whole_ticks
from wafer_triton.draw.trace_events import BARS, bars
from wafer_triton.errors import DrawError
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.text.quantity import quantity

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase as Figure


def links(schedule: Schedule, out: Out) -> Figure:
    """Draw the bytes that a schedule puts on every link, a map for each direction, by the sending core."""
    title = _title(schedule)
    loads = {way: load for way, load in link_loads(schedule).items() if load.any()}
    point = "No core sends"
    if used := np.concatenate([np.zeros(0), *(load[load > 0] for load in loads.values())]).tolist():
        most, mean = max(used), sum(used) / len(used)
        point = f"The busiest link carries {quantity(most, 'B')}, {most / mean:.2g} times the mean of links in use"
    with picture(out, 0.7 + 3.6 / max(2, len(loads)), title, point) as (figure, numbers):
        numbers |= {f"bytes to the {way}": [float(load.sum())] for way, load in loads.items()}
        if loads:
            _maps(figure, loads)
        else:
            figure.subplots().set(title="no core sends", xticks=[], yticks=[])
    return figure


def timeline(schedule: Schedule, out: Out) -> Figure:
    """Draw a timeline of a schedule's steps in predicted cycles: computation, waits, and use of the busiest link."""
    with picture(out, 1.9, _title(schedule), _cycles(price(schedule))) as (figure, numbers):
        _timeline(figure.subplots(), intervals(schedule), numbers)
    return figure


def _title(schedule: Schedule) -> str:
    return f"{schedule.name} on mesh {schedule.mesh} of {schedule.mesh.device.name}"


def _cycles(cost: Cost) -> str:
    """Return the cycles of a price, with the bound that takes most of them."""
    name, most = max(cost.bounds.items(), key=itemgetter(1))
    share = 100 * most / max(1e-9, cost.cycles)
    return f"{cost.cycles:,.0f} predicted cycles ({cost.tuned_cycles:,.0f} if tuned), {share:.0f} % {name}"


def _maps(figure: Any, loads: Loads) -> None:
    """Draw bytes by sending core, a map for each direction in use, side by side on one scale from 0."""
    from matplotlib.ticker import MultipleLocator

    top = max(int(load.max()) for load in loads.values())
    panels = figure.subplots(1, len(loads), squeeze=False)[0]
    for axes, (way, load) in zip(panels, loads.items(), strict=True):
        image = axes.imshow(load, vmin=0, vmax=top, cmap=AMOUNTS, interpolation="nearest")
        axes.set(title=f"to the {way}", xlabel="column")
        whole_ticks(axes, 6 if len(loads) == 1 else 3)
    panels[0].set_ylabel("row")
    axis = figure.colorbar(image, ax=list(panels), label="bytes over the run", shrink=0.9).ax.yaxis
    axis.set_major_locator(MultipleLocator(next(1 << power for power in range(60) if (8 << power) >= top)))
    axis.set_major_formatter(lambda value, _: quantity(value, "B"))


def _timeline(axes: Any, placed: tuple[Interval, ...], numbers: Numbers) -> None:
    """Draw three tracks: local operations, cores that wait for data or set up, the busiest link."""
    if not placed:
        raise DrawError("a timeline of a schedule without rounds: there is nothing to draw; give it a round")
    cycles = dict[str, float]()
    for each in placed:
        cycles[each.label] = cycles.get(each.label, 0.0) + each.cost.cycles
    colours = coloured(cycles)
    many: dict[tuple[str, str], list[tuple[float, float]]] = {}  # bars of one track and colour are one object
    for each in placed:
        for track, bar in bars(each).items():
            many.setdefault((track, colours[each.label]), []).append(bar)
    for (track, colour), own in many.items():
        edge = "white" if track == "compute" else colour  # an edge would fill a thin bar
        axes.broken_barh(own, (BARS.index(track) - 0.4, 0.8), facecolors=colour, edgecolors=edge, linewidth=0.4)
    numbers["end of the timeline"] = [placed[-1].end]
    numbers |= {f"cycles of {label}": [each] for label, each in cycles.items()}
    axes.set(yticks=range(3), yticklabels=BARS, ylim=(2.6, -0.6), xlim=(0, placed[-1].end or 1))
    axes.set(xlabel="cycles, predicted on the wafer")
    axes.locator_params(axis="x", nbins=5)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    legend(axes, colours, list(cycles))
