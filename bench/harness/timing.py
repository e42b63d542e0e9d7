"""Times on the device that runs, see `compare.timing`, over inputs that take turns."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from wafer_triton.compare.timing import LONGEST, Run, RunTimes, captured, elapsed, is_cuda, synchronize, timed

__all__ = ["broken", "cache_bytes", "captured", "elapsed", "fastest", "is_cuda", "measure", "sets"]


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


def measure(device: str, runs: Sequence[Run], graph: bool = True) -> RunTimes:
    """Time `runs`, each on inputs of its own, one after the other; the seconds are of one of them.

    Without a `graph` the time of the host is in it.
    """
    times = timed(device, lambda: [run() for run in runs], LONGEST, graph)
    return replace(times, seconds=times.seconds / len(runs), least=times.least / len(runs))


def sets(device: str, footprint: int, most: int = 32) -> int:
    """Return how many sets of inputs take turns, so that together they are three times the last cache."""
    return max(1, min(most, math.ceil(3 * cache_bytes(device) / footprint)))


def cache_bytes(device: str) -> int:
    """Return the bytes of the GPU's L2, or about the bytes of a CPU core's own cache."""
    return torch.cuda.get_device_properties(device).L2_cache_size if is_cuda(device) else 2**20
