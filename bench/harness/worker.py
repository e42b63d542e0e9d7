"""A worker of bench/gpu.py: it times the rows that have not ended in the file yet, until the time is up.

The rows of a group are timed in turns. One that fails, or did not end where a worker died, is tried again alone.

python bench/harness/worker.py DEVICE FILE UNTIL
"""

import math
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import limits
import timing
from cases import UnavailableError, free
from order import Timed, on_a_gpu, rehearsed
from supervise import Clock, Row, read, write


def work(groups: Iterable[list[Timed]], device: str, file: Path, until: float, clock: Clock = time) -> None:
    """Time groups of rows and write a line as each begins and ends; stop when the device refuses to go on."""
    for group in groups:
        while rows := following(group, read(file)):
            if clock.time() > until:
                return
            patience = max(row.patience for row in rows) if timing.is_cuda(device) else math.inf
            write(file, begun=[row.name for row in rows], patience=patience)
            failed = False
            for row, line in zip(rows, in_turns(rows, device, partial(write, file, alive=True)), strict=True):
                failed |= "error" in line
                if "error" not in line or len(rows) == 1:
                    write(file, row=row.name, **line)
            if failed and timing.broken(device):
                return
            free(device)


def following(group: list[Timed], lines: list[Row]) -> list[Timed]:
    """Return the rows of a group to time next: those that no one began, or one that began and did not end."""
    begun = {name for line in lines for name in line.get("begun", ())}
    ended = {line.get("row") for line in lines}
    left = [row for row in group if row.name not in ended]
    return [row for row in left if row.name not in begun] or left[:1]


def in_turns(rows: list[Timed], device: str, heard: Callable[[], object] = lambda: None) -> list[Row]:
    """Time rows in turns and return the line of each; `heard` is called as each is ready, where its patience ends."""
    timings, lines = [row.run(device) for row in rows], list[Any]()
    for one in timings:
        lines.append(_tried(partial(next, one)))
        heard()
    ready = [line for line in lines if isinstance(line, timing.Runs)]
    with timing.clocks(device) as clocks:
        times = _tried(partial(timing.measure, device, ready)) if ready else []
    if isinstance(times, dict):  # a row failed while it was timed
        return [times if isinstance(line, timing.Runs) else line for line in lines]
    for number, line in enumerate(lines):
        if isinstance(line, timing.Runs):
            lines[number] = _tried(partial(timings[number].send, times.pop(0)))
            lines[number].get("extra_info", {}).update(clocks)
    return lines


def _tried(step: Callable[[], Any]) -> Any:
    """Return the result of a step, the record of a row that ends with it, or a line that says why there is none."""
    torch.manual_seed(0)
    try:
        return step()
    except StopIteration as end:
        return end.value
    except UnavailableError as why:
        return {"not_measured": str(why)}
    except Exception as error:  # the next row may do well
        return {"error": " ".join(f"{type(error).__name__}: {error}".split())[:2000]}


def main(device: str, file: str, until: str) -> None:
    torch.set_num_threads(1)
    if device == "cpu":  # a rehearsal shows that rows run
        timing.LONGEST, limits.COPIED, limits.MATRIX["cpu"] = 0.0, 0, 64
    work(rehearsed() if device == "cpu" else on_a_gpu(), device, Path(file), float(until))


if __name__ == "__main__":
    main(*sys.argv[1:])
