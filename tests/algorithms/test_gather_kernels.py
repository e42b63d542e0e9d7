"""Gathered rows have torch's bits on every mesh, by Triton kernels too; `check` finds wrong gathers."""

from itertools import islice, product

import pytest
import torch

from gathers import IDS, ROWS, build, check_rows, on_lines
from healthy import Case
from mutants import Healthy, mutants
from wafer_triton import Intent, Schedule, as_mesh, check
from wafer_triton.algorithms.gather import ALGORITHMS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("exchange", ["explicit", "elided"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("mesh", ["1x4", "3x3", "2x5", "8x8"])
def test_rows_equal_the_table_s(mesh, algorithm, exchange):
    for axis, dtype in [("x", "bf16")] if mesh == "8x8" else product("xy", ("fp32", "bf16", "fp16")):
        check_rows(build(as_mesh(mesh), axis, dtype, algorithm), axis, algorithm, "triton", exchange)


def intent(schedule: Schedule, axis: str, algorithm: str) -> Intent:
    """Return what a gather is for: ids of rows that some core has, and of none."""
    length = schedule.mesh.length(axis)
    lines = schedule.mesh.cores // length

    def draw(tiles, run):
        random = torch.Generator().manual_seed(run)
        cores = length if algorithm == "ring" else 1
        ids = torch.randint(-1, length * ROWS, (lines, cores, IDS), generator=random).double()
        first = torch.arange(length).double()[:, None] * ROWS
        both = {"ids": ids.expand(lines, length, IDS), "first": first.expand(lines, length, 1)}
        return {name: on_lines(tile, axis) for name, tile in both.items()}

    def rows(tiles):
        table, ids = (on_lines(tiles[name], axis) for name in ("table", "ids"))  # of lines, cores
        table = torch.nn.functional.pad(table.mT.flatten(1, 2), (0, 0, 0, 1))  # the row after the last is of no core
        chosen = torch.stack([own[at.long()] for own, at in zip(table, ids, strict=True)])
        return {"out": on_lines(chosen, axis)}

    given = {name: {"row": "y", "column": "x"} for name in ("table", "ids", "first")}
    return Intent(given, {}, reference=rows, draw=draw, runs=6)


def test_every_mutant_with_wrong_values_is_found():
    healthy = []
    for mesh, axis, algorithm in product(("1x4", "3x3", "2x5"), "xy", ALGORITHMS):
        made = build(as_mesh(mesh), axis, "fp32", algorithm)
        healthy.append(Healthy(Case(f"{algorithm} along {axis} on {mesh}", made, intent(made, axis, algorithm))))
    assert all(check(each.case.schedule, each.case.intent).ok for each in healthy)
    tested = [*islice((mutant for mutant in mutants(3, 500, healthy) if mutant.wrong), 200)]
    assert len(tested) == 200
    assert not [str(mutant) for mutant in tested if not mutant.verdicts]
