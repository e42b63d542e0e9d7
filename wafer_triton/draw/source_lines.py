"""Source lines for the slices of a trace: the lines of code that made the rounds of a schedule."""

from __future__ import annotations

from collections.abc import Iterable

from wafer_triton.schedule.rounds import Round


def of_rounds(rounds: Iterable[Round]) -> str:
    """Return the source lines of rounds, each once, with commas between them."""
    return ", ".join(dict.fromkeys(round_.source for round_ in rounds))


def joined(texts: Iterable[str]) -> str:
    """Return the source lines of several texts, each once."""
    return ", ".join(dict.fromkeys(line for text in texts for line in text.split(", ") if line))
