"""Redistributions: their sections are the runs of their rounds, for units in any order."""

import numpy as np
import pytest

from wafer_triton.count.runs import counted_runs, runs
from wafer_triton.device.mesh import Mesh
from wafer_triton.place.transfers import blocks_of, redistribute
from wafer_triton.schedule.repeat import Section


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize(("side", "units"), [(12, 60), (30, 200), (8, 8), (20, 77)])
def test_sections_of_a_redistribution_are_the_runs_of_its_rounds(side, units, mixed):
    draw, sections = np.random.default_rng(side), 0
    for _ in range(8):
        here, there = draw.integers(1, side + 1, 2).tolist()
        source, target = blocks_of(units, here), blocks_of(units, there) + draw.integers(0, side - there + 1)
        target = draw.permutation(target) if mixed else target
        schedule = redistribute(Mesh(side, side), "x", source, target, 4, "fp16")
        assert [len(run) for run in runs(schedule)] == [len(run) for run, _ in counted_runs(schedule)]
        sections += sum(isinstance(step, Section) for step in schedule.rounds.steps)
    assert sections or units == side
