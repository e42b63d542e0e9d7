"""A grid of points: every combination of the values of some parameters, each with figures or with a reason.

A row is a dictionary: the parameters of its point first, then the figures or, in the column `REASON`, a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from math import isfinite, prod
from os.path import exists
from pathlib import Path
from typing import Any

from wafer_triton.device.keys import number_of
from wafer_triton.errors import ConfigError
from wafer_triton.text.files import listed
from wafer_triton.text.quantity import numbered
from wafer_triton.text.table import Table

REASON = "reason"  # the column of a row without figures
MOST_POINTS = 10_000  # of a grid

Over = Mapping[str, Sequence[Any]]  # the values of each parameter
Point = dict[str, Any]
Row = dict[str, Any]


def points(over: Over) -> list[Point]:
    """Return all combinations of the values; the last parameter varies fastest.

    Raises ConfigError for a parameter without a value or with a value twice.
    """
    for name, values in over.items():
        if not values:
            raise ConfigError(f"sweep over {name}: it has no value; give one at least")
        for number, value in enumerate(values):
            if value in values[:number]:
                given = getattr(value, "name", repr(value))
                raise ConfigError(f"sweep over {name}: {given} comes twice; give each value once")
    return [dict(zip(over, combined, strict=True)) for combined in product(*over.values())]


def size(over: Over) -> str:
    """Return the number of points in words, such as "40 x 40 = 1,600 points"."""
    counts = [len(values) for values in over.values()]
    each = " x ".join(f"{count:,}" for count in counts)
    return f"{each} = {prod(counts):,} points" if len(counts) > 1 else numbered(counts[0], "points")


def feasible(rows: Iterable[Row]) -> list[Row]:
    """Return the rows that have figures; the others have a reason why there are none."""
    return [row for row in rows if REASON not in row]


def write_csv(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows as CSV, with a column for each name of any row; a row lacks nothing but its figures or its reason."""
    names = sorted(dict.fromkeys(name for row in rows for name in row), key=lambda name: name == REASON)
    Table({name: row.get(name) for name in names} for row in rows).csv(path)


def parsed(text: str) -> tuple[str, list[Any]]:
    """Return the parameter and the values that `NAME=A,B,...` or `NAME=FROM:TO:STEP` stands for.

    A value is a whole number, a number, true, false, or else a word. Raises ConfigError for a text of another form
    and for a number that is not finite. It is raised, too, for a range that counts down or has too many values.
    """
    name, sign, given = text.partition("=")
    name = name.strip().strip("-").replace("-", "_")
    if not name or not sign or not given:
        raise ConfigError(f"--over {text!r}: write NAME=A,B,... or NAME=FROM:TO:STEP")
    ranged = ":" in given and all(isinstance(plain(part), int | float) or not part for part in given.split(":"))
    words = _named(given) if name in ("model", "device") else [part.strip() for part in given.split(",")]
    values = _range(text, given) if ranged else [plain(word) for word in words]
    for value in values:
        if value == "" or (isinstance(value, float) and not isfinite(value)):
            raise ConfigError(f"--over {text!r}: {str(value)!r} is no value; write finite numbers or words, as A,B,C")
    return name, values


def _named(given: str) -> list[str]:
    """Return the models or devices of a list, each with its own numbers: "wse2,wse3,sram_kib=96" names two."""
    found: list[str] = []
    for word in listed(given):
        if found and "=" in word and not exists(word):
            found[-1] += f",{word}"
        else:
            found.append(word)
    return found


def plain(text: str) -> Any:
    """Return a word of the command line as the whole number, the number or the truth value that it stands for."""
    return {"true": True, "false": False}.get(text, number_of(text))


def _range(text: str, given: str) -> list[Any]:
    """Return the values from the first to the last number, by steps; whole numbers stay whole."""
    parts = given.split(":")
    numbers = [plain(part) for part in parts]
    wrong = [part for part, number in zip(parts, numbers, strict=True) if number == "" or not isfinite(number)]
    if wrong or len(numbers) != 3:
        which = f" ({wrong[0]!r} is no finite number)" if wrong else ""
        raise ConfigError(f"--over {text!r}: write NAME=FROM:TO:STEP with three numbers{which}")
    first, last, step = numbers
    if step <= 0:
        raise ConfigError(f"--over {text!r}: STEP is {parts[2]}, and FROM:TO:STEP counts upwards; give more than 0")
    if first > last:
        raise ConfigError(f"--over {text!r}: FROM:TO:STEP counts upwards, and {parts[0]} is more than {parts[1]}")
    if (last - first) / step >= MOST_POINTS:
        raise ConfigError(f"--over {text!r}: that is more than {MOST_POINTS:,} values; take a larger STEP")
    return [first + number * step for number in range(int((last - first) / step + 1e-9) + 1)]
