"""Times of rows on the device that runs, see `compare.timing`: rows of a group in turns, over inputs in turns.

A row is a generator: it checks itself, yields its `Runs`, is sent their times, and returns its record.
"""

import math
import subprocess
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from shutil import which
from statistics import median
from typing import Any, NamedTuple

import torch

from wafer_triton.compare.timing import (
    LONGEST,
    ROUNDS,
    Run,
    RunTimes,
    captured,
    elapsed,
    is_cuda,
    repeats,
    synchronize,
)

__all__ = [
    "Runs",
    "Timing",
    "broken",
    "cache_bytes",
    "captured",
    "clocks",
    "elapsed",
    "fastest",
    "is_cuda",
    "measure",
    "sets",
]


def broken(device: str) -> bool:
    """Return whether the device runs nothing more in this process, as after a GPU's illegal memory access."""
    try:
        torch.ones(1, device=device).add_(1)
        synchronize(device)
    except RuntimeError:
        return True
    return False


def fastest(device: str, runs: Sequence[Run]) -> int:
    """Return the position of the fastest of several ways to do the same, without ways that the device refuses."""
    seconds = []
    for run in runs:
        try:
            run()
            synchronize(device)
            seconds.append(min(elapsed(device, lambda: [run() for _ in range(3)]) for _ in range(3)))  # noqa: B023
        except (RuntimeError, TypeError):
            if broken(device):
                raise
            seconds.append(math.inf)
    assert min(seconds) < math.inf, "no way works"
    return seconds.index(min(seconds))


class Runs(NamedTuple):
    """What a row times: `runs` one after the other, each on inputs of its own.

    Without a `graph` the time of the host is in it. `once`: a round has one run, as a sequence has few steps.
    """

    runs: Sequence[Run]
    graph: bool = True
    once: bool = False


Timing = Generator[Runs, RunTimes, dict[str, Any]]


def measure(device: str, rows: Sequence[Runs]) -> list[RunTimes]:
    """Time rows in turns, and return the times of one run of each: a round times every row, at the same clocks."""
    ways: list[tuple[Run, str, float, int]] = []
    for row in rows:
        every = lambda runs=row.runs: [run() for run in runs]  # noqa: E731
        replay, how = captured(device, every) if row.graph else (every, "calls")
        seconds = [elapsed(device, replay) for _ in range(2 + (not row.graph))][-2:]
        ways.append((replay, how, min(seconds), 1 if row.once else repeats(device, min(seconds), LONGEST)[0]))
    least, most = ROUNDS
    turn = sum(once * times for _, _, once, times in ways)
    rounds = max(least, min(most, int(LONGEST * len(rows) / turn))) if turn else most
    turns = [
        [elapsed(device, lambda: [replay() for _ in range(times)]) / times for replay, _, _, times in ways]  # noqa: B023
        for _ in range(rounds)
    ]
    return [
        RunTimes(median(seconds) / len(row.runs), min(seconds) / len(row.runs), rounds, how)
        for row, (_, how, _, _), seconds in zip(rows, ways, zip(*turns, strict=True), strict=True)
    ]


@contextmanager
def clocks(device: str) -> Iterator[dict[str, Any]]:
    """Fill a record while a GPU is timed: its least and greatest SM clock, and what held it back, by nvidia-smi."""
    facts: dict[str, Any] = {}
    if not is_cuda(device) or which("nvidia-smi") is None:
        yield facts
        return
    gpu = torch.cuda.get_device_properties(device).uuid
    query = ["--query-gpu=clocks.sm,clocks_event_reasons.active", "--format=csv,noheader,nounits", "-lms", "100"]
    smi = subprocess.Popen(["nvidia-smi", f"--id=GPU-{gpu}", *query], stdout=subprocess.PIPE, text=True)
    try:
        yield facts
    finally:
        smi.terminate()
        lines = smi.communicate()[0].rpartition("\n")[0].splitlines()  # the last may be half-written
        samples = [line.split(", ") for line in lines if line[:1].isdigit()]
        if samples:
            mhz, reasons = zip(*samples, strict=True)
            facts |= {"sm_mhz": [min(map(int, mhz)), max(map(int, mhz))], "clock_reasons": sorted({*reasons})}


def sets(device: str, footprint: int, most: int = 32) -> int:
    """Return how many sets of inputs take turns, so that together they are three times the last cache."""
    return max(1, min(most, math.ceil(3 * cache_bytes(device) / footprint)))


def cache_bytes(device: str) -> int:
    """Return the bytes of the GPU's L2, or about the bytes of a CPU core's own cache."""
    return torch.cuda.get_device_properties(device).L2_cache_size if is_cuda(device) else 2**20
