"""Where emulation time goes, by torch's own profiler. Wafer time is never in its trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from wafer_triton.errors import writing

STEPS = 2  # decode steps that are profiled, as each is thousands of events


@contextmanager
def profiled(path: Path | None) -> Iterator[Callable[[], object]]:
    """Profile what runs into a trace at `path`, or nothing for None; what it yields is called after each step.

    Raises OSError for a path that cannot be written, before a step runs.
    """
    if path is None:
        yield lambda: None
        return
    from torch.profiler import profile, schedule

    with writing(path):
        path.touch()
    plan = schedule(wait=0, warmup=0, active=STEPS, repeat=1)
    with profile(schedule=plan, on_trace_ready=lambda done: done.export_chrome_trace(str(path))) as profiler:
        yield profiler.step
