"""Pictures of more than one schedule: a placed model, algorithms side by side, predictions against silicon.

Each function writes a file, `.png`, `.svg` or `.pdf`, and raises as `figure.picture`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wafer_triton.draw.figure import AMOUNTS, COLOURS, picture
from wafer_triton.draw.tables import letters
from wafer_triton.errors import DrawError
from wafer_triton.text.arguments import checked
from wafer_triton.text.quantity import Legend, quantity

if TYPE_CHECKING:
    from wafer_triton.compare.algorithms import AlgorithmRow
    from wafer_triton.cost.calibrate.cells import Cell
    from wafer_triton.device import Device
    from wafer_triton.place.regions import Region

# The fields of a row that `compare` shows; wafer time is predicted and has a panel of its own.
FIELDS = ("hops", "routes", "busiest_link_bytes", "sram_peak_bytes", "cycles")
PERCENT = (-100, -30, -10, 0, 10, 30, 100, 300)  # the ticks of errors
_MARKERS = "os^Dv"


@checked
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
    fullness = [region.sram_peak_bytes / device.sram_bytes for region in regions]
    layers = [first_layer(region.blocks) for region in regions]
    with picture(path, 3.1, title) as (figure, numbers):
        left, right = figure.subplots(1, 2)
        numbers["regions"] = [len(regions)]
        numbers["SRAM of a core of each region"] = [region.sram_peak_bytes for region in regions]
        _map(figure, left, regions, layers, "first layer of a region", max(1, *layers), names=True)
        _map(figure, right, regions, [100 * share for share in fullness], "SRAM of a core in use (%)", 100)


def first_layer(blocks: Sequence[str]) -> int:
    """Return the first layer among the names of blocks; -1 where a region holds the embedding or the head alone."""
    return next((int(name.split()[1]) for name in blocks if name.startswith("layer ")), -1)


def _map(
    figure: Any, axes: Any, regions: Any, values: Sequence[float], name: str, top: float, names: bool = False
) -> None:
    """Draw the device and a rectangle for each region in the colour of its value; without a layer: grey."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.patches import Rectangle

    device, scale, colours = regions[0].mesh.device, Normalize(0, top), colormaps[AMOUNTS]
    axes.add_patch(Rectangle((0, 0), device.cols, device.rows, facecolor="#f0f0f0", edgecolor="black", lw=0.6))
    for region, value in zip(regions, values, strict=True):
        (row, col), mesh = region.mesh.origin, region.mesh
        colour = colours(scale(value)) if value >= 0 else "#bdbdbd"
        axes.add_patch(Rectangle((col, row), mesh.cols, mesh.rows, facecolor=colour, edgecolor="white", lw=0.4))
        if names and mesh.cols * 8 > device.cols:
            own = f"{value:.0f}" if value >= 0 else " ".join(region.blocks)
            ink = "white" if 0 <= value < top / 2 else "black"
            axes.text(col + mesh.cols / 2, row + mesh.rows / 2, own, ha="center", va="center", color=ink, fontsize=7)
    axes.set(xlim=(0, device.cols), ylim=(device.rows, 0), aspect="equal", xlabel="column of the device")
    axes.set(ylabel="row of the device")
    figure.colorbar(ScalarMappable(scale, colours), ax=axes, label=name, location="top", shrink=0.8)


@checked
def compare(rows: Sequence[AlgorithmRow], path: str | Path, title: str = "", device: Device | None = None) -> None:
    """Draw algorithms side by side, as `compare_gemm` and `compare_gemv` give them: a panel for each of `FIELDS`.

    A letter of PLMR that an algorithm does not keep is a dash under its name. The limits of a `device` are lines.
    Raises DrawError without a row.
    """
    if not rows:
        raise DrawError("a comparison without algorithms: there is nothing to draw; give at least one row")
    for row in rows:
        if not hasattr(row, "algorithm"):
            raise DrawError(f"compare: a row is of type {type(row).__name__}; give rows of compare_gemm")
    names = [f"{row.algorithm}\n{letters(row.verdict)}" for row in rows]
    colours = [COLOURS[number % len(COLOURS)] for number in range(len(rows))]
    with picture(path, 0.9 + 0.28 * len(rows), title) as (figure, numbers):
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
            axes.margins(x=0.55)  # room for the number beside the longest bar
            if limit := limits.get(field):
                axes.axvline(limit, color="black", lw=0.8, ls="--", zorder=0.5)
                axes.set_xlabel(f"limit {quantity(limit, beside)}", fontsize=7)
            axes.spines["bottom"].set_visible(False)
            axes.tick_params(axis="y", length=0)
        many[0].invert_yaxis()


@checked
def validation(path: str | Path) -> None:
    """Draw predicted against measured: cycles of a WSE-3, tokens per second of a WSE-2, errors by family."""
    from wafer_triton.cost.calibrate import FAMILIES, rows
    from wafer_triton.cost.calibrate.fit import STAGES
    from wafer_triton.cost.constants import constants
    from wafer_triton.device import device

    fitted = {stage.family: constants(device(stage.device)) for stage in STAGES}
    with picture(path, 2.6) as (figure, numbers):
        axes: Any = figure.subplots(1, 3, width_ratios=(3, 3, 4))
        units = {"cycles": axes[0], "tokens/s": axes[1]}
        titles = {"cycles": "a WSE-3: cycles", "tokens/s": "a WSE-2: tokens per second"}
        for number, family in enumerate(FAMILIES):
            measurements = rows(family)
            measured = np.array([row.measured for row in measurements])
            predicted = np.array([row.predict(fitted[family]) for row in measurements])
            numbers[family] = (predicted / measured).tolist()
            style = {"marker": _MARKERS[number], "color": COLOURS[number], "ls": "", "ms": 3, "alpha": 0.7}
            spread = number + np.linspace(-0.25, 0.25, len(measured))
            (stage,) = (stage for stage in STAGES if stage.family == family)
            taken = np.array([stage.takes(row) for row in measurements])
            for chosen, look in ((taken, {}), (~taken, {"mfc": "none"})):  # left out: hollow
                units[measurements[0].unit].plot(measured[chosen], predicted[chosen], **style | look)
                axes[2].plot(100 * (predicted / measured - 1)[chosen], spread[chosen], **style | look)
        for unit, panel in units.items():
            low, high = min(panel.get_xlim()[0], panel.get_ylim()[0]), max(panel.get_xlim()[1], panel.get_ylim()[1])
            limits = (max(low, 200), high * 1.3)
            panel.plot(limits, limits, "k-", lw=0.6)
            panel.set(xscale="log", yscale="log", xlim=limits, ylim=limits, title=titles[unit])
            panel.set(xlabel=f"measured ({unit})", ylabel=f"predicted ({unit})")
        axes[2].axvline(0, color="k", lw=0.6)
        axes[2].set(yticks=range(len(FAMILIES)), yticklabels=FAMILIES, xlabel="predicted over measured, less 1 (%)")
        axes[2].set(title="errors (hollow: not in the fit)")
        for number, name in enumerate(axes[2].get_yticklabels()):  # the rows are the legend of the other panels
            name.set_color(COLOURS[number])
        axes[2].invert_yaxis()


@checked
def reproduction(cells: Sequence[Cell], path: str | Path) -> None:
    """Draw the paper's cells: errors of its own system with their bands, and the predictions of the rivals over it.

    Raises DrawError without a cell that is predicted.
    """
    from wafer_triton.cost.calibrate.cells import NAMES, RIVALS

    own = [cell for cell in cells if cell.error is not None and cell.system not in RIVALS]
    rivals = [cell for cell in cells if cell.error is not None and cell.system in RIVALS]
    if not own:
        raise DrawError("none of these cells is predicted: there is nothing to draw; give other tables")
    tables = list(dict.fromkeys(cell.table for cell in own))
    looks = {"fitted": ("o", COLOURS[0]), "within": ("s", COLOURS[2]), "miss": ("X", COLOURS[5])}
    with picture(path, 1.4 + 0.3 * len(tables)) as (figure, numbers):
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        for verdict, (marker, colour) in looks.items():
            named = [cell for cell in own if cell.verdict == verdict]
            errors = [100 * (cell.error or 0.0) for cell in named]
            numbers[verdict] = errors
            heights = []
            for cell in named:
                alike = [other for other in own if other.table == cell.table]
                heights.append(tables.index(cell.table) + 0.6 * (alike.index(cell) + 0.5) / len(alike) - 0.3)
            bands = [100 * (cell.band or 0.0) for cell in named]
            left.errorbar(errors, heights, xerr=bands, fmt=marker, color=colour, ms=3, elinewidth=0.4, label=verdict)
        left.axvline(0, color="k", lw=0.6)
        left.set_xscale("symlog", linthresh=30)
        left.set_xticks(PERCENT, [f"{percent:+,}" if percent else "0" for percent in PERCENT])
        left.minorticks_off()
        names = [NAMES[table] for table in tables]
        left.set(yticks=range(len(tables)), yticklabels=names, xlabel="predicted over published, less 1 (%)")
        left.set(title="the paper's own program, with error bands")
        left.invert_yaxis()
        left.legend()
        for number, name in enumerate(RIVALS):
            named = [cell for cell in rivals if cell.system == name]
            pairs = [[float(cell.published) for cell in named], [cell.predicted or 0.0 for cell in named]]
            numbers[name] = [mine / theirs for theirs, mine in zip(*pairs, strict=True)]
            right.plot(*pairs, _MARKERS[number], ms=3, color=COLOURS[number], label=name)
        if rivals:
            limits = right.get_xlim()[0], right.get_ylim()[1]
            ends = (0.5, max(limits) * 2)
            right.plot(ends, ends, "k-", lw=0.6)
            right.set(xscale="log", yscale="log", xlabel="published (tokens/s)", ylabel="predicted (tokens/s)")
            right.legend()
        right.set(title="T10 and Ladder, by assumption")
