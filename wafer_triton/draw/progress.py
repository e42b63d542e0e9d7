"""Progress on stderr: bars with the time that is left on a terminal, else plain lines."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

TENTHS = 10  # plain lines of one thing, at most


class Progress:
    """Reports of `(name, done, total)`, a bar or some lines for each name; a terminal is clean on exit.

    With `brief` bars go at the end, and there are no lines.
    """

    def __init__(self, brief: bool = False) -> None:
        self._brief = brief
        self._bars = _bars(brief) if sys.stderr is not None and sys.stderr.isatty() else None
        self._tasks: dict[str, Any] = {}
        self._told: dict[str, int] = {}

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bars is not None and self._bars.live.is_started:
            self._bars.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._bars is None:
            self._line(what, done, total)
            return
        if what not in self._tasks:
            self._bars.start()  # here, as bars without a task would leave an empty line
            self._tasks[what] = self._bars.add_task(what, total=total)
        self._bars.update(self._tasks[what], completed=done)

    def _line(self, what: str, done: int, total: int) -> None:
        """Print a line whenever another tenth is done."""
        tenth = TENTHS * done // total if total else TENTHS
        if not self._brief and (tenth > self._told.get(what, 0) or done == total):
            self._told[what] = tenth % TENTHS  # the same work may begin anew
            print(f"{what}: {done:,} of {total:,}", file=sys.stderr, flush=True)


def _bars(transient: bool) -> Any:
    from rich import progress
    from rich.console import Console

    return progress.Progress(
        progress.TextColumn("{task.description:16}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(elapsed_when_finished=True),
        console=Console(stderr=True),
        transient=transient,
    )
