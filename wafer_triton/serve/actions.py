"""The actions of a simulation in their order, which `models.serve` runs with values."""

from __future__ import annotations

from collections import Counter
from typing import Any

from wafer_triton.serve.pipeline import Pipeline


class Actions:
    """A record of ("prefill", request, past, tokens), ("join", request, slot) and ("steps", {request: steps}).

    A `slot` is the number of a sequence in the batch. ("end", request) and ("preempt", request) follow the last steps
    of a request. Without `keep` nothing is recorded.
    """

    def __init__(self, pipeline: Pipeline, keep: bool) -> None:
        self.all: list[tuple[Any, ...]] = []
        self._pipeline, self._keep = pipeline, keep
        self._noted = Counter[int]()  # steps of a running sequence that are recorded

    def note(self, what: str, number: int, *about: Any) -> None:
        """Record an action, after the steps before it."""
        if self._keep:
            self.steps()
            self.all.append((what, number, *about))

    def steps(self) -> None:
        """Record the decode steps since the last action."""
        if not self._keep:
            return
        done = Counter({number: self._pipeline.done(running) for number, running in self._pipeline.running.items()})
        if steps := done - self._noted:
            self._noted += steps
            self.all.append(("steps", dict(steps)))

    def leave(self, number: int) -> None:
        """Record the steps of all sequences before one leaves decode."""
        self.steps()
        self._noted.pop(number, None)
