"""A cell of the paper's tables beside its predictions, its verdict, and summaries of many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean
from typing import Any

TABLES = ("2", "3", "4", "5", "6", "7, 8", "text")
NAMES = {
    "2": "requests", "3": "prefill", "4": "decode", "5": "tokens of a KV cache", "6": "GEMV, time and energy",
    "7, 8": "energy of prefill and decode", "text": "how much faster",
}  # fmt: skip
VERDICTS = {
    "fitted": "the constants are fitted on it",
    "within": "not fitted, and within the error band",
    "miss": "not fitted, and outside of the band; without a band, off by more than 1 %",
    "context": "not predicted: a GPU's, or one of T10 or Ladder, whose programs on a wafer are not published",
}
COUNTED = 0.01  # the relative error that a cell without a band may have


@dataclass(frozen=True)
class Cell:
    """A number of the paper, with its predictions by the paper's own program and by the full one, in `unit`.

    `low` and `high` are the published number as it is rounded, or the ends of a range. `band` is the share by which
    a measurement may differ from the first prediction; None without a calibration. The full program takes the prompt
    in `full_chunks` chunks, None where there is no prefill.
    """

    table: str
    what: str
    model: str
    system: str
    mesh: str
    tokens: str
    unit: str
    published: str
    low: float
    high: float
    fitted: bool = False
    predicted: float | None = None
    full: float | None = None
    band: float | None = None
    note: str = ""
    full_chunks: int | None = None

    @property
    def error(self) -> float | None:
        """The prediction of the paper's program over the published number, less 1; of a range over its nearer end."""
        if self.predicted is None:
            return None
        if "to" in self.published:
            return self.predicted / min(max(self.predicted, self.low), self.high) - 1
        return self.predicted / float(self.published) - 1

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`."""
        if self.predicted is None:
            return "context"
        if self.fitted:
            return "fitted"
        share = self.band or COUNTED
        return (
            "within"
            if self.low <= self.predicted * (1 + share) and self.predicted * (1 - share) <= self.high
            else "miss"
        )

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
    """The cells of one kind, and the mean and worst size of errors of the cells that are not fitted."""

    name: str
    cells: int
    fitted: int
    within: int
    misses: int
    mean_error: float | None
    worst_error: float | None


def summaries(of: Iterable[Cell]) -> list[Summary]:
    """Return the summaries of all kinds of cells that are predicted, in the order of the tables."""
    kinds: dict[str, list[Cell]] = {}
    for cell in of:
        if cell.verdict != "context":
            table = f"table {cell.table}" if cell.table != "text" else "text"
            kinds.setdefault(f"{table}: {NAMES[cell.table]}", []).append(cell)
    found = []
    for name, own in kinds.items():
        counts = Counter(cell.verdict for cell in own)
        errors = [abs(cell.error) for cell in own if cell.verdict != "fitted" and cell.error is not None]
        mean, worst = (fmean(errors), max(errors)) if errors else (None, None)
        found.append(Summary(name, len(own), counts["fitted"], counts["within"], counts["miss"], mean, worst))
    return found
