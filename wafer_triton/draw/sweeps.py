"""The picture of a sweep: curves over a parameter.

It is a column wide and stays legible at 8 cm. Figures are predicted on the wafer; estimates have their bands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wafer_triton.compare.grid import REASON, Row, feasible
from wafer_triton.compare.sweep import LEGEND, OVERLAID
from wafer_triton.draw.figure import COLOURS, COLUMN, MARKERS, REST, Out, picture
from wafer_triton.errors import DrawError
from wafer_triton.text.quantity import PREDICTED

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase as Figure

Rows = Sequence[Row]
MOST_SERIES = len(COLOURS)  # of one picture
_WIDE = 42  # letters of a name above the axes


def curves(rows: Rows, over: Sequence[str], shown: str, out: Out, *, title: str = "") -> Figure:
    """Draw a column over the first swept parameter, with bands; a curve for each value of the others.

    Draws into `out`, as `figure.picture`, and returns the figure. A point without figures is a cross below. Raises
    DrawError for a column that is not there or holds no numbers, and for more than `MOST_SERIES` curves.
    """
    _check(rows, over, shown)
    across = next((name for name in over if name not in OVERLAID), over[0])
    others = [name for name in over if name != across]
    groups = _grouped(rows, others)
    places = _places(rows, across)
    with picture(out, 2.3, _said(title), width=COLUMN) as (figure, numbers):
        axes = figure.subplots()
        for number, (name, group) in enumerate(groups.items()):
            colour = COLOURS[number]
            x = [places[row[across]] for row in group]
            y = [row.get(shown, np.nan) for row in group]  # a curve has a gap where there are no figures
            numbers[name or shown] = [row[shown] for row in group if REASON not in row]
            _band(axes, x, group, shown, colour)
            axes.plot(x, y, marker=MARKERS[number], ms=3, lw=1, color=colour, label=name or None)
            absent = [places[row[across]] for row in group if REASON in row]
            numbers[f"{name or shown} without figures"] = absent
            axes.plot(absent, [0.02 + 0.03 * number] * len(absent), "x", ms=3, mew=0.8, color=colour,
                      transform=axes.get_xaxis_transform(), clip_on=False)  # fmt: skip
        if any(REASON in row for row in rows):
            axes.plot([], [], "x", ms=3, color=REST, label="no figures, see CSV")
        axes.set(xlabel=LEGEND.head(across), ylabel=LEGEND.head(shown))
        axes.margins(y=0.12)
        if any(not isinstance(value, int | float) for value in places):
            axes.xaxis.set_ticks(list(places.values()), list(map(str, places)))
        axes.grid(alpha=0.3)
        if others or any(REASON in row for row in rows):
            _legend(axes)
    return figure


def _legend(axes: Any) -> None:
    """Put the names above the axes, side by side as far as the picture is wide, each of a line at most."""
    handles, names = axes.get_legend_handles_labels()
    short = [name if len(name) <= _WIDE else f"{name[: _WIDE - 3]}..." for name in names]
    widths = [len(name) + 6 for name in short]  # with the handle
    columns = len(short) if sum(widths) <= _WIDE + 8 else max(1, (_WIDE + 8) // max(widths))
    axes.legend(
        handles, short, loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0.2, columnspacing=1
    )


def _check(rows: Rows, over: Sequence[str], shown: str) -> None:
    """Raise DrawError for rows without figures, for a column that is not there, and for one without numbers."""
    held = feasible(rows)
    if not over:
        raise DrawError("no parameter is given over which to draw; give one or more that were swept")
    if lacking := [name for name in over if any(name not in row for row in rows)]:
        raise DrawError(f"no parameter {lacking[0]!r} was swept; columns: {', '.join(map(str, rows[0]))}")
    if not held:
        raise DrawError("a sweep without figures: there is nothing to draw; give it values that can be estimated")
    columns = [name for name in held[0] if name not in over]
    if shown not in columns:
        raise DrawError(f"no column {shown!r}; columns: {', '.join(columns)}")
    if not all(isinstance(row[shown], int | float) for row in held):
        raise DrawError(f"column {shown!r} does not hold numbers alone; show another")


def _grouped(rows: Rows, names: Sequence[str]) -> dict[str, list[Row]]:
    """Return the rows by the values of some parameters, in words; DrawError for more groups than colours."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        said = (
            ("" if name in OVERLAID else f"{LEGEND.label(name)} ") + LEGEND.asked(name, row[name]) for name in names
        )
        groups.setdefault(", ".join(said), []).append(row)
    if len(groups) > MOST_SERIES:
        raise DrawError(
            f"{len(groups)} curves of {' and '.join(names)}: at most {MOST_SERIES} have colours of their own; "
            f"sweep fewer values"
        )
    return groups


def _places(rows: Rows, name: str) -> dict[Any, float]:
    """Return the place of each value of a parameter along an axis: the number itself, or its position if it is none."""
    values = list(dict.fromkeys(row[name] for row in rows))
    numeric = all(isinstance(value, int | float) for value in values)
    return {value: float(value) if numeric else float(number) for number, value in enumerate(values)}


def _band(axes: Any, x: Sequence[float], held: Rows, shown: str, colour: str) -> None:
    """Shade the error band of a column that is a time, a rate or an energy, between points that have one."""
    if LEGEND.entries.get(shown, {}).get("unit") not in ("s", "tokens/s", "cycles", "J", "J/token"):
        return
    bands = [row.get("error_band") or np.nan for row in held]
    values = [row.get(shown, np.nan) for row in held]
    low, high = ([value * (1 + s * band) for value, band in zip(values, bands, strict=True)] for s in (-1, 1))
    axes.fill_between(x, np.maximum(low, 0), high, color=colour, alpha=0.15, lw=0)


def _said(title: str) -> str:
    """Return a title that says that times are predicted."""
    return title if PREDICTED in title else ", ".join(filter(None, (title, PREDICTED)))
