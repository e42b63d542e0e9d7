"""bench/paired: every case runs in this checkout, and two checkouts take turns."""

import io
import json
import sys

import pytest

import paired


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name, _ in paired.cases() if "SmolLM2" not in name and "Llama-3" not in name]
)
def test_a_case_runs(name):
    dict(paired.cases())[name]()()


def test_a_worker_answers_with_runs_then_with_seconds_a_run(monkeypatch):
    monkeypatch.setattr(paired, "cases", lambda: iter([("one", lambda: lambda: ran.append(1)), ("bad", lambda: 1 / 0)]))
    monkeypatch.setattr(paired, "SECONDS", 0.0)
    monkeypatch.setattr(paired, "process_time", lambda: next(clock))
    ran, clock, answers = [], iter([0.0, 6.0]), []
    for name, runs in (("one", 3), ("bad", 1)):
        out = io.StringIO()
        monkeypatch.setattr(sys, "stdin", io.StringIO(f"{runs}\n"))
        monkeypatch.setattr(sys, "stdout", out)
        paired.work(name)
        answers.append(json.loads(out.getvalue()))
    assert answers == [2.0, "ZeroDivisionError: division by zero"] and len(ran) == 2 + 3


class Worker:
    """Answers with its seconds, one after the other."""

    def __init__(self, *seconds):
        self.seconds, self.asked = iter(seconds), []

    def ask(self, runs):
        self.asked.append(runs)
        return next(self.seconds) if runs else 4


def test_a_ratio_is_the_median_over_turns(monkeypatch):
    monkeypatch.setattr(paired, "TURNS", 3)
    here, other = Worker(0.002, 0.002, 0.9), Worker(0.004, 0.004, 0.1)  # the last turn was disturbed
    assert paired.compared(here, other, "a case") == "| a case | 2 | 4 | 0.50 |"
    assert here.asked == [0, 4, 4, 4] and other.asked == [4] * 3, "as many runs as found in this checkout"
    lacking = Worker("KeyError: 'a case'")
    assert paired.compared(Worker(0.002), lacking, "a case") == "| a case | 0.002 | KeyError: 'a case' | |"
