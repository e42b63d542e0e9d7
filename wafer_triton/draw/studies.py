"""Pictures of predictions against silicon: the measurements of the fit, and the cells of the paper.

Each function writes a file, `.png`, `.svg` or `.pdf`, and raises as `figure.picture`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from wafer_triton.draw.figure import COLOURS, MARKERS, picture
from wafer_triton.errors import DrawError

if TYPE_CHECKING:
    from wafer_triton.cost.calibrate.cells import Cell

PERCENT = (-100, -30, 0, 30, 100, 300)  # the ticks of errors


def validation(path: str | Path) -> None:
    """Draw predicted against measured: cycles of a WSE-3, tokens per second of a WSE-2, errors by family."""
    from wafer_triton.cost.calibrate import FAMILIES, rows
    from wafer_triton.cost.calibrate.fit import STAGES
    from wafer_triton.cost.constants import constants
    from wafer_triton.device import device

    fitted = {stage.family: constants(device(stage.device)) for stage in STAGES}
    taken = {stage.family: np.array([stage.takes(row) for row in rows(stage.family)]) for stage in STAGES}
    errors = {
        family: np.array([row.predict(fitted[family]) / row.measured - 1 for row in rows(family)])
        for family in FAMILIES
    }
    worst = 100 * max(float(abs(errors[family][taken[family]]).max()) for family in FAMILIES)
    count = sum(int(each.sum()) for each in taken.values())
    point = f"All {count} measurements of the fit are predicted within {worst:.2f} %"
    with picture(path, 3.0, "On a WSE-3 and a WSE-2; hollow points are not in the fit", point) as (figure, numbers):
        axes: Any = figure.subplot_mosaic([["cycles", "errors"], ["tokens/s", "errors"]], width_ratios=(2, 3))
        titles = {"cycles": "cycles of a WSE-3", "tokens/s": "tokens/s of a WSE-2"}
        for number, family in enumerate(FAMILIES):
            measurements = rows(family)
            measured = np.array([row.measured for row in measurements])
            numbers[family] = (1 + errors[family]).tolist()
            style = {"marker": MARKERS[number], "color": COLOURS[number], "ls": "", "ms": 3, "alpha": 0.7}
            spread = number + np.linspace(-0.25, 0.25, len(measured))
            for chosen, look in ((taken[family], {}), (~taken[family], {"mfc": "none"})):
                at, error = measured[chosen], errors[family][chosen]
                axes[measurements[0].unit].plot(at, at * (1 + error), **style | look)
                axes["errors"].plot(100 * error, spread[chosen], **style | look)
        for unit, title in titles.items():
            panel = axes[unit]
            low, high = min(panel.get_xlim()[0], panel.get_ylim()[0]), max(panel.get_xlim()[1], panel.get_ylim()[1])
            limits = (max(low, 200), high * 1.3)
            panel.plot(limits, limits, "k-", lw=0.6)
            panel.set(xscale="log", yscale="log", xlim=limits, ylim=limits, title=title)
            panel.set(xlabel="measured", ylabel="predicted")
        last = axes["errors"]
        last.axvline(0, color="k", lw=0.6)
        last.set(yticks=range(len(FAMILIES)), yticklabels=FAMILIES, xlabel="predicted over measured, less 1 (%)")
        for number, name in enumerate(last.get_yticklabels()):  # the rows are the legend of the other panels
            name.set_color(COLOURS[number])
        last.invert_yaxis()


def reproduction(cells: Sequence[Cell], path: str | Path) -> None:
    """Draw the paper's cells: errors of predictions with their bands.

    Raises DrawError without a cell that is predicted.
    """
    from wafer_triton.cost.calibrate.cells import NAMES

    if odd := [cell for cell in cells if not hasattr(cell, "verdict")]:
        raise DrawError(f"a cell is of type {type(odd[0]).__name__}; give the cells of the paper's tables")
    own = [cell for cell in cells if cell.error is not None]
    if not own:
        raise DrawError("none of these cells is predicted: there is nothing to draw; give other tables")
    tables = list(dict.fromkeys(cell.table for cell in own))
    looks = {"fitted": ("o", COLOURS[0]), "within": ("s", COLOURS[2]), "miss": ("X", COLOURS[5])}
    missed = sum(cell.verdict == "miss" for cell in own)
    point = f"The paper's own program: {missed} of {len(own)} cells are missed"
    with picture(path, 0.9 + 0.3 * len(tables), "with error bands", point) as (figure, numbers):
        axes = figure.subplots()
        for verdict, (marker, colour) in looks.items():
            named = [cell for cell in own if cell.verdict == verdict]
            errors = [100 * (cell.error or 0.0) for cell in named]
            numbers[verdict] = errors
            heights = []
            for cell in named:
                alike = [other for other in own if other.table == cell.table]
                heights.append(tables.index(cell.table) + 0.6 * (alike.index(cell) + 0.5) / len(alike) - 0.3)
            # a band is a share of the prediction: it ends at (1 + error) (1 +- band) - 1
            bands = [(100 + error) * (cell.band or 0.0) for error, cell in zip(errors, named, strict=True)]
            axes.errorbar(errors, heights, xerr=bands, fmt=marker, color=colour, ms=3, elinewidth=0.4, label=verdict)
        axes.axvline(0, color="k", lw=0.6)
        axes.set_xscale("symlog", linthresh=30)
        axes.set_xticks(PERCENT, [f"{percent}" for percent in PERCENT])
        axes.minorticks_off()
        names = [fill(NAMES[table], 16) for table in tables]
        axes.set(yticks=range(len(tables)), yticklabels=names)
        axes.set_xlabel("predicted over published, less 1 (%);\nbeyond 30 % a tick is 3 times the one before")
        axes.invert_yaxis()
        axes.legend(loc="upper right", borderaxespad=0)
