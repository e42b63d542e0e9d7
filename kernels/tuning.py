"""The fastest of several ways to launch a kernel on this GPU, found by trials once and kept on disk.

A way is a launch's parameters by name, such as the sizes of its blocks. A trial times every way. It is repeated until
two successive trials agree, as the clock of a GPU that wakes up favours the later ways.

The file is one per GPU and Triton version, in `$WAFER_TRITON_CACHE` (default ~/.cache/wafer_triton). With
WAFER_TRITON_TUNE=0, under the interpreter, and while a CUDA graph is recorded, the first way is taken and nothing is
tried.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
import triton

from wafer_triton.kernels._common import COMPILING, INTERPRET

Way = dict[str, Any]
TRIALS = (20, 20, 40, 80)  # milliseconds for which each way runs, trial by trial
_REFUSED = (
    triton.CompilationError, triton.runtime.errors.OutOfResources, triton.runtime.errors.PTXASError,
    torch.cuda.OutOfMemoryError,
)  # fmt: skip


def best(key: tuple[Any, ...], ways: Sequence[Way], launch: Callable[[Way], None], device: torch.device) -> Way:
    """Return the fastest of `ways` for this key; a way that does not compile or fit on this GPU is passed over."""
    if INTERPRET or device.type != "cuda" or os.environ.get("WAFER_TRITON_TUNE") == "0":
        return ways[0]
    name = " ".join(map(str, key))
    path = _path(torch.cuda.get_device_name(device))
    known = _read(path)
    if name in known and known[name] in ways:
        return known[name]
    if COMPILING.get():  # so that a later trial finds all ways compiled
        for way in ways[1:]:
            launch(way)
        return ways[0]
    if torch.cuda.is_current_stream_capturing():
        return ways[0]
    found = stable(ways, lambda way, rep: triton.testing.do_bench(lambda: launch(way), warmup=rep / 4, rep=rep))
    known[name] = found
    with suppress(OSError):  # a home that cannot be written to: known for this process only
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(f".{os.getpid()}")  # no other process reads half a file
        beside.write_text(json.dumps(known, indent=1, sort_keys=True))
        beside.replace(path)
    return found


def stable(ways: Sequence[Way], milliseconds: Callable[[Way, int], float]) -> Way:
    """Return the way that is fastest in two successive trials; if there is none, the fastest of the last trial.

    `milliseconds` times a way that runs for a number of milliseconds of `TRIALS`. Passes over ways that fail; if all
    fail, raises the last failure.
    """
    found: Way | None = None
    for rep in TRIALS:
        times, failure = list[tuple[float, int]](), Exception()
        for number, way in enumerate(ways):
            try:
                times.append((milliseconds(way, rep), number))
            except _REFUSED as error:
                failure = error
        if not times:
            raise failure
        before, found = found, ways[min(times)[1]]
        if found == before:
            break
    assert found is not None
    return found


def _path(gpu: str) -> Path:
    folder = os.environ.get("WAFER_TRITON_CACHE") or Path.home() / ".cache" / "wafer_triton"
    return Path(folder) / f"tuned-{re.sub(r'[^A-Za-z0-9]+', '-', gpu)}-triton-{triton.__version__}.json"


@cache
def _read(path: Path) -> dict[str, Way]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):  # none yet, or half written: it is only a cache
        return {}
    return found if isinstance(found, dict) else {}
