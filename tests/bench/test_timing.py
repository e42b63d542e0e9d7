"""The timing of bench/: runs, inputs and graphs, and the facts about a GPU in the record of a case."""

import os
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch

import cases
import limits
import timing
from clock import Clock
from wafer_triton import ops
from wafer_triton.compare import timing as clocks


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Replace the host's clock by one that only a run's sleep advances."""
    clock = Clock()
    monkeypatch.setattr(clocks, "perf_counter", clock.time)
    return clock


def test_a_time_is_of_one_run_of_all_that_take_turns(clock):
    runs = []
    times = timing.measure("cpu", [lambda: runs.append(clock.sleep(0.5)), lambda: runs.append(clock.sleep(1.5))])
    assert (times.seconds, times.least, times.how) == (pytest.approx(1), pytest.approx(1), "run")
    assert len(runs) == 2 * (1 + 2 + times.rounds), "the first turn does not count, the next two say how long one is"
    calls = timing.measure("cpu", [lambda: clock.sleep(0.5)], graph=False)
    assert (calls.seconds, calls.how) == (pytest.approx(0.5), "calls")


@pytest.mark.parametrize(("seconds", "times"), [(1e-9, 1000), (1e-3, 20), (0.5, 1)])
def test_short_runs_are_repeated_until_they_can_be_timed(seconds, times):
    assert clocks.repeats("cpu", seconds, 1.0)[0] == times, "until they take 20 ms, or are a thousand"


def test_times_are_the_median_and_the_least_of_rounds(clock):
    seconds = iter(
        [9.0, 0.5, 0.5, 0.7, 0.5, 0.6, 0.9]
    )  # the first run does not count, the next two say how long one is
    times = clocks.timed("cpu", lambda: clock.sleep(next(seconds)), longest=2)
    assert (times.seconds, times.least) == (pytest.approx(0.65), pytest.approx(0.5))
    assert (times.rounds, times.how) == (4, "run")


def test_the_fastest_way_is_chosen_and_a_refused_one_is_none(clock):
    def refused():
        raise RuntimeError("not here")

    assert timing.fastest("cpu", [refused, lambda: clock.sleep(0.02), lambda: clock.sleep(0.01)]) == 2
    with pytest.raises(AssertionError, match="no way works"):
        timing.fastest("cpu", [refused])


def test_a_gpu_that_refuses_to_go_on_ends_the_trial(monkeypatch):
    def fatal(device="cpu"):
        monkeypatch.setattr(timing, "synchronize", fatal)
        raise RuntimeError("an illegal memory access was encountered")

    assert not timing.broken("cpu")
    with pytest.raises(RuntimeError, match="illegal memory access"):
        timing.fastest("cpu", [lambda: None, fatal])


def test_sets_of_inputs_outgrow_the_cache():
    cache = timing.cache_bytes("cpu")
    assert timing.sets("cpu", cache) == 3 and timing.sets("cpu", 4 * cache) == 1 and timing.sets("cpu", 1) == 32


class Graphs:
    """Stands in for torch.cuda where the code of a GPU's branch is to run on a CPU: recorded calls, no GPU.

    Its events read a clock of its own, which `tick` seconds pass on at each event.
    """

    Properties = SimpleNamespace(L2_cache_size=2**20, multi_processor_count=2)

    def __init__(self, tick=0.0):
        self.captured, self.recording, self.clock, self.tick = [], None, Clock(), tick

    class Stream:
        def wait_stream(self, other):
            pass

    def graph(self, graph):
        @contextmanager
        def capture():
            self.recording = graph
            yield
            self.recording = None

        return capture()

    def patch(self, monkeypatch):
        graphs = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                graphs.clock.sleep(graphs.tick)
                self.seconds = graphs.clock.time()

            def synchronize(self):
                pass

            def elapsed_time(self, end):
                return (end.seconds - self.seconds) * 1e3

        class CUDAGraph:
            def __init__(self):
                self.runs = []
                graphs.captured.append(self)

            def replay(self):
                for run in self.runs:
                    run()

        for name, value in {
            "Event": Event, "Stream": self.Stream, "CUDAGraph": CUDAGraph, "graph": self.graph,
            "current_stream": self.Stream, "synchronize": lambda: None, "stream": lambda stream: nullcontext(),
            "get_device_properties": lambda device=0: self.Properties, "is_available": lambda: True,
            "empty_cache": lambda: None,
        }.items():  # fmt: skip
            monkeypatch.setattr(torch.cuda, name, value)
        for module in (clocks, timing, limits, cases):
            monkeypatch.setattr(module, "is_cuda", lambda device: True)
        monkeypatch.setitem(clocks.SHORTEST, "cpu", clocks.SHORTEST["cuda"])

    def run(self, what):
        """Return a run that is only recorded while a graph is captured, as on a GPU."""

        def one():
            if self.recording is None:
                return what()
            return self.recording.runs.append(what)

        return one


def test_on_a_gpu_runs_are_timed_by_events_around_replays_of_one_graph(monkeypatch):
    graphs, count = Graphs(), [0, 0]
    graphs.patch(monkeypatch)

    def add(which):
        count[which] += 1
        graphs.clock.sleep(0.001)

    times = timing.measure("cpu", [graphs.run(lambda: add(0)), graphs.run(lambda: add(1))])
    assert times.how == "graph replay" and len(graphs.captured) == 1 and len(graphs.captured[0].runs) == 2
    assert count[0] == count[1] > 3 and times.seconds == pytest.approx(0.001)


def test_a_run_that_cannot_be_captured_is_timed_eagerly(monkeypatch):
    graphs = Graphs()
    graphs.patch(monkeypatch)

    def run():
        if graphs.recording:
            raise RuntimeError("operation not permitted when stream is capturing")

    replay, how = timing.captured("cpu", run)
    assert replay is run and how == "launches, not a graph: operation not permitted when stream is capturing"


@pytest.mark.slow
@pytest.mark.parametrize("row", ["explicit", "emulation", "blas"])
def test_a_case_as_a_gpu_runs_it(row, monkeypatch):
    """Run the branch for GPUs with interpreted kernels: rotating inputs, copy limits, facts and fractions."""
    Graphs(tick=0.001).patch(monkeypatch)
    monkeypatch.setitem(limits.MATRIX, "cpu", 64)
    for module in (clocks, limits):
        monkeypatch.setattr(module, "captured", lambda device, run: (run(), (run, "graph replay"))[1])
    monkeypatch.setattr(timing, "LONGEST", 0.0)
    monkeypatch.setattr(limits, "LARGEST", 2**16)
    monkeypatch.setattr(limits, "COPIED", 0)
    monkeypatch.setattr(cases, "sets", lambda device, footprint, most: 2)
    executor = ops.executor
    monkeypatch.setattr(ops, "executor", lambda backend, *how, **more: executor("triton", *how, **more))
    limits.bandwidth.cache_clear()
    limits.matrix_rate.cache_clear()
    shape = cases.Shape("gemm", 2, 6, 8, 4, "bf16")
    facts = cases.time_product(shape, row, "cpu")["extra_info"]
    limits.bandwidth.cache_clear()
    limits.matrix_rate.cache_clear()
    assert facts["sets"] == 2 and facts["timed"] == "graph replay" and facts["shape"] == [6, 8, 4]
    assert facts["fraction_of_bandwidth"] > 0 and facts["fraction_of_matrix_rate"] > 0
    assert ("fraction_of_exchange_limit" in facts) == (row in cases.MOVING)
    assert {"emulation": "ways", "blas": "checked"}.get(row, "launches") in facts
