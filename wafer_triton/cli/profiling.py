"""Where emulation time goes, by torch's own profiler. Wafer time is never in its trace."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from wafer_triton.errors import writing

STEPS = 2  # decode steps that are profiled, as each is thousands of events


@contextmanager
def profiled(path: Path | None) -> Iterator[Callable[[], object]]:
    """Profile the steps of the block into a trace at `path` (None: no profile); yields a function to call after each.

    Raises OSError for a path that cannot be written.
    """
    if path is None:
        yield lambda: None
        return
    from torch.profiler import profile, schedule

    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own lines would stand in the middle of the text

    def export(done: Any) -> None:
        with TemporaryDirectory() as folder, writing(path):
            made = Path(folder) / "trace.json"  # torch renames a file of its own to the path, were it a device
            done.export_chrome_trace(str(made))
            path.write_bytes(made.read_bytes())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a trace that begins with the first step is meant
        plan = schedule(wait=0, warmup=0, active=STEPS, repeat=1)
    with profile(schedule=plan, on_trace_ready=export) as profiler:
        yield profiler.step
