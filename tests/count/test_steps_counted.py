"""Loops, rings and trees that a user may write have the counts, the routes and the price of their rounds."""

from dataclasses import replace

import pytest

from steps_at_random import facts, schedule
from wafer_triton.schedule.rules import findings
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.schedule.steps import Rounds


def differing(made: Schedule) -> list[str]:
    flat = replace(made, rounds=Rounds(made.rounds.flat))
    steps, rounds = facts(made), facts(flat)
    folded = made.mesh.fold[0] > 1  # where rows turn, the links of the first time stand for all times
    bound = {name: 0.01 * rounds["price: cycles"] for name in steps if folded and name.startswith("price: ")}
    return [
        f"{name}: {steps[name]} by the steps, {rounds[name]} by the rounds"
        for name in steps
        if steps[name] != rounds[name] and not (name in bound and abs(steps[name] - rounds[name]) < bound[name])
    ]


@pytest.mark.slow
def test_random_steps_are_counted_and_priced_as_their_rounds():
    made = [schedule(seed) for seed in range(200)]
    wrong = {one.name: found for one in sorted(made, key=lambda one: len(one.rounds)) if (found := differing(one))}
    assert not wrong, next(iter(wrong.items()))
    kinds = {type(step).__name__ for one in made for step in one.rounds.steps}
    assert kinds == {"Round", "Loop", "Ring", "Tree"}


def test_random_steps_break_rules_of_slots_alone():
    verdicts = {finding.verdict for seed in range(50) for finding in findings(schedule(seed))}
    assert verdicts <= {"two-writers", "overwritten"}
