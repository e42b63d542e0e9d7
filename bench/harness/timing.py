"""Time on the device that runs, see `compare.timing`, for pytest-benchmark and runs over inputs that take turns.

pytest-benchmark keeps the statistics, but its own timer reads the host, which a GPU runs ahead of. So benchmarks give
it `CLOCK`, which stands still but for the seconds that CUDA events (on a CPU: `perf_counter`) measured inside a round.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch

from wafer_triton.compare.timing import LONGEST, Run, captured, elapsed, is_cuda, repeats, synchronize


class Clock:
    """A timer that moves by measured seconds alone."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


CLOCK = Clock()


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


def measure(benchmark: Any, device: str, runs: Sequence[Run], graph: bool = True) -> str:
    """Time `runs`, each on inputs of its own, one after the other; the benchmark records seconds per run.

    Without a `graph` the time of the host is in it. Returns how they were timed.
    """
    replay, how = lambda: [run() for run in runs], "calls"
    if graph:
        replay, how = captured(device, replay)
    replay()
    once = min(elapsed(device, replay) for _ in range(2))
    times, rounds = repeats(device, once, LONGEST)

    def timed() -> None:
        CLOCK.seconds += elapsed(device, lambda: [replay() for _ in range(times)]) / (times * len(runs))

    benchmark.pedantic(timed, rounds=rounds, warmup_rounds=1)
    return how


def sets(device: str, footprint: int, most: int = 32) -> int:
    """Return how many sets of inputs take turns, so that together they are three times the last cache."""
    return max(1, min(most, math.ceil(3 * cache_bytes(device) / footprint)))


def cache_bytes(device: str) -> int:
    """Return the bytes of the GPU's L2, or about the bytes of a CPU core's own cache."""
    return torch.cuda.get_device_properties(device).L2_cache_size if is_cuda(device) else 2**20
