"""Pictures of sweeps for an architect: curves, heat maps and Pareto fronts.

A picture is a column wide and stays legible at 8 cm. Figures are predicted on the wafer; estimates have the
bands. Each function writes a file, `.png`, `.svg` or `.pdf`, and raises the errors of `figure.picture`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np

from wafer_triton.compare.best import best, front, in_words
from wafer_triton.compare.grid import REASON, Row, feasible
from wafer_triton.compare.sweep import LEGEND, OVERLAID
from wafer_triton.draw.explained import said
from wafer_triton.draw.figure import AMOUNTS, COLOURS, COLUMN, MARKERS, REST, picture
from wafer_triton.errors import DrawError

Rows = Sequence[Row]
MOST_SERIES = len(COLOURS)  # of one picture
MOST_NAMED = 6  # points of a front that have a name
MOST_TICKS = 6
_WIDE = 42  # letters of a name above the axes
_UNFIT = ("does not fit", "B of SRAM on", "leaves device")  # of a reason that something is too large


def curves(rows: Rows, over: Sequence[str], shown: str, path: str | Path, *, title: str = "") -> None:
    """Draw a column over the first swept parameter, with bands; a curve for each value of the others.

    A point without figures is a cross below. Raises DrawError for a column that is not there or holds no numbers, and
    for more than `MOST_SERIES` curves.
    """
    _check(rows, over, shown)
    across = next((name for name in over if name not in OVERLAID), over[0])
    others = [name for name in over if name != across]
    groups = _grouped(rows, others)
    places = _places(rows, across)
    with picture(path, 2.3, said(title), _point(rows, over, shown), width=COLUMN) as (figure, numbers):
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
            for row in best(group, shown) if x and len(absent) < len(group) else ():
                axes.plot(places[row[across]], row[shown], "*", ms=8, color="white", mec="black", mew=0.7, zorder=4)
            axes.plot(absent, [0.02 + 0.03 * number] * len(absent), "x", ms=3, mew=0.8, color=colour,
                      transform=axes.get_xaxis_transform(), clip_on=False)  # fmt: skip
        if any(REASON in row for row in rows):
            axes.plot([], [], "x", ms=3, color=REST, label=_absent(rows))
        axes.set(xlabel=LEGEND.head(across), ylabel=LEGEND.head(shown))
        axes.margins(y=0.12)
        _named_ticks(axes.xaxis, places)
        axes.grid(alpha=0.3)
        if others or any(REASON in row for row in rows):
            _legend(axes)


def heat(rows: Rows, over: Sequence[str], shown: str, path: str | Path, *, title: str = "") -> None:
    """Draw a column over two parameters as a map, with the border of feasibility; a map for each device and model.

    Points without figures are hatched, a star is the best point. Raises DrawError for other than two parameters beside
    "device" and "model", and for a column as `curves`.
    """
    _check(rows, over, shown)
    pair = [name for name in over if name not in OVERLAID]
    if len(pair) != 2:
        raise DrawError(f"a heat map has two parameters, and {', '.join(pair) or 'none'} are swept; draw curves")
    groups = _grouped(rows, [name for name in over if name in OVERLAID])
    values = [row[shown] for row in feasible(rows)]
    (down, across), low, high = pair, min(values), max(values)
    xs, ys = ([*_places(rows, name)] for name in (across, down))
    bands = [row["error_band"] for row in feasible(rows) if row.get("error_band") is not None]
    label = LEGEND.head(shown) + (f"\nbands {_bands(bands)}" if bands else "")
    point = _point(rows, over, shown)
    with picture(path, 0.3 + 2.3 * len(groups), said(title), point, width=COLUMN) as (figure, numbers):
        many = figure.subplots(len(groups), 1, squeeze=False)[:, 0]
        for axes, (name, group) in zip(many, groups.items(), strict=True):
            image = np.full((len(ys), len(xs)), np.nan)
            for row in group:
                image[ys.index(row[down]), xs.index(row[across])] = row.get(shown, np.nan)
            numbers[name or shown] = np.nan_to_num(image, nan=-1).ravel().tolist()
            axes.set_facecolor("#e8e8e8")
            axes.patch.set(hatch="////", edgecolor="#b0b0b0", lw=0)
            drawn = axes.pcolormesh(image, vmin=low, vmax=high, cmap=AMOUNTS)
            _border(axes, ~np.isnan(image))
            for row in best(group, shown):
                at = xs.index(row[across]) + 0.5, ys.index(row[down]) + 0.5
                axes.plot(*at, "*", ms=9, color="white", mec="black", mew=0.7)
            marked = [f"star: {LEGEND.shown(shown, row[shown])}" for row in best(group, shown)]
            axes.set(title=", ".join(filter(None, (name, *marked))))
            axes.set(xlabel=LEGEND.head(across), ylabel=LEGEND.head(down))
            _cell_ticks(axes.xaxis, xs)
            _cell_ticks(axes.yaxis, ys)
        figure.colorbar(drawn, ax=list(many), label=label, pad=0.02)


def pareto(
    rows: Rows, over: Sequence[str], shown: str, against: str, path: str | Path, *, title: str = ""
) -> None:  # fmt: skip
    """Draw two columns against each other, with bands, the front that no point beats, and names on the front.

    Raises DrawError for a column as `curves`.
    """
    _check(rows, over, shown)
    _check(rows, over, against)
    groups = _grouped(rows, [name for name in over if name in OVERLAID])
    kept = front(rows, [against, shown])
    kept.sort(key=lambda row: row[against])
    named = _spread(kept)
    point = f"No point beats {len(kept)} of {len(feasible(rows))}: they are the front"
    with picture(path, 2.5 + 0.14 * len(named), said(title), point, width=COLUMN) as (figure, numbers):
        axes = figure.subplots()
        for number, (name, group) in enumerate(groups.items()):
            held = feasible(group)
            x, y = ([row[column] for row in held] for column in (against, shown))
            numbers |= {f"{name} {against}".strip(): x, f"{name} {shown}".strip(): y}
            style = {"color": COLOURS[number], "ms": 3, "alpha": 0.6, "mew": 0}
            axes.plot(x, y, MARKERS[number], label=name or None, **style)
        numbers["front"] = [row[shown] for row in kept]
        x, y = [row[against] for row in kept], [row[shown] for row in kept]
        axes.plot(x, y, "-", color="black", lw=0.9, label="front, with bands")
        error = [row[shown] * (row.get("error_band") or 0.0) for row in kept]
        axes.errorbar(x, y, yerr=error, fmt="none", ecolor="black", elinewidth=0.4, alpha=0.5)
        axes.margins(x=0.08, y=0.1)
        for letter, row in zip(ascii_uppercase, named, strict=False):
            at = row[against], row[shown]
            axes.plot(*at, "o", ms=4.5, mfc="none", mec="black", mew=0.8)
            axes.annotate(letter, at, (4, 4), textcoords="offset points", fontsize=8, weight="bold")
        axes.set(xlabel=_head(against, shown), ylabel=_head(shown, against))
        axes.grid(alpha=0.3)
        _legend(axes)
        axes.locator_params(axis="x", nbins=5)
        figure.supxlabel("\n".join(_names(named, over)), fontsize=7, ha="left", x=0.03)


def _legend(axes: Any) -> None:
    """Put the names above the axes, side by side as far as the picture is wide, each of a line at most."""
    handles, names = axes.get_legend_handles_labels()
    short = [name if len(name) <= _WIDE else f"{name[: _WIDE - 3]}..." for name in names]
    widths = [len(name) + 6 for name in short]  # with the handle
    columns = len(short) if sum(widths) <= _WIDE + 8 else max(1, (_WIDE + 8) // max(widths))
    axes.legend(
        handles, short, loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0.2, columnspacing=1
    )


def _head(name: str, beside: str) -> str:
    """Return the label of an axis; a rate beside a user's rate is of all users."""
    return LEGEND.head(name).replace(" (", " of all users (" if beside == f"user_{name}" else " (", 1)


def _absent(rows: Rows) -> str:
    """Return the label of points without figures: none of them fits, or the table has the reasons."""
    fits = all(any(said in row[REASON] for said in _UNFIT) for row in rows if REASON in row)
    return "does not fit" if fits else "no figures, see CSV"


def _names(named: list[Row], over: Sequence[str]) -> list[str]:
    """Return a line for each named point: its letter and its parameters."""
    points = (", ".join(f"{LEGEND.label(name)} {LEGEND.asked(name, row[name])}" for name in over) for row in named)
    return [f"{letter}: {point}" for letter, point in zip(ascii_uppercase, points, strict=False)]


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
            f"{len(groups)} curves of {' and '.join(names)}: at most {MOST_SERIES} have colours of their own; sweep "
            f"fewer values, or draw a heat map"
        )
    return groups


def _places(rows: Rows, name: str) -> dict[Any, float]:
    """Return the place of each value of a parameter along an axis: the number itself, or its position if it is none."""
    values = list(dict.fromkeys(row[name] for row in rows))
    numeric = all(isinstance(value, int | float) for value in values)
    return {value: float(value) if numeric else float(number) for number, value in enumerate(values)}


def _band(axes: Any, x: Sequence[float], held: Rows, shown: str, colour: str) -> None:
    """Shade the error band of a column that is a time, a rate or an energy."""
    if LEGEND.entries.get(shown, {}).get("unit") not in ("s", "tokens/s", "cycles", "J", "J/token"):
        return
    bands = [row.get("error_band") or 0.0 for row in held]
    values = [row.get(shown, np.nan) for row in held]
    low, high = ([value * (1 + s * band) for value, band in zip(values, bands, strict=True)] for s in (-1, 1))
    axes.fill_between(x, np.maximum(low, 0), high, color=colour, alpha=0.15, lw=0)


def _border(axes: Any, fits: Any) -> None:
    """Draw the edges between cells with and without figures."""
    for row, col in np.argwhere(fits[:, 1:] != fits[:, :-1]):
        axes.plot([col + 1] * 2, [row, row + 1], color=COLOURS[5], lw=1.6)
    for row, col in np.argwhere(fits[1:] != fits[:-1]):
        axes.plot([col, col + 1], [row + 1] * 2, color=COLOURS[5], lw=1.6)


def _spread(kept: list[Row]) -> list[Row]:
    """Return the points of a front that have a name: its ends, and others evenly between."""
    if len(kept) <= MOST_NAMED:
        return kept
    return [kept[round(number * (len(kept) - 1) / (MOST_NAMED - 1))] for number in range(MOST_NAMED)]


def _named_ticks(axis: Any, places: Mapping[Any, float]) -> None:
    """Put names at places that stand for words."""
    if any(not isinstance(value, int | float) for value in places):
        axis.set_ticks(list(places.values()), [str(value) for value in places])


def _cell_ticks(axis: Any, values: Sequence[Any]) -> None:
    """Put some values at the middle of their cells."""
    chosen = range(0, len(values), -(-len(values) // MOST_TICKS))
    texts = [f"{values[n]:,.4g}" if isinstance(values[n], float) else f"{values[n]}" for n in chosen]
    axis.set_ticks([number + 0.5 for number in chosen], texts)


def _bands(bands: Sequence[float]) -> str:
    low, high = (f"{100 * band:.0f} %" for band in (min(bands), max(bands)))
    return f"\N{PLUS-MINUS SIGN}{low}" + f" to {high}" * (low != high)


def _point(rows: Rows, over: Sequence[str], shown: str) -> str:
    """Return the best point of all devices and models in words."""
    text = in_words(feasible(rows), over, shown)
    return text[:1].upper() + text[1:]
