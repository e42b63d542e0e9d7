"""The tools of bench/: what they time, count and judge, and that no case takes others with it."""

import os
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch

import cases
import gpu
import limits
import peers
import timing
from clock import Clock
from wafer_triton import ops
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.mesh import Mesh
from wafer_triton.models.random import config_of
from wafer_triton.schedule.product import recipe

# --- time ---


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """The host's time, as far as bench/harness/timing.py reads it; a run takes as long as it sleeps."""
    clock = Clock()
    monkeypatch.setattr(timing, "perf_counter", clock.time)
    return clock


def test_the_clock_moves_by_what_is_measured_and_by_nothing_else(monkeypatch):
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
        monkeypatch.setattr(cases, "measure", lambda benchmark, device, runs: f"{len(runs)} runs")
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
        for module in (timing, limits, cases):
            monkeypatch.setattr(module, "is_cuda", lambda device: True)
        monkeypatch.setitem(timing.SHORTEST, "cpu", timing.SHORTEST["cuda"])

    def run(self, what):
        """A run that is only noted while a graph is captured, as a GPU does it."""

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


def test_what_cannot_be_captured_is_timed_as_it_is(monkeypatch):
    graphs = Graphs()
    graphs.patch(monkeypatch)

    def run():
        if graphs.recording:
            raise RuntimeError("operation not permitted when stream is capturing")

    replay, how = timing.captured("cpu", run)
    assert replay is run and how == "launches, not a graph: operation not permitted when stream is capturing"


@pytest.mark.slow
@pytest.mark.parametrize("row", ["explicit", cases.ROUNDS, "elided, tiles by loads", "emulation", "blas"])
def test_a_case_as_a_gpu_runs_it(row, monkeypatch):
    """The branch for GPUs, kernels interpreted: rotating inputs, limits by the copy kernel, facts and fractions."""
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


# --- limits ---


@pytest.mark.parametrize("numel", [1000, 4096, 3 * 4096 + 7])
def test_the_copy_kernel_copies_to_and_fro(numel):
    x, y = torch.randint(-9, 9, (numel,), dtype=torch.int32), torch.zeros(numel, dtype=torch.int32)
    kept = x.clone()
    limits.copy_to_and_fro(x, y, 2, 2, 1024)
    assert torch.equal(y, kept) and torch.equal(x, kept)


def test_limits_count_bytes_both_ways_and_multiply_adds_twice(monkeypatch):
    monkeypatch.setattr(limits, "elapsed", lambda device, run: (run(), 0.5)[1])
    monkeypatch.setattr(limits, "COPIED", 2**23)
    monkeypatch.setitem(limits.MATRIX, "cpu", 64)
    limits.bandwidth.cache_clear()
    limits.matrix_rate.cache_clear()
    assert limits.bandwidth("cpu", 2**20) == 8 * 2**20 / 0.5, "8 copies of half a MiB in half a second"
    assert limits.matrix_rate("cpu", torch.float32) == 4 * 2 * 64**3 / 0.5
    limits.bandwidth.cache_clear()
    limits.matrix_rate.cache_clear()


# --- peers ---


def chosen(number):
    """Stands in for `fastest`: of the ways that the device does not refuse, that of a number, counted around."""

    def choose(device, runs):
        working = []
        for way, run in enumerate(runs):
            try:
                run()
            except (RuntimeError, TypeError):
                continue
            working.append(way)
        return working[number % len(working)]

    return choose


@pytest.mark.parametrize("way", [0, 1, -1])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(("op", "shapes"), [("gemm", ((12, 20), (20, 8))), ("gemv", ((3, 20), (20, 28)))])
@pytest.mark.parametrize("side", [4, 5])
def test_the_emulation_computes_what_the_torch_executor_does(op, shapes, side, dtype, way, monkeypatch):
    monkeypatch.setattr(peers, "fastest", chosen(way))
    product = recipe(op, Mesh(side, side), dtype, shapes, ())
    schedule = product.schedule
    tiles = {
        name: torch.randint(-3, 4, (side, side, *schedule.buffers[name].tile)).float() for name, _ in product.inputs
    }
    results, emulation = [], peers.Emulation()
    for executor in (TorchExecutor(), emulation):
        program = executor.bind(schedule, tiles)
        program.run()
        results.append(program.read("out"))
    assert torch.equal(*results) and results[0].any()
    assert sum(emulation.chosen.values()) >= len({id(round_) for round_ in schedule.rounds})


def test_both_ways_at_once_move_what_one_after_the_other_do(monkeypatch):
    taken = []

    def last(self, kind, ways):
        taken.extend(ways if kind[0] == "moves" else ())
        return list(ways.values())[-1 if kind[0] == "moves" else 0]

    monkeypatch.setattr(peers.Emulation, "_fastest", last)
    what = recipe("gemm", Mesh(5, 5), "fp32", ((10, 10), (10, 10)), ())
    tiles = {name: torch.randint(-3, 4, (5, 5, 2, 2)).float() for name in "ab"}
    found = []
    for on in (TorchExecutor(), peers.Emulation()):
        program = on.bind(what.schedule, tiles)
        program.run()
        found.append(program.read("out"))
    assert torch.equal(*found) and "both ways at once" in taken


def test_the_plain_layer_is_that_of_transformers():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaModel

    made = LlamaConfig(
        hidden_size=24, intermediate_size=40, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        head_dim=6, vocab_size=9, rms_norm_eps=1e-5, attn_implementation="eager",
    )  # fmt: skip
    model = LlamaModel(made).double().eval()
    ours = config_of({**made.to_dict(), "model_type": "llama"})
    weights = {f"model.{name}": one.detach() for name, one in model.named_parameters() if "layers.0" in name}
    ids = torch.tensor([[1, 5, 2, 7]])
    kept = {}
    hook = model.layers[0].register_forward_hook(lambda _, given, out: kept.update(x=given[0], out=out))
    with torch.no_grad():
        cache = model(ids, use_cache=True).past_key_values.layers[0]
    hook.remove()
    angle = torch.tensor([[3.0]]) * ours.inv_freq()[0]
    held = [one[0].transpose(0, 1).clone() for one in (cache.keys, cache.values)]
    for one in held:
        one[3] = float("nan")  # to be written
    out = peers.layer(kept["x"][0, 3:], weights, ours, *held, (angle.cos().double(), angle.sin().double()))
    want = kept["out"][0] if isinstance(kept["out"], tuple) else kept["out"]
    torch.testing.assert_close(out, want.view(4, -1)[3:], rtol=1e-6, atol=1e-6)


# --- what a case counts ---


def test_every_shifted_tile_is_read_once_and_written_once():
    shape = cases.Shape("gemm", 4, 8, 12, 16, "bf16")
    schedule = shape.recipe().schedule
    a, b = 2 * 3 * 2, 3 * 4 * 2  # bytes of a tile
    # lines 0 to 3 of the ring 0, 2, 3, 1 lie at 0, 3, 1, 2: they move 0, 1, 1 and 2 steps to align; then 4 rounds
    moves = 4 * (0 + 1 + 1 + 2) + 4 * 16
    assert cases.exchanged_bytes(schedule) == 2 * moves * (a + b)
    must = cases.work(schedule, schedule)
    assert must.exchanged == 2 * moves * (a + b) and must.footprint == 2 * 16 * (a + b)
    assert must.others == 16 * 2 * 4 * 2, "the result; operands count as exchanged"
    still = cases.work(schedule, None)
    assert (still.exchanged, still.others) == (0, 16 * (a + b + 2 * 4 * 2))


def test_a_multicast_is_read_once():
    shape = cases.Shape("gemv", 4, 1, 4, 8, "bf16")
    schedule = shape.recipe().schedule
    # a chain from both ends to core 2 of each of 4 lines: 3 messages; then it multicasts down to one and up to two
    tile = 2 * 4
    assert cases.exchanged_bytes(schedule) == 4 * tile * (2 * 3 + (1 + 1) + (1 + 2))
    assert cases.work(schedule, schedule).others == 16 * 2 * (1 + 2 + 2), "vector, matrix and result, once each"


@pytest.mark.parametrize("row", cases.ROWS)
def test_every_row_is_checked(row):
    shape = cases.Shape("gemm", 3, 5, 6, 7, "bf16")
    on = None if row == "blas" else cases.executor(row, "cpu")
    given = shape.operands("cpu", integers=False)
    case = cases.Plain(*given) if on is None else cases.OnMesh(shape, on, *given)
    assert cases.check(case, shape, "cpu").startswith("exact" if on else "random")

    case.result = lambda result=case.result: result() + 1
    with pytest.raises(AssertionError, match="elements wrong on small integers" if on else "off by"):
        cases.check(case, shape, "cpu")


def test_close_is_as_strict_as_the_dtype():
    reference = torch.tensor([1.0, 100.0], dtype=torch.float64)
    plain = reference.bfloat16()
    cases.close(plain + 0.5, reference, plain, "it")
    for wrong in (plain + 1, plain * float("nan")):
        with pytest.raises(AssertionError, match="it: off by"):
            cases.close(wrong, reference, plain, "it")
