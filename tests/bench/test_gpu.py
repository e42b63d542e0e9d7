"""bench/gpu: a failed case ends no other, limits of time, and the whole command, with a clock of the test."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import gpu
import supervise
from clock import Clock

CASES = ["a", "hangs", "b", "dies", "c"]


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


def working(log, plan=(), patience=1.0):
    """Return the steps of a worker that runs the cases absent from the log; `plan` names cases that hang or die."""

    def write(**line):
        with log.open("a") as file:
            file.write(json.dumps(line) + "\n")

    known = supervise.read(log)
    if not known:
        write(cases=CASES)
    yield None
    for case in CASES:
        if case in {line.get("begun") for line in known}:
            continue
        write(begun=case, patience=patience)
        yield None
        if case in plan:
            if case == "dies":
                yield 7
            yield from forever()
        write(ended=case, benchmark={"name": case, "group": None, "stats": {"median": 0.5}, "extra_info": {}})
    yield 0


def supervised(tmp_path, plan, patience=1.0, until=30.0):
    log, clock = tmp_path / "log.jsonl", Clock()
    lines = supervise.supervise(lambda: Worker(working(log, plan, patience)), log, 20, until, clock)
    return gpu.gathered(lines, {}, {}), clock.seconds


def test_a_case_that_hangs_or_dies_takes_no_other_with_it(tmp_path):
    results, seconds = supervised(tmp_path, ["hangs", "dies"])
    assert [record["name"] for record in results["benchmarks"]] == ["a", "b", "c"]
    assert results["failed"] == {"hangs": "no result after 1 s", "dies": "the worker died, exit 7"}
    assert results["not_measured"] == []
    assert seconds < 3, "the second that the case may take, and the steps of the others"


def test_when_time_is_up_the_rest_is_not_measured(tmp_path):
    results, seconds = supervised(tmp_path, ["b"], patience=50, until=1.5)
    assert results["failed"] == {"b": "out of time"} and results["not_measured"] == ["dies", "c"]
    assert seconds == pytest.approx(1.5 + supervise.GRACE, abs=2 * supervise.TICK)


def test_a_worker_that_fails_at_start_is_reported(tmp_path):
    """Start a process that ends at once; `supervise` has no limit of time here."""
    command = [sys.executable, "-S", "-c", "raise SystemExit('no torch here')"]
    start = lambda: supervise.Command(command, {})  # noqa: E731
    lines = supervise.supervise(start, tmp_path / "log.jsonl", float("inf"), float("inf"))
    assert gpu.gathered(lines, {}, {})["failed"] == {"the suites": "exit 1: no torch here"}


def test_a_worker_that_never_begins_is_ended(tmp_path):
    lines = supervise.supervise(lambda: Worker(forever(), "importing"), tmp_path / "log.jsonl", 20, 90, Clock())
    assert lines == [{"ended": "the suites", "error": "no result after 20 s: importing"}]


def test_a_command_is_killed_with_its_children():
    command = ["sh", "-c", "sleep 3600 & echo begun; wait"]
    worker = supervise.Command(command, {"PATH": "/usr/bin:/bin"})
    assert worker.poll() is None and worker.end() == -9 and worker.poll() == -9


def test_a_line_that_a_dying_worker_left_half_written_does_not_count(tmp_path):
    log = tmp_path / "log.jsonl"
    assert supervise.read(log) == []
    log.write_text('{"cases": ["a"]}\n{"begun": "a"}\n{"ended": "a", "benchm')
    assert supervise.unfinished(supervise.read(log)) == ["a"] and supervise.cases(supervise.read(log)) == ["a"]


def test_tests_that_take_too_long_are_ended(capsys):
    printed = "FAILED tests/gpu/test_kernels.py::test_it - off by 1\n=== 1 failed ===\n"
    tests = gpu.run_tests("cuda", 150, lambda *_: Worker(forever(), printed), clock := Clock())
    assert not tests["passed"] and tests["summary"] == "not finished after 150 s; 1 failed"
    assert tests["failures"] == printed.splitlines()[:1] and printed in capsys.readouterr().out
    assert tests["seconds"] == round(clock.seconds, 1) == pytest.approx(150, abs=0.2)


def test_without_a_gpu_the_command_says_so_in_one_line(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err == "no GPU here: torch.cuda.is_available() is false; nothing was measured\n"


FACTS = {"cpu": "Some CPU", "threads": 1, "cores": 2, "torch": "2.11", "triton": "3.6"}
GPU = FACTS | {"gpu": "NVIDIA Some GPU", "driver": "1.2", "cuda": "13.0"}


def commanded(tmp_path, plan, *arguments):
    """Return the exit code of the whole command with workers on `CASES`, and the commands that it started."""
    commands = []

    def start(command, environment):
        commands.append(SimpleNamespace(words=command, environment=environment))
        if str(gpu.HERE.parent / "tests" / "gpu") in command:
            return Worker(iter([None, 0]), "== 9 passed in 3 s ==")
        (log,) = (Path(word.partition("=")[2]) for word in command if word.startswith("--bench-log="))
        return Worker(working(log, plan))

    return gpu.main([*arguments, "--out", str(tmp_path)], start, Clock()), commands


def test_the_whole_command_on_a_gpu(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(gpu, "machine", lambda device: GPU)
    code, commands = commanded(tmp_path, ["hangs"])
    lines = capsys.readouterr().out.splitlines()
    last = json.loads(lines[-1])
    assert code == 1 and last["failed"] == ["hangs"] and last["measured"] == 4 and last["not_measured"] == 0
    assert last["tests_passed"] and last["tests"] == "9 passed in 3 s" and last["gpu"] == "NVIDIA Some GPU"
    assert lines[0].startswith(
        "tests/gpu on 8 workers" if importlib.util.find_spec("xdist") else "tests/gpu in one process"
    )
    assert lines[1] == "tests/gpu: 9 passed in 3 s" and "failed: hangs: no result after 1 s" in lines
    assert "| a |  |  |  |  |  | 500 | 2.0 |  |  |  |" in lines
    results = json.loads((tmp_path / "nvidia-some-gpu.json").read_text())
    assert Path(last["results"]) == tmp_path / "nvidia-some-gpu.json" and results["machine_info"] == GPU
    assert [record["name"] for record in results["benchmarks"]] == ["a", "b", "dies", "c"]
    assert {figure["verdict"] for figure in results["figures"]} == {"not measured"}
    suites = commands[1:]
    assert len(suites) == 2, "the second worker runs the rest of the cases"
    assert all("--bench-device=cuda" in suite.words and "--bench-until=430.0" in suite.words for suite in suites)
    assert all(command.environment["TRITON_INTERPRET"] == "0" for command in commands)


def test_a_rehearsal_has_no_limit_of_time(tmp_path, capsys):
    code, (tests, *suites) = commanded(tmp_path, [], "--rehearse")
    assert code == 0 and json.loads(capsys.readouterr().out.splitlines()[-1])["measured"] == len(CASES)
    assert tests.environment["WAFER_REHEARSE"] == tests.environment["TRITON_INTERPRET"] == "1"
    assert [("--bench-device=cpu" in suite.words, "--bench-until=inf" in suite.words) for suite in suites] == [
        (True,) * 2
    ]


@pytest.mark.parametrize(("only", "ran"), [("tests", ["tests"]), ("suites", ["suites"])])
def test_one_part_alone_has_all_the_time(only, ran, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(gpu, "machine", lambda device: GPU)
    seconds, watch = [], gpu.watch

    def watching(worker, late, clock):
        seconds.extend((late(170), late(190)))
        return watch(worker, late, clock)

    monkeypatch.setattr(gpu, "watch", watching)
    code, commands = commanded(tmp_path, [], "--only", only, "--minutes", "3")
    assert code == 0
    kinds = ["tests" if str(gpu.HERE.parent / "tests" / "gpu") in one.words else "suites" for one in commands]
    assert kinds == ran
    if only == "tests":
        assert seconds == ["", "not finished after 180 s"] and "tests/gpu: 9 passed in 3 s" in capsys.readouterr().out
        assert not list(tmp_path.iterdir())
    else:
        assert any("--bench-until=160.0" in word for word in commands[0].words)
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["tests"] == "not run"


def test_a_measurement_is_on_disk_when_its_case_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "machine", lambda device: GPU)

    def ended(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu, "gathered", ended)
    with pytest.raises(KeyboardInterrupt):
        commanded(tmp_path, ["hangs"])
    (log,) = tmp_path.iterdir()
    assert log.name == "nvidia-some-gpu.jsonl"
    assert [line["ended"] for line in supervise.read(log) if "benchmark" in line] == ["a", "b", "dies", "c"]


@pytest.mark.slow
def test_a_checkout_needs_no_installation(tmp_path):
    """Without the package, its folders are laid out as they install."""
    packages = Path(torch.__file__).parents[1]
    script = (
        f"import sys; sys.path += [{str(gpu.HERE)!r}, {str(packages)!r}]; import gpu; assert gpu.missing() == '';"
        "import os, wafer_triton.kernels as kernels; from wafer_triton.models import config;"
        "print(kernels.__file__, os.environ['PYTHONPATH'])"
    )
    command = [sys.executable, "-I", "-S", "-c", script]
    found, path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert Path(found).resolve() == gpu.HERE.parent / "kernels" / "__init__.py"
    assert found.startswith(path.split(os.pathsep)[0])


def test_a_package_that_is_missing_is_named_with_the_one_command(capsys, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pytest_benchmark" else find(name))
    assert gpu.main([]) == 3
    assert capsys.readouterr().err == f"no pytest_benchmark here; run: pip install {gpu.HERE.parent}[bench]\n"


def test_a_decode_step_is_reported_with_and_without_the_host():
    facts = {"what": "decode step, 32 layers", "exchange": "explicit", "whole_step_seconds": 0.0125}
    records = [{"extra_info": facts, "stats": {"median": 0.01}}, {"extra_info": {}, "stats": {"median": 1.0}}]
    assert gpu.report.steps({"benchmarks": records}) == [
        "decode step, 32 layers, explicit: 12.5 ms a step with the host's part, 10 ms the replay alone"
    ]


def test_pictures_that_cannot_be_drawn_lose_no_figure(tmp_path, capsys, monkeypatch):
    def refused(*_):
        raise OSError("no fonts")

    monkeypatch.setattr(gpu.report, "plots", refused)
    assert commanded(tmp_path, [], "--rehearse")[0] == 0
    assert "no plots: OSError: no fonts" in capsys.readouterr().out
