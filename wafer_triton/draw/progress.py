"""Progress bars on stderr while a model is loaded and run (needs rich: `pip install wafer-triton[models]`)."""

from __future__ import annotations

from types import TracebackType

from rich import progress
from rich.console import Console


class Progress:
    """Bars on stderr, one for each thing that is reported as `(what, done, total)`; the terminal is clean on exit."""

    def __init__(self) -> None:
        self._bars = progress.Progress(
            progress.TextColumn("{task.description:16}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            console=Console(stderr=True),
        )
        self._tasks: dict[str, progress.TaskID] = {}

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bars.live.is_started:
            self._bars.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        if what not in self._tasks:
            self._bars.start()  # here, as bars without a task would leave an empty line
            self._tasks[what] = self._bars.add_task(what, total=total)
        self._bars.update(self._tasks[what], completed=done)
