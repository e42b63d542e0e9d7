"""bench/gpu: no case takes others with it, time is kept, and the whole command on a CPU."""

import json
import os
import sys
import time
from pathlib import Path

import pytest
import torch

import cases
import gpu

WORKER = """
import json, sys, time
log, plan, quiet = sys.argv[1:]
lines = [json.loads(line) for line in open(log)] if __import__("os").path.exists(log) else []
write = lambda **line: print(json.dumps(line), file=open(log, "a"))
cases = ["a", "hangs", "b", "dies", "c"]
if not lines:
    write(cases=cases)
for case in cases:
    if case in {line.get("begun") for line in lines}:
        continue
    write(begun=case, patience=float(quiet))
    if case == plan or plan == "all" and case == "hangs":
        time.sleep(60)
    if plan == "all" and case == "dies":
        sys.exit(7)
    write(ended=case, benchmark={"name": case})
"""


def supervised(tmp_path, plan, quiet=1.0, seconds=30.0):
    log = tmp_path / "log.jsonl"
    command = [sys.executable, "-c", WORKER, str(log), plan, str(quiet)]
    return gpu.supervise(command, log, 20, time.time() + seconds, dict(os.environ))


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
    assert code == 0, [line for line in told if not line.startswith("|")]
    assert last["tests_passed"] and last["failed"] == [] and last["not_measured"] == 0
    results = json.loads(Path(last["results"]).read_text())
    assert len(results["benchmarks"]) == last["measured"] > 40
    assert {one["extra_info"]["exchange"] for one in results["benchmarks"]} == {*cases.ROWS, "copy"}
    for one in results["benchmarks"]:
        facts = one["extra_info"]
        assert 0 < facts["fraction_of_bandwidth"] < 2 and facts["sets"] >= 1 and facts["checked"], one["name"]
        assert facts["exchanged_bytes"] > 0 or facts["exchange"] not in ("explicit", "emulation"), one["name"]
    assert len(list(tmp_path.glob("rehearsal-*.svg"))) == len(list(tmp_path.glob("rehearsal-*.png"))) == 3
