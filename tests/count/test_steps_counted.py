"""Loops, rings and trees that a user may write have the counts, the routes and the price of their rounds."""

from dataclasses import replace

import numpy as np
import pytest

from steps_at_random import facts, schedule
from wafer_triton.device.mesh import Mesh
from wafer_triton.local import local_op
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Moves, Slot
from wafer_triton.schedule.rules import findings
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.schedule.steps import Ring, Rounds


def differing(made: Schedule) -> list[str]:
    flat = replace(made, rounds=Rounds(made.rounds.flat))
    steps, rounds = facts(made), facts(flat)
    return [
        f"{name}: {steps[name]} by the steps, {rounds[name]} by the rounds"
        for name in steps
        if steps[name] != rounds[name]
    ]


def test_a_ring_of_elementwise_operations_goes_on_as_its_rounds_do(registered):
    @local_op(tiles=lambda *, size, add: ((size,),) * 3, work=lambda *, size, add: (0, 2 * size), elementwise=True)
    def times_torch(out, a, b, *, size: int, add: bool = False):
        out.copy_(a * b + (out if add else 0))

    for side in range(2, 7):
        b, at = Builder(Mesh(side, side), f"ring of {side}"), np.arange(side)
        for name in ("a", "b", "sums"):
            b.buffer(name, (4,), "fp32", "state")
        hands = tuple((Slot(name), Slot(b.like(f"{name}.next", name))) for name in "ab")
        shifts = tuple(Moves(axis, at, np.roll(at, 1)) for axis in "xy")
        b.steps.append(Ring(b.local("times", "sums", ("a", "b"), size=4), hands, shifts, side))
        assert not differing(b.build()), side


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
