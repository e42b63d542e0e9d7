"""The best rows of a sweep: by one column, in words, and by several columns at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from wafer_triton.compare.grid import Row, feasible
from wafer_triton.compare.sweep import LEGEND, OVERLAID
from wafer_triton.errors import ConfigError

MORE = ("tokens/s", "tokens", "%")  # units of columns of which more is better


def less_is_better(column: str) -> bool:
    """Return whether less of a column is better: more is better of rates, tokens and shares in use alone."""
    return LEGEND.entries.get(column, {}).get("unit") not in MORE


def groups(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the feasible rows in groups, each of which has a best row.

    Rows of one device and model form a group. If no two rows share both, rows of one model do. If no two share a model,
    all rows do.
    """
    held = feasible(rows)
    for names in (OVERLAID, OVERLAID[1:], ()):
        points = Counter(tuple(row.get(name) for name in names) for row in rows)
        if points and max(points.values()) > 1:
            break
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in held:
        found.setdefault(tuple(row.get(name) for name in names), []).append(row)
    return list(found.values())


def best(rows: Sequence[Row], by: str) -> list[Row]:
    """Return the best row by a column of each of `groups`; of rows with equal values, the first.

    The best is the least or the most, see `less_is_better`.
    """
    return [_best(group, by) for group in groups(rows)]


def _best(group: Sequence[Row], by: str) -> Row:
    _check_column(group, by)
    return (min if less_is_better(by) else max)(group, key=lambda row: row[by])


def _check_column(rows: Sequence[Row], by: str) -> None:
    for row in rows:
        if by not in row:
            raise ConfigError(f"best by {by!r}: no column has this name; columns: {', '.join(map(str, row))}")


def in_words(group: Sequence[Row], over: Iterable[str], by: str) -> str:
    """Return the best of feasible rows in words: its figure, its values of the parameters `over`, and other points.

    Other points are those with the same figure.
    """
    row = _best(group, by)
    figure, alike = f"{LEGEND.label(by)}: {LEGEND.shown(by, row[by])}", sum(other[by] == row[by] for other in group)
    if 1 < alike == len(group):
        return f"{figure} at each of the {alike:,} points"
    values = {name: LEGEND.asked(name, row[name]) for name in over}
    point = ", ".join(text if text.endswith(f" {name}") else f"{name} {text}" for name, text in values.items())
    others = f", and at {alike - 1:,} other point{'s' * (alike > 2)}" * (alike > 1)
    return f"{'least' if less_is_better(by) else 'most'} {figure} at {point}{others}"


def front(rows: Sequence[Row], columns: str | Sequence[str]) -> list[Row]:
    """Return the Pareto front of the feasible rows, the best first; of rows with equal values, the first alone."""
    columns = [columns] if isinstance(columns, str) else columns
    for column in columns:
        _check_column(feasible(rows), column)
    signs = [1 if less_is_better(column) else -1 for column in columns]
    held = sorted(feasible(rows), key=lambda row: [sign * row[name] for sign, name in zip(signs, columns, strict=True)])
    kept: list[tuple[list[float], Row]] = []
    for row in held:  # a row is beaten by none that comes later
        values = [sign * row[name] for sign, name in zip(signs, columns, strict=True)]
        if not any(all(a <= b for a, b in zip(other, values, strict=True)) for other, _ in kept):
            kept.append((values, row))
    return [row for _, row in kept]
