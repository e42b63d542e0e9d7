"""The tools of bench/: what they time, count and judge, and that no case takes others with it."""

import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch

import cases
import gpu
import limits
import peers
import report
import timing
from wafer_triton.mesh import Mesh
from wafer_triton.models.families import config_of
from wafer_triton.recipes import recipe
from wafer_triton.torch_executor import TorchExecutor

# --- time ---


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
    assert how == "run" and recorded == [0.5, 1.0, 2.0, 4.0], "seconds per run: those of a turn over two inputs"
    assert timing.CLOCK() - begun == sum(recorded) and runs == [1, 2] * (len(runs) // 2)


def test_short_runs_are_repeated_until_they_can_be_timed():
    class Benchmark:
        def pedantic(self, timed, rounds, warmup_rounds):
            timed()

    count = []
    timing.measure(Benchmark(), "cpu", [lambda: count.append(1)])
    assert len(count) >= 1000


def test_the_fastest_way_is_chosen_and_a_refused_one_is_none():
    def refused():
        raise RuntimeError("not here")

    assert timing.fastest("cpu", [refused, lambda: time.sleep(0.02), lambda: None]) == 2
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


# --- limits ---


@pytest.mark.parametrize("numel", [1000, 4096, 3 * 4096 + 7])
def test_the_copy_kernel_copies_to_and_fro(numel):
    x, y = torch.randint(-9, 9, (numel,), dtype=torch.int32), torch.zeros(numel, dtype=torch.int32)
    kept = x.clone()
    limits.copy_to_and_fro(x, y, 2, 2, 1024)
    assert torch.equal(y, kept) and torch.equal(x, kept)


def test_limits_are_of_this_machine():
    assert 1e8 < limits.bandwidth("cpu", 2**20) < 1e13
    assert 1e8 < limits.matrix_rate("cpu", torch.float32) < 1e14


# --- peers ---


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(("op", "shapes"), [("gemm", ((12, 20), (20, 8))), ("gemv", ((3, 20), (20, 28)))])
@pytest.mark.parametrize("side", [4, 5])
def test_the_emulation_computes_what_the_torch_executor_does(op, shapes, side, dtype):
    what = recipe(op, Mesh(side, side), dtype, shapes, ())
    tiles = {
        name: torch.randint(-3, 4, (side, side, *what.schedule.buffers[name].tile)).float() for name, _ in what.inputs
    }
    found = []
    for on in (TorchExecutor(), peers.Emulation()):
        program = on.bind(what.schedule, tiles)
        program.run()
        found.append(program.read("out"))
    assert torch.equal(*found) and found[0].any()
    assert sum(on.chosen.values()) >= len({id(one) for one in what.schedule.rounds})


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
    held = [one[0, :, :3].transpose(0, 1) for one in (cache.keys, cache.values)]
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


# --- the report ---


def measured(row, median, group="one", **facts):
    known = {"what": "MeshGEMM", "mesh": "16x16", "tile": "64x64", "dtype": "bf16", "exchange": row, **facts}
    return {"group": group, "stats": {"median": median}, "extra_info": known}


GPU = {"gpu": "Some GPU", "driver": "1.2", "cuda": "13.0", "torch": "2.11", "triton": "3.6"}
RESULTS = {
    "machine_info": GPU,
    "benchmarks": [
        measured("explicit", 0.002, fraction_of_exchange_limit=0.5, fraction_of_bandwidth=0.55),
        measured("emulation", 0.008),
        measured("blas", 0.001, what="plain product"),
        measured("explicit", 0.05, "two", what="decode layer, llama3-8b", mesh="660x660", tile=""),
    ],
}


def test_the_table_has_ratios_within_a_group():
    lines = report.table(RESULTS).splitlines()
    assert lines[2] == "| MeshGEMM | 16x16 | 64x64 | bf16 | explicit |  | 2 | 500.0 | 4x | 0.5x | 55% |"
    assert lines[3].endswith("| 8 | 125.0 |  | 0.125x |  |") and lines[5].endswith("| 50 | 20.0 |  |  |  |")
    assert lines[-1] == "Emulation time on Some GPU, driver 1.2, CUDA 13.0, torch 2.11, triton 3.6."


def test_figures_are_met_not_met_or_not_measured():
    verdicts = {(one["case"], one["number"]): (one["value"], one["verdict"]) for one in report.figures(RESULTS)}
    gemm = "explicit MeshGEMM, 16 x 16 cores, 64 x 64 tiles, bf16"
    assert verdicts[gemm, "times the PyTorch emulation"] == (4, "met")
    assert verdicts[gemm, "of the exchange limit"] == (0.5, "not met")
    layer = "one Llama-3-8B decode layer, explicit, 660 x 660 cores"
    assert verdicts[layer, "ms"] == (50, "met")
    assert len(verdicts) == 17 and [one for _, one in verdicts.values()].count("not measured") == 14
    slow = {"machine_info": GPU, "benchmarks": [{**RESULTS["benchmarks"][3], "stats": {"median": 0.1}}]}
    assert report.figures(slow)[-1]["verdict"] == "not met"
    assert f"| {layer} | ms | 100 | under 100 | not met |" in report.figure_table(report.figures(slow))


def test_every_figure_is_among_the_cases_of_a_gpu():
    """Each goal would find its row: the facts that it asks for are those of a shape that the suites have."""
    import bench_decode
    import bench_gemm
    import bench_gemv

    facts = []
    for module in (bench_gemm, bench_gemv):
        for shape in module.SHAPES["cuda"]:
            known = {
                "what": cases.PAPER[shape.op], "mesh": f"{shape.side}x{shape.side}", "dtype": shape.dtype,
                "tile": "x".join(map(str, shape.tile)), "shape": [shape.m, shape.k, shape.n],
            }  # fmt: skip
            facts += [known | {"exchange": row} for row in shape.rows]
    for step in bench_decode.SHAPES["cuda"]:
        known = {"what": f"decode layer, {step.config.name}", "mesh": f"{step.side}x{step.side}"}
        facts += [known | {"exchange": row} for row in step.rows]
    for goal in report.GOALS:
        assert any(all(one.get(name) == value for name, value in goal.match.items()) for one in facts), goal.case


def test_plots_are_drawn(tmp_path):
    some = [
        measured(row, seconds * side, f"on {side} with {tile}", mesh=f"{side}x{side}", tile=f"{tile}x{tile}")
        for side, tile in ((8, 32), (16, 32), (16, 64))
        for row, seconds in (("explicit", 0.001), ("emulation", 0.004))
    ]
    written = report.plots({"machine_info": GPU, "benchmarks": some}, tmp_path, "gpu")
    assert [path.name for path in written] == ["gpu-meshgemm.png", "gpu-meshgemm.svg"]
    assert all(path.stat().st_size > 5000 for path in written)


# --- the one command ---

WORKER = """
import json, sys, time
log, plan = sys.argv[1:]
lines = [json.loads(line) for line in open(log)] if __import__("os").path.exists(log) else []
write = lambda **line: print(json.dumps(line), file=open(log, "a"))
cases = ["a", "hangs", "b", "dies", "c"]
if not lines:
    write(cases=cases)
for case in cases:
    if case in {line.get("begun") for line in lines}:
        continue
    write(begun=case)
    if case == plan or plan == "all" and case == "hangs":
        time.sleep(60)
    if plan == "all" and case == "dies":
        sys.exit(7)
    write(ended=case, benchmark={"name": case})
"""


def supervised(tmp_path, plan, quiet=1.0, seconds=30.0):
    log = tmp_path / "log.jsonl"
    command = [sys.executable, "-c", WORKER, str(log), plan]
    return gpu.supervise(command, log, quiet, time.time() + seconds, dict(os.environ))


def test_a_case_that_hangs_or_dies_takes_no_other_with_it(tmp_path):
    lines = supervised(tmp_path, "all")
    results = gpu.gathered(lines, {}, {})
    assert [one["name"] for one in results["benchmarks"]] == ["a", "b", "c"]
    assert results["failed"] == {"hangs": "no result after 1 s", "dies": "the worker died, exit 7"}
    assert results["not_measured"] == []


def test_when_time_is_up_the_rest_is_not_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "CLOSING", 0.0)
    results = gpu.gathered(supervised(tmp_path, "b", quiet=50, seconds=1.5), {}, {})
    assert results["failed"] == {"b": "out of time"} and results["not_measured"] == ["dies", "c"]


def test_a_worker_that_cannot_begin_is_told_of(tmp_path):
    command = [sys.executable, "-c", "raise SystemExit('no torch here')"]
    lines = gpu.supervise(command, tmp_path / "log.jsonl", 5, time.time() + 30, dict(os.environ))
    assert gpu.gathered(lines, {}, {})["failed"] == {"the suites": "exit 1: no torch here"}


def test_without_a_gpu_the_command_says_so_in_one_line(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err == "no GPU here: torch.cuda.is_available() is false; nothing was measured\n"


@pytest.mark.slow
def test_the_one_command_rehearsed(tmp_path, capsys):
    code = gpu.main(["--rehearse", "--out", str(tmp_path)])
    told = capsys.readouterr().out.splitlines()
    last = json.loads(told[-1])
    assert code == 0, told
    assert last["tests_passed"] and last["failed"] == [] and last["not_measured"] == 0
    results = json.loads(Path(last["results"]).read_text())
    assert len(results["benchmarks"]) == last["measured"] > 40
    assert {one["extra_info"]["exchange"] for one in results["benchmarks"]} == {*cases.ROWS, "copy"}
    for one in results["benchmarks"]:
        facts = one["extra_info"]
        assert 0 < facts["fraction_of_bandwidth"] < 2 and facts["sets"] >= 1 and facts["checked"], one["name"]
        assert facts["exchanged_bytes"] > 0 or facts["exchange"] not in ("explicit", "emulation"), one["name"]
    assert len(list(tmp_path.glob("rehearsal-*.svg"))) == len(list(tmp_path.glob("rehearsal-*.png"))) == 3
