"""Time of this machine: one clock for CPU and GPU, CUDA graphs, and rounds that are long enough for it.

A GPU runs while the host goes on, so its times are of CUDA events; times of a CPU are of `perf_counter`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch

Run = Callable[[], object]
SHORTEST = {"cuda": 2e-3, "cpu": 2e-2}  # seconds of one timed round at the least: events resolve half a microsecond
LONGEST = 1.0  # seconds that all rounds of one case take, about
ROUNDS = (3, 30)


@dataclass(frozen=True)
class RunTimes:
    """Seconds of a run, the median and the least of some rounds, each of several runs.

    `how` says whether calls or a graph were timed.
    """

    seconds: float
    least: float
    rounds: int
    how: str


def is_cuda(device: str) -> bool:
    """Return whether a torch device is a GPU."""
    return torch.device(device).type == "cuda"


def elapsed(device: str, run: Run) -> float:
    """Return the seconds that the device takes for `run`."""
    if not is_cuda(device):
        begun = perf_counter()
        run()
        return perf_counter() - begun
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def synchronize(device: str) -> None:
    """Wait until the device has done everything."""
    if is_cuda(device):
        torch.cuda.synchronize()


def captured(device: str, run: Run) -> tuple[Run, str]:
    """Return a replay of `run` as a CUDA graph, and a word for it; `run` itself on a CPU or where capture fails."""
    run()  # compiles kernels
    synchronize(device)
    if not is_cuda(device):
        return run, "run"
    graph = torch.cuda.CUDAGraph()
    try:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            run()
    except RuntimeError as refused:  # the case is still worth a time, which says that launches are in it
        return run, f"launches, not a graph: {str(refused).splitlines()[0]}"
    return graph.replay, "graph replay"


def repeats(device: str, once: float, longest: float) -> tuple[int, int]:
    """Return the runs of a round and the rounds, for a run of `once` seconds and `longest` seconds in all, about."""
    times = max(1, min(1000, math.ceil(SHORTEST[torch.device(device).type] / once)))
    return times, max(ROUNDS[0], min(ROUNDS[1], int(longest / (once * times))))


def timed(device: str, run: Run, longest: float = LONGEST) -> RunTimes:
    """Return the times of a run on a device, after a first run that does not count."""
    replay, how = captured(device, run)
    once = min(elapsed(device, replay) for _ in range(2))
    times, rounds = repeats(device, once, longest)
    seconds = [elapsed(device, lambda: [replay() for _ in range(times)]) / times for _ in range(rounds)]
    return RunTimes(median(seconds), min(seconds), rounds, how)
