"""Time on the device that runs: one clock for CPU and GPU, CUDA graphs, and runs over inputs that take turns.

pytest-benchmark keeps the statistics, but its own timer reads the host, which a GPU runs ahead of. So benchmarks give
it `CLOCK`, which stands still but for the seconds that CUDA events (on a CPU: `perf_counter`) measured inside a round.
"""

import math
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch

Run = Callable[[], object]
SHORTEST = {"cuda": 2e-3, "cpu": 2e-2}  # seconds of one timed round at the least: events resolve half a microsecond
LONGEST = 1.0  # seconds that all rounds of one case take, about
ROUNDS = (3, 30)


class Clock:
    """A timer that moves by measured seconds alone."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


CLOCK = Clock()


def is_cuda(device: str) -> bool:
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
    return begin.elapsed_time(end) / 1e3


def synchronize(device: str) -> None:
    if is_cuda(device):
        torch.cuda.synchronize()


def broken(device: str) -> bool:
    """Return whether the device runs nothing more in this process, as after a GPU's illegal memory access."""
    try:
        torch.ones(1, device=device).add_(1)
        synchronize(device)
    except RuntimeError:
        return True
    return False


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
    times = max(1, min(1000, math.ceil(SHORTEST[torch.device(device).type] / once)))

    def timed() -> None:
        CLOCK.seconds += elapsed(device, lambda: [replay() for _ in range(times)]) / (times * len(runs))

    rounds = max(ROUNDS[0], min(ROUNDS[1], int(LONGEST / (once * times))))
    benchmark.pedantic(timed, rounds=rounds, warmup_rounds=1)
    return how


def sets(device: str, footprint: int, most: int = 32) -> int:
    """Return how many sets of inputs take turns, so that together they are three times the last cache."""
    return max(1, min(most, math.ceil(3 * cache_bytes(device) / footprint)))


def cache_bytes(device: str) -> int:
    """Return the bytes of the GPU's L2, or about the bytes of a CPU core's own cache."""
    return torch.cuda.get_device_properties(device).L2_cache_size if is_cuda(device) else 2**20
