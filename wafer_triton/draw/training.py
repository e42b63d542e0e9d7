"""Pictures of wafers of dies: bytes over every link, of a plan or of routes before and after mapping.

Each function writes a file, `.png`, `.svg` or `.pdf`, and raises as `figure.picture`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wafer_triton.draw.figure import Numbers, byte_ticks, picture
from wafer_triton.text.quantity import quantity
from wafer_triton.train.dies import Link, Wafer
from wafer_triton.train.flows import RoutedFlows
from wafer_triton.train.planner import TrainingPlan

_APART = 0.08  # of the two directions of a link, in dies


def links(plan: TrainingPlan, path: str | Path) -> None:
    """Draw the bytes that a plan puts on every link in a step."""
    title = f"{plan.work.name} on {plan.wafer.name}, {plan.strategy}"
    point = f"The busiest link carries {quantity(max(plan.loads.values(), default=0.0), 'B')} in a step"
    with picture(path, 2.6, title, point) as (figure, numbers):
        _wafers(figure, plan.wafer, {"bytes of a step": plan.loads}, numbers)


def routes(before: RoutedFlows, after: RoutedFlows, path: str | Path) -> None:
    """Draw the bytes over every link of one phase before and after mapping, on one scale."""
    most, least = (quantity(max(each.loads.values(), default=0.0), "B") for each in (before, after))
    point = f"The busiest link carries {most} before mapping, {least} after"
    with picture(path, 1.8, before.wafer.name, point) as (
        figure,
        numbers,
    ):
        _wafers(figure, before.wafer, {"before": before.loads, "after": after.loads}, numbers)


def _wafers(figure: Any, wafer: Wafer, loads: Mapping[str, Mapping[Link, float]], numbers: Numbers) -> None:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    top = max((load for each in loads.values() for load in each.values()), default=1.0) or 1.0
    scale = Normalize(0, top)
    colours = colormaps["viridis_r"]
    plots = figure.subplots(1, len(loads), squeeze=False)[0]
    for axes, (name, each) in zip(plots, loads.items(), strict=True):
        for start, end in sorted(wafer.links.edges):
            load = each.get((start, end), 0.0)
            (row, col), (to_row, to_col) = start, end
            down, right = _APART * (to_col - col), _APART * (row - to_row)
            axes.plot(
                [col + right, to_col + right], [row + down, to_row + down], color=colours(scale(load)), lw=2.5
            )  # fmt: skip
        dies = [(row, col) for row in range(wafer.rows) for col in range(wafer.cols)]
        axes.scatter([col for _, col in dies], [row for row, _ in dies], marker="s", s=90, color="0.85", zorder=3)
        axes.set(title=name, aspect="equal")
        axes.set_axis_off()
        axes.invert_yaxis()
        numbers[name] = [max(each.values(), default=0.0), sum(each.values())]
    bar = figure.colorbar(ScalarMappable(scale, colours), ax=list(plots), label="bytes over a link, one way")
    byte_ticks(bar.ax.yaxis, top)
