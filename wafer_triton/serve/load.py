"""The load that a placement for serving must hold, and the sizes that a user gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wafer_triton.cost.placement import ExpertPlacement
from wafer_triton.errors import ShapeError, check_counts
from wafer_triton.shape.decoder import DecoderShape

MOST_BATCH = 65_536  # sequences in decode, each of which has a slot


@dataclass(frozen=True)
class Load:
    """The sizes that a placement must hold, and the mean request that it is chosen for, all in tokens but `batch`.

    Up to `batch` sequences of at most `context` tokens decode together, `at_once` of them in a group. Prefill takes as
    many tokens as decode, as it redoes a preempted sequence. Raises ShapeError for a size below 1.
    """

    batch: int
    context: int
    input: int  # of the mean request
    output: int
    at_once: int = 1

    def __post_init__(self) -> None:
        check_counts(**vars(self))
        if self.batch > MOST_BATCH:
            raise ShapeError(f"batch = {self.batch:,} is more than the {MOST_BATCH:,} sequences that are taken here")


@dataclass(frozen=True)
class Given:
    """The sizes that a user gives; a size of None is chosen by price."""

    prefill_mesh: Any = None
    decode_mesh: Any = None
    columns: int | None = None  # of prefill, with policy split
    caches: int | None = None  # sequences of `context` tokens that the caches hold
    experts: ExpertPlacement = None  # of a mixture in prefill; None has each on the whole mesh

    def __post_init__(self) -> None:
        sizes = {"columns": self.columns, "caches": self.caches}
        check_counts(**{name: size for name, size in sizes.items() if size is not None})

    def where(self, shape: DecoderShape) -> ExpertPlacement:
        """Return the placement of a mixture's experts; None for a model without experts."""
        return "spread" if self.experts is None and shape.experts is not None else self.experts


LEFT_TO_PRICES = Given()  # no size is given
