"""Progress on stderr: bars on a terminal (with rich, of `pip install wafer-triton[models]`), else plain lines."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter
from types import TracebackType
from typing import Any

TENTHS = 10  # plain lines of one thing, at most
LONG = 20.0  # seconds from which on an estimate is printed
PACE, FEW = 1.0, 5  # seconds and parts of a run, at least, that a pace is taken of


class Progress:
    """Reports of `(name, done, total)`, a bar or some lines for each name; a terminal is clean on exit.

    With `brief`, work that takes less than `LONG` seconds, as announced, is not reported.
    With `paced`, a run is announced once, as soon as its rest is long. The rest follows from the pace of its last parts
    by `clock`, in seconds (None: `perf_counter`).
    """

    def __init__(self, brief: bool = False, paced: bool = False, clock: Callable[[], float] | None = None) -> None:
        self._brief, self._paced, self._clock = brief, paced, clock or perf_counter
        self._since: tuple[float, int] | None = None  # time and number of parts from which on a pace is taken
        self._bars = _bars() if sys.stderr is not None and sys.stderr.isatty() else None
        self._tasks: dict[str, Any] = {}
        self._told: dict[str, int] = {}

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bars is not None and self._bars.live.is_started:
            self._bars.stop()

    def announce(self, seconds: float) -> None:
        """Print about how long the work will take here, if that is long."""
        self._brief = self._brief and seconds < LONG
        if seconds >= LONG:
            print(
                f"this takes about {duration(seconds)} on a machine such as a laptop, which is not time on the wafer; "
                f"a smaller mesh or fewer tokens take less, Ctrl-C ends it",
                file=sys.stderr,
                flush=True,
            )

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._paced:
            self._keep_pace(done, total)
        if self._brief:
            return
        if self._bars is None:
            self._line(what, done, total)
            return
        if what not in self._tasks:
            self._bars.start()  # here, as bars without a task would leave an empty line
            self._tasks[what] = self._bars.add_task(what, total=total)
        self._bars.update(self._tasks[what], completed=done)

    def _keep_pace(self, done: int, total: int) -> None:
        now = self._clock()
        if self._since is None:  # the first part pays for imports and caches
            self._since = now, done
            return
        seconds, parts = now - self._since[0], done - self._since[1]
        if seconds >= (PACE if parts >= FEW else LONG):
            rest = (total - done) * seconds / parts
            self._since = now, done
            self._paced = rest < LONG
            self.announce(rest)

    def _line(self, what: str, done: int, total: int) -> None:
        """Print a line whenever another tenth is done."""
        tenth = TENTHS * done // total if total else TENTHS
        if tenth > self._told.get(what, 0) or done == total:
            self._told[what] = tenth % TENTHS  # the same work may begin anew
            print(f"{what}: {done:,} of {total:,}", file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Return a long time in the unit that people use for it, one digit or two."""
    units = ((86400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds"))
    size, unit = next((size, unit) for size, unit in units if seconds >= 2 * size or size == 1)
    return f"{float(f'{seconds / size:.2g}'):,.0f} {unit}"


def _bars() -> Any:
    """Return bars of rich, or None where it is not installed."""
    try:
        from rich import progress
        from rich.console import Console
    except ImportError:
        return None
    return progress.Progress(
        progress.TextColumn("{task.description:16}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        console=Console(stderr=True),
    )
