"""bench/gpu: the order of rows, limits of time, a row that hangs or dies, and the file, with a clock of the test."""

import importlib.util
import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import gpu
import order
import report
import supervise
import timing
import worker
from cases import UnavailableError
from clock import Clock
from order import Timed

GROUPS = [[SimpleNamespace(name=name) for name in names] for names in (["a", "hangs"], ["b"], ["dies", "c"])]
NAMES = [row.name for group in GROUPS for row in group]
RECORD = {"group": "one", "stats": {"median": 0.5}, "extra_info": {"what": "it", "exchange": "explicit"}}


class Worker:
    """A worker that takes one of its steps whenever it is looked at: None while it runs, then its exit code."""

    def __init__(self, steps, printed=""):
        self.steps, self.code, self.printed = steps, None, printed

    def poll(self):
        if self.code is None:
            self.code = next(self.steps)
        return self.code

    def end(self):
        self.code = -9 if self.code is None else self.code
        return self.code

    def output(self):
        return self.printed


def forever():
    while True:
        yield None


def working(file, plan=(), patience=1.0):
    """Return the steps of a worker on the groups of rows left by the file; `plan` names rows that hang or die."""
    yield None
    for group in GROUPS:
        while names := [row.name for row in worker.following(group, supervise.read(file))]:
            supervise.write(file, begun=names, patience=patience)
            for name in names:
                yield None
                if name in plan:
                    if name == "dies":
                        yield 7
                    yield from forever()
            for name in names:
                supervise.write(file, row=name, name=name, **RECORD)
    yield 0


def supervised(tmp_path, plan, patience=1.0, until=30.0):
    file, clock = tmp_path / "rows.jsonl", Clock()
    supervise.write(file, gpu="Some GPU", rows=NAMES)
    supervise.supervise(lambda: Worker(working(file, plan, patience)), NAMES, file, 20, until, clock)
    return report.load(file), clock.seconds


# --- the order of value ---


def test_rows_come_in_the_order_of_value():
    names = [row.name for group in order.on_a_gpu() for row in group]
    assert len(names) == len(set(names))
    firsts = [
        "gemm-1024x1024x1024-on16-bf16-explicit", "gemm-2048x2048x2048-on32-bf16-explicit",
        "gemm-4096x4096x4096-on64-bf16-elided", "gemv-1x4096x14336-on64-bf16-explicit",
        "layers1-llama3-8b-held4095-on64-bf16-explicit", "shift-on660-tile4-bf16-explicit",
        "gemm-1024x1024x1024-on16-bf16-public call, explicit", "step-SmolLM2-256-on24-bf16-explicit",
        "prefill-SmolLM2-256-on24-bf16-explicit", "first-SmolLM2-256-on24-bf16-explicit", "tests/gpu",
        "layers32-llama3-8b-held4095-on64-bf16-explicit", "gemm-1320x1320x1320-on660-bf16-explicit",
    ]  # fmt: skip
    assert [name for name in names if name in firsts] == firsts
    goals = names[: names.index("tests/gpu")]
    for side, size in ((16, 1024), (32, 2048), (64, 4096)):
        assert {f"gemm-{size}x{size}x{size}-on{side}-bf16-{row}" for row in order.ROWS} <= set(goals)
    assert len(goals) < len(names) / 2


# --- workers under supervision ---


def test_a_row_that_hangs_or_dies_takes_no_other_with_it(tmp_path):
    """Its group is timed again, row by row."""
    results, seconds = supervised(tmp_path, ["hangs", "dies"])
    assert [record["name"] for record in results["benchmarks"]] == ["a", "b", "c"]
    assert results["failed"] == {"hangs": "no result after 1 s", "dies": "the worker died, exit 7"}
    assert seconds < 5, "twice the second that the row may take, and the steps of the others"


def test_a_row_of_a_group_that_hangs_is_not_waited_for_as_long_as_all(tmp_path, monkeypatch):
    monkeypatch.setattr(worker.timing, "is_cuda", lambda device: True)
    file = tmp_path / "rows.jsonl"

    def hang(device):
        yield from ()
        raise KeyboardInterrupt

    rows = [Timed(name, 9.0, hang) for name in NAMES]
    with pytest.raises(KeyboardInterrupt):
        worker.work([rows], "cuda", file, 9.0, Clock())
    assert supervise.read(file) == [{"begun": NAMES, "patience": 9.0}]


def test_a_row_does_not_outlast_the_time(tmp_path):
    results, seconds = supervised(tmp_path, ["b"], patience=50, until=1.5)
    assert results["not_measured"] == {"b": "the time was up"} and results["failed"] == {}
    assert [record["name"] for record in results["benchmarks"]] == ["a", "hangs"]
    assert seconds == pytest.approx(1.5 + supervise.GRACE, abs=2 * supervise.TICK)


def test_a_worker_that_fails_at_start_is_reported(tmp_path):
    """Start a process that ends at once; `supervise` has no limit of time here."""
    command, file = [sys.executable, "-S", "-c", "raise SystemExit('no torch here')"], tmp_path / "rows.jsonl"
    supervise.supervise(lambda: supervise.Command(command, {}), NAMES, file, float("inf"), float("inf"))
    assert supervise.read(file) == [{"row": "the worker", "error": "exit 1: no torch here"}]


def test_a_worker_that_never_begins_is_ended(tmp_path):
    file = tmp_path / "rows.jsonl"
    supervise.supervise(lambda: Worker(forever(), "importing"), NAMES, file, 20, 90, Clock())
    assert supervise.read(file) == [{"row": "the worker", "error": "no result after 20 s: importing"}]


def test_a_worker_ends_with_the_command_that_is_stopped(tmp_path, monkeypatch):
    def stopped(seconds):
        raise KeyboardInterrupt

    started, clock = Worker(forever()), Clock()
    monkeypatch.setattr(clock, "sleep", stopped)
    with pytest.raises(KeyboardInterrupt):
        supervise.supervise(lambda: started, NAMES, tmp_path / "rows.jsonl", 20, 90, clock)
    assert started.code == -9


def test_a_command_is_killed_with_its_children():
    command = ["sh", "-c", "sleep 3600 & echo begun; wait"]
    started = supervise.Command(command, {"PATH": "/usr/bin:/bin"})
    assert started.poll() is None and started.end() == -9 and started.poll() == -9


def test_a_process_that_the_driver_holds_is_left_alone(monkeypatch):
    started = supervise.Command(["true"], {"PATH": "/usr/bin:/bin"})
    started.end()

    def held(timeout):
        raise subprocess.TimeoutExpired("true", timeout)

    monkeypatch.setattr(started._process, "wait", held)
    assert started.end() == -9


def test_a_line_that_a_dying_worker_left_half_written_does_not_count(tmp_path):
    file = tmp_path / "rows.jsonl"
    assert supervise.read(file) == []
    file.write_text('{"rows": ["a"]}\n{"begun": ["a"]}\n{"row": "a", "sta')
    assert supervise.unfinished(supervise.read(file)) == (["a"], True)


# --- a worker ---


def test_each_row_is_on_disk_when_it_ends(tmp_path, monkeypatch):
    file, seen, clock = tmp_path / "rows.jsonl", [], Clock()
    monkeypatch.setattr(timing, "clocks", lambda device: nullcontext({"sm_mhz": [1755, 1980]}))

    def row(name, result=None):
        def run(device):
            seen.append([line.get("row") for line in supervise.read(file) if "row" in line])
            clock.sleep(1)
            if isinstance(result, Exception):
                raise result
            times = yield timing.Runs([lambda: None], graph=False)
            return {"name": name, **RECORD, "extra_info": {**RECORD["extra_info"], "timed": times.how}}

        return [Timed(name, 9.0, run)]

    wrong, unavailable = ValueError("off by\n1"), UnavailableError("no Hopper")
    groups = [row("known"), row("a"), row("b", wrong), row("c", unavailable), row("d")]
    supervise.write(file, row="known", tests="passed")
    worker.work(groups, "cpu", file, 2.5, clock)
    assert seen == [["known"], ["known", "a"], ["known", "a", "b"]], "and none begins when the time is up"
    results = report.load(file)
    (record,) = results["benchmarks"]
    assert record["name"] == "a" and record["extra_info"]["timed"] == "calls"
    assert record["extra_info"]["sm_mhz"] == [1755, 1980], "the clocks of the group"
    assert results["failed"] == {"b": "ValueError: off by 1"} and results["not_measured"] == {"c": "no Hopper"}


@pytest.mark.parametrize("late", [False, True], ids=["as it is made", "while it is timed"])
def test_a_row_that_fails_in_its_group_is_timed_alone(late, tmp_path):
    """As a row that finds no memory beside the others."""
    file, made = tmp_path / "rows.jsonl", []

    def fail():
        if len(made) < 5:
            raise RuntimeError("out of memory")

    def row(name, run):
        def timed(device):
            made.append(name)
            if not late:
                run()
            yield timing.Runs([run], graph=False)
            return {"name": name, **RECORD}

        return Timed(name, 9.0, timed)

    rows = [row("a", lambda: None), row("b", fail), row("c", lambda: None)]
    worker.work([rows], "cpu", file, 9.0, Clock())
    lines = supervise.read(file)
    assert [sorted(line) for line in lines][:4] == [["begun", "patience"], *[["alive"]] * 3], "one after the other"
    begun = [line["begun"] for line in lines if "begun" in line]
    assert begun == [["a", "b", "c"], *([["a"], ["b"], ["c"]] if late else [["b"]])]
    ended = {line["row"]: "stats" in line for line in lines if "row" in line}
    assert ended == {"a": True, "b": late, "c": True}, "b is the fifth row to be made where all begin again"


def test_a_worker_ends_when_the_gpu_refuses_to_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(worker.timing, "broken", lambda device: True)

    def fails(device):
        yield from ()
        raise RuntimeError("an illegal memory access was encountered")

    groups = [[Timed("a", 9.0, fails)], [Timed("b", 9.0, fails)]]
    worker.work(groups, "cpu", tmp_path / "rows.jsonl", 9.0, Clock())
    assert [line["row"] for line in supervise.read(tmp_path / "rows.jsonl") if "row" in line] == ["a"]


def test_tests_of_a_gpu_are_a_row_that_fails_with_them(tmp_path, monkeypatch):
    tests = tmp_path / "test_it.py"
    monkeypatch.setattr(order, "TESTS", tests)
    monkeypatch.setattr(order, "find_spec", lambda name: None)
    tests.write_text("def test_zero(): pass\ndef test_one(): assert 1 == 2\n")
    with pytest.raises(AssertionError, match=r"^1 failed, 1 passed in .*; FAILED .*::test_one - assert 1 == 2"):
        next(order.tests("cuda"))


# --- the whole command ---


def commanded(tmp_path, monkeypatch, plan, *arguments, patience=1.0):
    """Return the exit code of the whole command with workers on `NAMES`, and the commands that it started."""
    commands = []
    monkeypatch.setattr(gpu, "unsupported", lambda: "")
    monkeypatch.setattr(gpu, "machine", lambda device: {"gpu": "NVIDIA Some GPU", "driver": "1.2", "cuda": "13.0",
                        "torch": "2.11", "triton": "3.6", "python": "3.12", "commit": "0abc"})  # fmt: skip
    monkeypatch.setattr(order, "on_a_gpu", lambda: GROUPS)

    def start(command, environment):
        commands.append((command, environment))
        return Worker(working(Path(command[-2]), plan, patience))

    return gpu.main([*arguments, "--out", str(tmp_path)], start, Clock()), commands


def test_the_whole_command_on_a_gpu(tmp_path, capsys, monkeypatch):
    code, commands = commanded(tmp_path, monkeypatch, ["hangs"])
    lines = capsys.readouterr().out.splitlines()
    file = tmp_path / "nvidia-some-gpu-0abc.jsonl"
    head, *rows = supervise.read(file)
    assert code == 1 and list(tmp_path.iterdir()) == [file] and lines[-1] == f"send {file}"
    assert head["gpu"] == "NVIDIA Some GPU" and head["commit"] == "0abc" and head["rows"] == NAMES
    assert {"driver", "torch", "triton", "python"} <= head.keys()
    assert [line["row"] for line in rows if "row" in line] == NAMES
    assert "| one | explicit | 500,000 |  |  |  |  |  |" in lines and "failed: hangs: no result after 1 s" in lines
    assert len(commands) == 3, "the second worker times the rows of that group alone, the third one the rest"
    for command, environment in commands:
        assert command[-3:] == ["cuda", str(file), "570.0"] and environment["TRITON_INTERPRET"] == "0"


def test_rows_without_time_are_listed_as_not_measured(tmp_path, capsys, monkeypatch):
    code, _ = commanded(tmp_path, monkeypatch, ["b"], "--minutes", "1", patience=99)
    assert code == 0
    results = report.load(tmp_path / "nvidia-some-gpu-0abc.jsonl")
    assert [record["name"] for record in results["benchmarks"]] == ["a", "hangs"]
    assert list(results["not_measured"]) == ["b", "dies", "c"]
    assert "not measured: c: the time was up" in capsys.readouterr().out.splitlines()


def test_without_a_gpu_the_command_says_so_in_one_line(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err == "no GPU here: torch.cuda.is_available() is false; nothing was measured\n"


def test_a_gpu_that_cannot_run_the_kernels_is_named(capsys, monkeypatch):
    old, new = (SimpleNamespace(name=name, major=major, minor=5) for name, major in (("Tesla T4", 7), ("B999", 99)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: old)
    assert gpu.main([]) == 2
    why = "Tesla T4 has compute capability 7.5; bf16 kernels need 8.0 or later; nothing was measured\n"
    assert capsys.readouterr().err == why

    def refused(*_, **__):
        raise RuntimeError("CUDA error: no kernel image is available\nmore")

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: new)
    monkeypatch.setattr(torch, "ones", refused)
    assert gpu.main([]) == 2
    why = f"B999 runs nothing by torch {torch.__version__}: CUDA error: no kernel image is available; nothing was"
    assert capsys.readouterr().err == f"{why} measured\n"


def test_the_header_names_the_gpu_and_its_software(monkeypatch):
    properties = SimpleNamespace(
        name="NVIDIA Some GPU", L2_cache_size=2**20, multi_processor_count=2, total_memory=2**33
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setenv("PATH", "")
    facts = gpu.machine("cuda")
    assert (facts["gpu"], facts["driver"], facts["sms"], facts["commit"]) == (
        "NVIDIA Some GPU",
        "unknown",
        2,
        "unknown",
    )
    assert facts.keys() >= {"cuda", "torch", "triton", "python", "cpu", "memory_bytes"}


@pytest.mark.slow
def test_a_checkout_needs_no_installation():
    """Without the package, its folders are laid out as they install."""
    packages = Path(torch.__file__).parents[1]
    script = (
        f"import sys; sys.path += [{str(gpu.HERE)!r}, {str(packages)!r}]; import gpu; assert gpu.missing() == '';"
        "import json, os, wafer_triton.kernels as kernels; from wafer_triton.models import config;"
        "print(json.dumps([kernels.__file__, os.environ['PYTHONPATH']]))"
    )
    command = [sys.executable, "-I", "-S", "-c", script]
    found, path = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert Path(found).resolve() == gpu.HERE.parent / "kernels" / "__init__.py" and found.startswith(path)


def test_a_package_that_is_missing_is_named_with_the_one_command(capsys, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "einops" else find(name))
    assert gpu.main([]) == 3
    assert capsys.readouterr().err == f"no einops here; run: pip install {gpu.HERE.parent}[bench]\n"
