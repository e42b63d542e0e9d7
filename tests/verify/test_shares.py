"""Explanations of wrong results: which shares are wrong, and the core and the round in which that began."""

import re

import numpy as np
import pytest

from drafts import with_local
from rings import ring, summed
from wafer_triton.algorithms.reduce import all_reduce
from wafer_triton.device.mesh import Mesh
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores, Slot
from wafer_triton.verify.faults import Intent, check

MESH = Mesh(4, 4)
SUM = Intent({"x": "(y r) (x k) (slot s)"}, {"x": "(y r) (slot s)"}, reference=summed)


def explained(verdict):
    """Return what a finding says behind the result itself: the wrong shares, and where they began."""
    (finding,) = verdict.findings
    assert finding.verdict == "wrong-values"
    return finding.message.partition(", not with ")[2].partition("; ")[2]


@pytest.mark.parametrize(
    ("kind", "number", "core", "kinds"),
    [
        ("skipped", 2, (2, 1), "lacks"),
        ("skipped", 0, (1, 3), "lacks"),
        ("lost", 1, (2, 1), "lacks"),
        ("wrong", 1, (2, 1), "should not have"),
        ("wrong", 4, (3, 3), "should not have"),
        ("twice", 1, (2, 1), "twice"),
        ("twice", 2, (0, 3), "twice"),
        ("late", 1, (2, 1), "should not have"),
        ("late", 2, (3, 0), "should not have"),
    ],
)
def test_a_mistake_is_explained_by_the_core_and_the_round_that_make_it(kind, number, core, kinds):
    said = explained(check(ring(MESH, (kind, (number, core))), SUM))
    began = said.rpartition("; ")[2]
    assert kinds in said and f"core {core}" in began and re.search(rf"round {number}\b", began), said


def test_missing_tiles_are_named():
    said = explained(check(ring(MESH, ("skipped", (1, (2, 1)))), SUM))
    assert said.startswith("it lacks x[3] of core (2, 0), x[3] of core (2, 3); ")


def test_a_buffer_that_is_sent_whole_is_named():
    b = Builder(Mesh(1, 2), "pair")
    b.buffer("x", (2,), "fp32", "output", 2)
    whole, inbox = Slot("x", None), Slot(b.like("inbox", "x"), None)
    add = b.local("add", whole, (whole, inbox), Cores("x", [1]), size=4)
    b.round(b.exchange("x", whole, inbox, [0], [1]), add, add)
    began = explained(check(b.build(), Intent({"x": "(x k) (slot s)"}, {}, reference=summed)))
    assert "x[0] of core (0, 0)" in began


@pytest.mark.parametrize("algorithm", ["ktree", "pipeline", "two-phase", "star"])
def test_an_add_that_a_core_leaves_out_is_found_in_built_in_sums(algorithm):
    b = Builder(Mesh(3, 16), "sum")
    b.buffer("x", (16,), "fp32", "output")
    all_reduce(b, "x", "x", algorithm=algorithm)
    schedule, number = b.build(), 0 if algorithm == "star" else 1
    rows, cols = np.divmod(schedule.rounds[number].locals[0].where.flat(schedule.mesh), 16)
    core = (2, int(cols[rows == 2][0]))
    others = (rows != core[0]) | (cols != core[1])
    intent = Intent({"x": "(y r) (x k)"}, {"x": "(y r)"}, reference=summed)
    where = Cores.of(rows[others], cols[others], paired=True)
    began = explained(check(*with_local((schedule, intent), number, where=where))).rpartition("; ")[2]
    assert f"of core {core}, which round {number} writes" in began
