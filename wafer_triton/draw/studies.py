"""The picture of predictions against silicon: measurements that constants are fitted on, and those held out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wafer_triton.draw.figure import COLOURS, MARKERS, Out, picture

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase as Figure


def validation(out: Out) -> Figure:
    """Draw predicted against measured: cycles of a WSE-3, tokens per second of a WSE-2, errors of both.

    `out` and errors are as in `figure.picture`; returns the figure.
    """
    from wafer_triton.cost.calibrate import paper
    from wafer_triton.cost.calibrate.cells import NAMES
    from wafer_triton.cost.calibrate.validation import measured

    kinds: dict[str, list[Any]] = {}
    for cell in (*measured(), *paper.cells(("3", "4"))):
        kinds.setdefault(NAMES.get(cell.table, cell.table), []).append(cell)
    every = [cell for cells in kinds.values() for cell in cells]
    fitted, held_out = ([abs(cell.error) for cell in every if cell.fitted == chosen] for chosen in (True, False))
    point = (
        f"{len(fitted)} fitted measurements within {100 * max(fitted):.1f} %, "
        f"{len(held_out)} held-out ones within {100 * max(held_out):.1f} %"
    )
    with picture(out, 3.0, "On a WSE-3 and a WSE-2; hollow points are held out", point) as (figure, numbers):
        axes: Any = figure.subplot_mosaic([["cycles", "errors"], ["tokens/s", "errors"]], width_ratios=(2, 3))
        titles = {"cycles": "cycles of a WSE-3", "tokens/s": "tokens/s of a WSE-2"}
        for number, (name, cells) in enumerate(kinds.items()):
            numbers[name] = [1 + cell.error for cell in cells]
            style = {"marker": MARKERS[number], "color": COLOURS[number], "ls": "", "ms": 3, "alpha": 0.7}
            spread = number + np.linspace(-0.25, 0.25, len(cells))
            for chosen, look in ((True, {}), (False, {"mfc": "none"})):
                points = [(cell, at) for cell, at in zip(cells, spread, strict=True) if cell.fitted == chosen]
                axes[cells[0].unit].plot(
                    [float(cell.published) for cell, _ in points],
                    [cell.predicted for cell, _ in points],
                    **style | look,
                )
                axes["errors"].plot([100 * cell.error for cell, _ in points], [at for _, at in points], **style | look)
        for unit, title in titles.items():
            panel = axes[unit]
            low, high = min(panel.get_xlim()[0], panel.get_ylim()[0]), max(panel.get_xlim()[1], panel.get_ylim()[1])
            limits = (max(low, 200), high * 1.3)
            panel.plot(limits, limits, "k-", lw=0.6)
            panel.set(xscale="log", yscale="log", xlim=limits, ylim=limits, title=title)
            panel.set(xlabel="measured", ylabel="predicted")
        last = axes["errors"]
        last.axvline(0, color="k", lw=0.6)
        last.set(yticks=range(len(kinds)), yticklabels=kinds, xlabel="predicted over measured, less 1 (%)")
        for number, name in enumerate(last.get_yticklabels()):  # the rows are the legend of the other panels
            name.set_color(COLOURS[number])
        last.invert_yaxis()
    return figure
