"""The timing of bench/: runs, inputs and graphs, and the facts about a GPU in the record of a case."""

import os
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch

import cases
import gpu
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


def test_the_clock_moves_by_measured_seconds_alone(monkeypatch):
    seconds = iter([0.5, 0.5, 1.0, 2.0, 4.0, *[8.0] * 9])
    monkeypatch.setattr(timing, "elapsed", lambda device, run: (run(), next(seconds))[1])
    begun, runs, rounds = timing.CLOCK(), [], []

    class Benchmark:
        def pedantic(self, timed, rounds, warmup_rounds):
            for _ in range(rounds + warmup_rounds):
                before = timing.CLOCK()
                timed()
                recorded.append(timing.CLOCK() - before)

    recorded = rounds
    how = timing.measure(Benchmark(), "cpu", [lambda: runs.append(1), lambda: runs.append(2)])
    # half a second a turn: once is enough to be long, and as few rounds as there may be
    assert how == "run" and recorded == pytest.approx([0.5, 1.0, 2.0, 4.0]), "per run: a turn is over two inputs"
    assert timing.CLOCK() - begun == pytest.approx(sum(recorded)) and runs == [1, 2] * (len(runs) // 2)


@pytest.mark.parametrize(("seconds", "times"), [(1e-9, 1000), (1e-3, 20), (0.5, 1)])
def test_short_runs_are_repeated_until_they_can_be_timed(clock, seconds, times):
    class Benchmark:
        def pedantic(self, timed, rounds, warmup_rounds):
            count.clear()
            timed()

    count = []
    timing.measure(Benchmark(), "cpu", [lambda: count.append(clock.sleep(seconds))])
    assert len(count) == times, "until they take 20 ms, or are a thousand"


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


@pytest.mark.parametrize("side", [4, 660])
def test_no_row_has_fewer_sets_of_inputs_than_another(side, monkeypatch):
    """However many bytes a row's own buffers take: a set of inputs is counted by the operands, which all rows have."""
    shape, asked = cases.Shape("gemm", side, 8, 12, 16, "bf16"), []
    monkeypatch.setattr(cases, "sets", lambda device, footprint, most: asked.append((footprint, most)) or 3)
    if side == 4:
        made, notes = [], {}
        monkeypatch.setattr(cases, "check", lambda case, *_: made.append(case) or "checked")
        monkeypatch.setattr(cases, "measure", lambda benchmark, device, runs, graph: f"{len(runs)} runs")
        monkeypatch.setattr(cases, "record", lambda *_: None)
        for row in ("explicit", "blas"):
            cases.time_product(SimpleNamespace(), lambda **facts: notes.update(facts), shape, row, "cpu")
            assert notes["sets"] == 3 and notes["timed"] == "3 runs"
    assert shape.sets("cuda") == 3
    assert set(asked) == {(2 * (8 * 12 + 12 * 16 + 8 * 16), 32 if side == 4 else 2)}


class Graphs:
    """Stands in for torch.cuda where the code of a GPU's branch is to run on a CPU: recorded calls, no GPU.

    Its events read a clock of its own, which `tick` seconds pass on at each event.
    """

    Properties = SimpleNamespace(
        name="NVIDIA Some GPU", L2_cache_size=2**20, multi_processor_count=2, total_memory=2**33
    )  # fmt: skip

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
    graphs, done = Graphs(), []
    graphs.patch(monkeypatch)

    class Benchmark:
        def pedantic(self, timed, rounds, warmup_rounds):
            before = timing.CLOCK()
            timed()
            done.append(timing.CLOCK() - before)

    count = [0, 0]

    def add(which):
        count[which] += 1
        graphs.clock.sleep(0.001)

    how = timing.measure(Benchmark(), "cpu", [graphs.run(lambda: add(0)), graphs.run(lambda: add(1))])
    assert how == "graph replay" and len(graphs.captured) == 1 and len(graphs.captured[0].runs) == 2
    assert count[0] == count[1] > 3 and done == [pytest.approx(0.001)]


def test_a_run_that_cannot_be_captured_is_timed_eagerly(monkeypatch):
    graphs = Graphs()
    graphs.patch(monkeypatch)

    def run():
        if graphs.recording:
            raise RuntimeError("operation not permitted when stream is capturing")

    replay, how = timing.captured("cpu", run)
    assert replay is run and how == "launches, not a graph: operation not permitted when stream is capturing"


@pytest.mark.slow
@pytest.mark.parametrize("row", ["explicit", cases.LAUNCH_PER_ROUND, "elided, tiles by loads", "emulation", "blas"])
def test_a_case_as_a_gpu_runs_it(row, monkeypatch):
    """Run the branch for GPUs with interpreted kernels: rotating inputs, copy limits, facts and fractions."""
    Graphs(tick=0.001).patch(monkeypatch)
    monkeypatch.setitem(limits.MATRIX, "cpu", 64)
    monkeypatch.setattr(timing, "captured", lambda device, run: (run, "graph replay"))
    monkeypatch.setattr(limits, "captured", timing.captured)
    monkeypatch.setattr(timing, "LONGEST", 0.0)
    monkeypatch.setattr(limits, "LARGEST", 2**16)
    monkeypatch.setattr(limits, "COPIED", 0)
    monkeypatch.setattr(cases, "sets", lambda device, footprint, most: 2)
    executor = ops.executor
    monkeypatch.setattr(ops, "executor", lambda backend, *how, **more: executor("triton", *how, **more))
    facts = {}

    class Benchmark:
        stats = SimpleNamespace(stats=SimpleNamespace(median=0.5))

        def pedantic(self, timed, rounds, warmup_rounds):
            timed()

    limits.bandwidth.cache_clear()
    limits.matrix_rate.cache_clear()
    shape = cases.Shape("gemm", 2, 6, 8, 4, "bf16")
    cases.time_product(Benchmark(), lambda **more: facts.update(more), shape, row, "cpu")
    limits.bandwidth.cache_clear()
    limits.matrix_rate.cache_clear()
    assert facts["sets"] == 2 and facts["timed"] == "graph replay" and facts["shape"] == [6, 8, 4]
    assert facts["fraction_of_bandwidth"] > 0 and facts["fraction_of_matrix_rate"] > 0
    assert ("fraction_of_exchange_limit" in facts) == (row in cases.MOVING)
    assert {"emulation": "ways", "blas": "checked"}.get(row, "launches") in facts


def test_a_results_file_names_the_gpu_and_its_software(monkeypatch):
    Graphs().patch(monkeypatch)
    monkeypatch.setenv("PATH", "")
    facts = gpu.machine("cuda")
    assert (facts["gpu"], facts["driver"], facts["sms"], facts["l2_bytes"]) == ("NVIDIA Some GPU", "unknown", 2, 2**20)
    assert facts.keys() >= {"cuda", "torch", "triton", "python", "cpu", "memory_bytes"}
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")  # under which pytest-benchmark times nothing
    assert "PYTEST_XDIST_WORKER" not in gpu.environment("cuda")
    assert gpu.environment("cuda")["TRITON_INTERPRET"] == "0" and gpu.environment("cpu")["TRITON_INTERPRET"] == "1"
