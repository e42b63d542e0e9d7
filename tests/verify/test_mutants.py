"""Random mutants of every schedule: wrong values are found. Healthy schedules raise nothing."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import mutants as program
from changes import CHANGES
from healthy import cases
from mutants import EXPLAINED, Healthy, alarms_of, mutant, mutants
from wafer_triton.verify import values

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def healthy() -> list[Healthy]:
    return [Healthy(case) for case in cases()]


@pytest.mark.parametrize("seed", [11, 12])
def test_every_mutant_with_wrong_values_is_found(seed, healthy):
    tested = list(mutants(seed, 150, healthy))
    missed = [str(each) for each in tested if each.wrong and not each.verdicts]
    assert not missed, "\n".join(missed)
    assert {name for each in tested if not each.wrong for name in each.verdicts} <= EXPLAINED.keys()
    assert sum(each.wrong for each in tested) > len(tested) / 2


def test_at_least_a_third_of_the_changes_apply_to_every_schedule(healthy):
    """Count, for every healthy schedule, the changes that apply to it."""
    changes = Counter()
    for place, each in enumerate(healthy):
        for change in CHANGES.values():
            changes[each.case.name] += change(each.case.schedule, np.random.default_rng(place)) is not None
    assert min(changes.values()) >= len(CHANGES) // 3, changes.most_common()[-1]


def test_the_program_prints_tables_and_fails_for_missed_mutants(monkeypatch, capsys, healthy):
    monkeypatch.setattr(program, "cases", lambda: [each.case for each in healthy[:3]])
    assert program.main(7, [1, 2]) == 0
    head = capsys.readouterr().out.splitlines()[0]
    assert head.split() == ["schedule", "mutants", "wrong", "found", "false", "alarms"]
    blind = SimpleNamespace(names=frozenset())
    monkeypatch.setattr(program, "check", lambda *_: blind)
    assert program.main(7, [1, 2]) == 1
    assert capsys.readouterr().out.startswith("missed: seed 1, mutant ")


def test_every_output_is_judged(healthy):
    for each in healthy:
        kept = {name for name, buffer in each.case.schedule.buffers.items() if buffer.kept}
        assert kept <= each.free.keys(), each.case.name
        judged = [name for name, free in each.free.items() if not free.all()]
        assert kept - {*judged} <= {"values"}, each.case.name  # which prefill leaves where no one reads them


def test_a_mutant_is_the_same_for_the_same_seed_and_number(healthy):
    assert mutant(5, 3, healthy) == list(mutants(5, 4, healthy))[3]
    assert str(mutant(5, 3, healthy)).startswith("mutant 3: ")


@pytest.mark.parametrize("mesh", ["1", "1x2", "4x2", "5"])
def test_healthy_schedules_of_every_kind_raise_nothing(mesh, monkeypatch):
    """Check with no more runs than an intent asks for; 2 x 3 is in test_faults.py, `make mutants` goes up to 7 x 5."""
    monkeypatch.setattr(values, "LITTLE", 0)
    assert not alarms_of(mesh)


def test_an_alarm_at_a_healthy_schedule_is_printed(monkeypatch, capsys, healthy):
    monkeypatch.setattr(program, "cases", lambda: [healthy[0].case])
    assert program.main(1, [1], ["1x2"]) == 0
    capsys.readouterr()
    monkeypatch.setattr(program, "on_mesh", lambda _: [replace(healthy[0].case, intent=healthy[1].case.intent)])
    assert program.main(1, [1], ["1x2"]) == 1
    assert capsys.readouterr().out.startswith(f"alarm: {healthy[0].case.name} on 1x2: ")
