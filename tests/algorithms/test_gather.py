"""Gathered rows are those of the table, bit by bit, and the price chooses between sum and ring."""

from itertools import product

import pytest
import torch

from gathers import IDS, ROWS, WIDTH, build, check_rows
from schedules import ROOMY
from wafer_triton import Mesh, account, as_mesh, executor, price
from wafer_triton.algorithms.gather import ALGORITHMS
from wafer_triton.errors import MeshError, SramError


@pytest.mark.parametrize("exchange", ["explicit", "elided"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("mesh", ["1x4", "3x3", "2x5", "8x8"])
def test_rows_equal_the_table_s(mesh, algorithm, exchange):
    for axis, dtype in product("xy", ("fp32", "bf16", "fp16")):
        check_rows(build(as_mesh(mesh), axis, dtype, algorithm), axis, algorithm, "torch", exchange)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_rows_of_kernels_equal_the_table_s(algorithm):
    """The other meshes are in test_gather_kernels.py."""
    check_rows(build(as_mesh("1x3"), "x", "bf16", algorithm), "x", algorithm, "triton", "explicit")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_segment_has_a_copy_of_the_table(algorithm):
    for axis, segment in (("x", 2), ("y", 3)):
        schedule = build(as_mesh("6x4"), axis, "fp32", algorithm, segment)
        check_rows(schedule, axis, algorithm, "torch", "explicit", segment)


def test_a_ring_keeps_the_sign_of_zero():
    schedule = build(as_mesh("1x2"), "x", "fp32", "ring")
    table = torch.full((1, 2, WIDTH, ROWS), -0.0)
    first = torch.tensor([0.0, ROWS]).view(1, 2, 1)
    program = executor("torch").bind(schedule, {"table": table, "first": first, "ids": torch.ones(1, 2, IDS)})
    program.run()
    assert program.read("out").signbit().all()


@pytest.mark.parametrize("side", [8, 16, 64])
def test_the_price_chooses_the_ring_from_some_fifty_words_a_core(side):
    """Each line of cores asks for `side` times as many ids as a core has with "ring"; a row has four numbers a core."""
    mesh, cheaper = Mesh(side, side, ROOMY), {}
    for ids in (1, 4, 8, 16, 32):
        by_sum = build(mesh, "x", "fp32", "sum", sizes=(4, ROWS, ids * side))
        ring = build(mesh, "x", "fp32", "ring", sizes=(4, ROWS, ids))
        cheaper[4 * ids] = min((price(by_sum).cycles, "sum"), (price(ring).cycles, "ring"))[1]
    assert [cheaper[words] for words in (4, 16, 64, 128)] == ["sum", "sum", "ring", "ring"], cheaper


def test_bytes_over_links_are_worked_out_by_hand():
    """Ids and rows go round in C - 1 steps, the rows once more; a step's C messages cross 2 (C - 1) links."""
    counts = account(build(as_mesh("3x5"), "x", "fp32", "ring"))
    rows, cols, row = 3, 5, IDS * WIDTH
    assert counts.link_bytes == 4 * rows * 2 * (cols - 1) * ((cols - 1) * (row + IDS) + row)
    assert counts.rounds == cols + 1


def test_wrong_gathers_are_refused():
    with pytest.raises(MeshError, match="gather algorithm 'all-to-all': choose one of sum, ring"):
        build(as_mesh("2"), "x", "fp32", "all-to-all")
    with pytest.raises(MeshError, match="a segment of 3 cores on a line of 2"):
        build(as_mesh("2"), "x", "fp32", "ring", 3)
    with pytest.raises(SramError, match="table"):
        build(as_mesh("2"), "x", "fp32", "ring", sizes=(WIDTH, 3000, IDS))
