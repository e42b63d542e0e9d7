"""A measured number beside its prediction, its verdict, and summaries of many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean
from typing import Any

TABLES = ("2", "3", "4", "5", "6", "7, 8", "text")
NAMES = {
    "2": "table 2: requests", "3": "table 3: prefill", "4": "table 4: decode", "5": "table 5: tokens of a KV cache",
    "6": "table 6: time of a GEMV", "text": "text: how much faster",
}  # fmt: skip
COUNTED = 0.01  # the relative error that a cell without a band may have


@dataclass(frozen=True)
class Cell:
    """A measured number with the prediction of the program that was measured, in `unit`.

    `table` is one of the paper's, or a family of measurements. `low` and `high` are the measured number as it is
    rounded, or the ends of a range. `band` is the share by which a measurement may differ from the prediction; None for
    tokens, which are counted.
    """

    table: str
    what: str
    model: str
    mesh: str
    tokens: str
    unit: str
    published: str
    low: float
    high: float
    fitted: bool
    predicted: float
    band: float | None
    note: str = ""

    @property
    def is_range(self) -> bool:
        """Whether a range was published in place of a number."""
        return "to" in self.published

    @property
    def error(self) -> float:
        """The prediction over the measured number, less 1; of a range over its nearer end."""
        near = min(max(self.predicted, self.low), self.high) if self.is_range else float(self.published)
        return self.predicted / near - 1

    @property
    def verdict(self) -> str:
        """Returns "fitted" or, of a cell that is held out, "within" its band or "miss"."""
        share = self.band or COUNTED
        inside = self.low <= self.predicted * (1 + share) and self.predicted * (1 - share) <= self.high
        return "fitted" if self.fitted else "within" if inside else "miss"

    def as_json(self) -> dict[str, Any]:
        """Return all fields, with error and verdict; a number as a number, an empty mesh or count of tokens as None.

        A range of published numbers, two meshes, and the tokens of a prompt with its answer stay texts.
        """
        texts = {name: _number(getattr(self, name)) for name in ("mesh", "tokens", "published")}
        return vars(self) | texts | {"error": self.error, "verdict": self.verdict}


def _number(text: str) -> float | str | None:
    """Return the number that a text is, the text if it is none, None if it is empty."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text or None


@dataclass(frozen=True)
class Summary:
    """The cells of one table: how many are fitted or held out, and the errors of the held-out ones.

    A statement of the text is one cell, however many sizes it is compared at, and has no mean error.
    """

    name: str
    cells: int
    fitted: int
    held_out: int
    within: int
    misses: int
    mean_error: float | None
    worst_error: float | None


def summaries(of: Iterable[Cell]) -> list[Summary]:
    """Return the summaries of all tables of cells, in their order."""
    tables: dict[str, dict[object, Cell]] = {}
    for number, cell in enumerate(of):
        own = tables.setdefault(cell.table, {})
        key = cell.what if cell.table == "text" else number
        own[key] = max(own.get(key, cell), cell, key=lambda each: (each.verdict == "miss", abs(each.error)))
    found = []
    for table, cells in tables.items():
        counts = Counter(cell.verdict for cell in cells.values())
        held_out = [cell for cell in cells.values() if not cell.fitted]
        errors = [abs(cell.error) for cell in held_out if not cell.is_range]
        mean, worst = (fmean(errors), max(errors)) if errors else (None, None)
        found.append(
            Summary(
                NAMES.get(table, table), len(cells), counts["fitted"], len(held_out), counts["within"], counts["miss"],
                mean, worst,
            )
        )  # fmt: skip
    return found
