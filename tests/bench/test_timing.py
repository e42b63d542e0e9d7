"""The timing of bench/: runs, inputs and graphs, and the facts about a GPU in the record of a case."""

import os
from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch

import cases
import limits
import timing
import worker
from clock import Clock
from wafer_triton import ops
from wafer_triton.compare import timing as clocks


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Replace the host's clock by one that only a run's sleep advances."""
    clock = Clock()
    monkeypatch.setattr(clocks, "perf_counter", clock.time)
    return clock


def test_rows_are_timed_in_turns_over_inputs_in_turns(clock):
    runs = []

    def run(name, seconds):
        return lambda: (runs.append(name), clock.sleep(seconds))

    rows = [timing.Runs([run("a", 0.5), run("b", 1.5)]), timing.Runs([run("c", 0.25)], graph=False)]
    first, second = timing.measure("cpu", rows)
    assert (first.seconds, first.least, first.how) == (pytest.approx(1), pytest.approx(1), "run")
    assert (second.seconds, second.how, second.rounds) == (pytest.approx(0.25), "calls", first.rounds)
    assert runs == [*"ababab", *"ccc", *"abc" * first.rounds], "the first run of a row does not count, two say how long"


def test_a_round_of_steps_that_follow_each_other_has_one(clock):
    runs = []
    (times,) = timing.measure("cpu", [timing.Runs([lambda: runs.append(clock.sleep(1e-6))], graph=False, once=True)])
    assert times.rounds == clocks.ROUNDS[1] and len(runs) == 3 + times.rounds


def test_clocks_of_a_gpu_stand_beside_its_times(tmp_path, monkeypatch):
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        "#!/bin/sh\necho \"$1\" > asked\nprintf '1980, 0x1\\n[N/A], 0x1\\n1755, 0x4\\n19'; : > ready; exec sleep 60"
    )
    smi.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(timing, "is_cuda", lambda device: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="12-34"))
    with timing.clocks("cuda") as facts:
        while not (tmp_path / "ready").exists():
            pass
    assert facts == {"sm_mhz": [1755, 1980], "clock_reasons": ["0x1", "0x4"]}
    assert (tmp_path / "asked").read_text() == "--id=GPU-12-34\n"
    monkeypatch.setenv("PATH", "")
    with timing.clocks("cuda") as none:
        pass
    assert none == {}


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

    (times,) = timing.measure("cpu", [timing.Runs([graphs.run(lambda: add(0)), graphs.run(lambda: add(1))])])
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
    monkeypatch.setattr(timing, "clocks", lambda device: nullcontext({}))
    for module in (timing, limits):
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
    (line,) = worker.in_turns([SimpleNamespace(run=partial(cases.time_product, shape, row))], "cpu")
    facts = line["extra_info"]
    limits.bandwidth.cache_clear()
    limits.matrix_rate.cache_clear()
    assert facts["sets"] == 2 and facts["timed"] == "graph replay" and facts["shape"] == [6, 8, 4]
    assert facts["fraction_of_bandwidth"] > 0 and facts["fraction_of_matrix_rate"] > 0
    assert ("fraction_of_exchange_limit" in facts) == (row in cases.MOVING)
    assert {"emulation": "ways", "blas": "checked"}.get(row, "launches") in facts
