"""Pictures of more than one schedule: a placed model, algorithms side by side, predictions against silicon.

Each function writes a file, `.png`, `.svg` or `.pdf`, and raises as `figure.picture`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from wafer_triton.count.verdict import PLMR
from wafer_triton.draw.figure import AMOUNTS, COLOURS, MARKERS, footnote, picture
from wafer_triton.draw.tables import letters
from wafer_triton.errors import DrawError
from wafer_triton.text.quantity import Legend, quantity

if TYPE_CHECKING:
    from wafer_triton.compare.algorithms import AlgorithmRow
    from wafer_triton.cost.calibrate.cells import Cell
    from wafer_triton.device import Device
    from wafer_triton.place.regions import Region

# The fields of a row that `compare` shows; wafer time is predicted and has a panel of its own.
FIELDS = ("hops", "routes", "sram_peak_bytes", "cycles")
PERCENT = (-100, -30, 0, 30, 100, 300)  # the ticks of errors


def wafer(regions: Sequence[Region], path: str | Path, title: str = "") -> None:
    """Draw a placed model on its device: regions coloured by the layer that they begin with, and by how full they are.

    Raises DrawError for a model without regions.
    """
    if not isinstance(regions, Sequence):
        raise DrawError(f"regions are of type {type(regions).__name__}; give the regions of a placed model")
    if not regions:
        raise DrawError("a wafer without regions: there is nothing to draw; give the regions of a placed model")
    for region in regions:
        if not hasattr(region, "blocks"):
            raise DrawError(f"a region is of type {type(region).__name__}; give the regions of a placed model")
    device = regions[0].mesh.device
    fullness = [100 * region.sram_peak_bytes / device.sram_bytes for region in regions]
    layers = [first_layer(region.blocks) for region in regions]
    cores = sum(region.mesh.cores for region in regions) / device.cores
    point = f"{len(regions)} regions hold the model on {100 * cores:.0f} % of the cores, "
    point += f"{max(fullness):.0f} % full at most"
    with picture(path, 2.7, title, point) as (figure, numbers):
        left, right = figure.subplots(1, 2, sharey=True)
        numbers["regions"] = [len(regions)]
        numbers["SRAM of a core of each region"] = [region.sram_peak_bytes for region in regions]
        lowest = 10 * (min(fullness) // 10)
        _map(figure, left, regions, layers, "first layer of a region", (0, max(1, *layers)))
        _map(figure, right, regions, fullness, "SRAM of a core in use (%)", (lowest, 100))
        left.set_ylabel("row of the device")


def first_layer(blocks: Sequence[str]) -> int:
    """Return the first layer among the names of blocks; -1 where a region holds the embedding or the head alone."""
    return next((int(name.split()[1]) for name in blocks if name.startswith("layer ")), -1)


def _map(figure: Any, axes: Any, regions: Any, values: Sequence[float], name: str, ends: tuple[float, float]) -> None:
    """Draw the device and a rectangle for each region in the colour of its value, on a scale between two ends.

    A region without a layer, whose value is -1, is grey.
    """
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.patches import Rectangle

    device, scale, colours = regions[0].mesh.device, Normalize(*ends), colormaps[AMOUNTS]
    axes.add_patch(Rectangle((0, 0), device.cols, device.rows, facecolor="#f0f0f0", edgecolor="black", lw=0.6))
    for region, value in zip(regions, values, strict=True):
        (row, col), mesh = region.mesh.origin, region.mesh
        colour = colours(scale(value)) if value >= 0 else "#bdbdbd"
        axes.add_patch(Rectangle((col, row), mesh.cols, mesh.rows, facecolor=colour, edgecolor="white", lw=0.4))
        if mesh.cols * 8 > device.cols:
            own = f"{value:.0f}" if value >= 0 else " ".join(region.blocks)
            ink = "white" if value >= 0 and scale(value) < 0.5 else "black"
            axes.text(col + mesh.cols / 2, row + mesh.rows / 2, own, ha="center", va="center", color=ink, fontsize=7)
    axes.set(xlim=(0, device.cols), ylim=(device.rows, 0), aspect="equal", xlabel="column of the device")
    figure.colorbar(ScalarMappable(scale, colours), ax=axes, label=name, location="top", shrink=0.9)


def compare(rows: Sequence[AlgorithmRow], path: str | Path, title: str = "", device: Device | None = None) -> None:
    """Draw algorithms side by side, as `compare_gemm` and `compare_gemv` give them: a panel for each of `FIELDS`.

    A letter of PLMR that an algorithm does not keep is a dash under its name, and the picture says when it is kept. The
    limits of a `device` are lines.
    Raises DrawError without a row.
    """
    if not rows:
        raise DrawError("a comparison without algorithms: there is nothing to draw; give at least one row")
    if device is not None and not hasattr(device, "routes"):
        raise DrawError(f"compare: device is of type {type(device).__name__}; give a Device, as device('wse2') makes")
    for row in rows:
        if not hasattr(row, "algorithm"):
            raise DrawError(f"compare: a row is of type {type(row).__name__}; give rows of compare_gemm")
    names = [f"{row.algorithm}\n{letters(row.verdict)}" for row in rows]
    colours = [COLOURS[number % len(COLOURS)] for number in range(len(rows))]
    keep = [row.algorithm for row in rows if all(row.verdict.values())]
    fast = min(rows, key=lambda row: row.cycles)
    point = f"{' and '.join(keep) or 'None'} alone keep{'s' * (len(keep) < 2)} all letters of PLMR; "
    point += f"{'it' if keep == [fast.algorithm] else fast.algorithm} takes the fewest cycles"
    with picture(path, 1.2 + 0.28 * len(rows), title, point) as (figure, numbers):
        footnote(figure, PLMR)
        many, legend = figure.subplots(1, len(FIELDS), sharey=True), Legend(type(rows[0]))
        limits = {} if device is None else {"routes": device.routes, "sram_peak_bytes": device.sram_bytes}
        for axes, field in zip(many, FIELDS, strict=True):
            values = [getattr(row, field) for row in rows]
            numbers[field] = values
            bars = axes.barh(range(len(rows)), values, 0.7, color=colours)
            beside = "B" if legend.unit(field) == "B" else ""  # other panels are named after their unit
            clear = {"facecolor": axes.get_facecolor(), "edgecolor": "none", "pad": 0.6}  # of the line of a limit
            axes.bar_label(bars, [quantity(value, beside) for value in values], padding=2, fontsize=7, bbox=clear)
            axes.set(title=legend.label(field), xticks=[], yticks=range(len(rows)), yticklabels=names)
            axes.margins(x=0.6)  # room for the number beside the longest bar
            if limit := limits.get(field):
                axes.axvline(limit, color="black", lw=0.8, ls="--", zorder=0.5)
                axes.set_xlabel(f"limit {quantity(limit, beside)}", fontsize=7)
            axes.spines["bottom"].set_visible(False)
            axes.tick_params(axis="y", length=0)
        many[0].invert_yaxis()


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
            bands = [100 * (cell.band or 0.0) for cell in named]
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
