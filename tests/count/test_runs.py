"""The segmentation of schedules into runs, by hand."""

import numpy as np
import pytest

from wafer_triton.algorithms import align, gemm
from wafer_triton.algorithms.collectives import all_gather, broadcast, transpose
from wafer_triton.algorithms.kv_cache import KvCache
from wafer_triton.algorithms.reduce import reduce, ring_all_reduce, star
from wafer_triton.count.account import account
from wafer_triton.count.runs import kind, runs
from wafer_triton.device.mesh import Mesh
from wafer_triton.schedule.builder import Builder


def builder(*mesh: int) -> Builder:
    b = Builder(Mesh(*mesh), "runs")
    b.buffer("x", (4,), "fp32", "input")
    b.buffer("w", (4,), "fp32", "input")
    return b


def kinds(b: Builder) -> list[tuple[str, int]]:
    """Return the kind and the number of rounds of every run."""
    cut = runs(b.build(draft=True))
    assert [round_ for run in cut for round_ in run] == list(b.rounds)
    assert all(len({kind(round_) for round_ in run}) == 1 for run in cut)
    return [(kind(run.ends[0]), len(run)) for run in cut]


def test_a_reduction_streams_through_all_its_stages():
    b = builder(1, 9)
    reduce(b, "x", "x", groups=(3,))  # groups of three: one stage; then three roots: one stage
    broadcast(b, "x", "x", 4)
    assert kinds(b) == [("stream", 2), ("circuit", 1)]
    b = builder(3, 3)
    for axis in "xy":  # a stream does not turn
        reduce(b, "x", axis, algorithm="pipeline")
    assert kinds(b) == [("stream", 2), ("stream", 2)]


def test_a_star_is_one_round_of_a_stream():
    b = builder(1, 5)
    star(b, "x", "x")
    assert kinds(b) == [("stream", 1)]


def test_a_ring_all_reduce_is_cut_after_its_last_addition():
    b = builder(1, 4)
    ring_all_reduce(b, "x", "x")
    assert kinds(b) == [("local", 1), ("tiles", 3), ("tiles", 3), ("local", 1)]
    assert account(b.build()).hops == 4 * 4 - 6, "5 in each half, over links of 2, 1 and 2 hops"


@pytest.mark.parametrize("of", ["b", "d"])
def test_a_round_goes_on_if_its_senders_send_what_came_to_them(of):
    """What core 3 sends did not come to it, in whichever buffer it lies."""
    b = builder(1, 5)
    for name in "abcd":
        b.buffer(name, (1,), "fp32", "state")
    b.round(b.exchange("x", "a", "b", [0], [2]))
    b.round(b.exchange("x", of, "c", [3], [4]))
    assert kinds(b) == [("circuit", 1)] * 2
    counts = account(b.build())
    assert (counts.stages, counts.hops) == (2, 3)


def test_a_stream_goes_on_where_a_round_sends_what_the_round_before_combined():
    sums = {"x": [("stream", 3)], "w": [("stream", 1)] * 3}  # by the buffer that takes the sums
    for acc, cut in sums.items():
        b = builder(1, 4)
        b.like("mail", "x")
        for at in range(3):
            b.round(b.exchange("x", "x", "mail", [at], [at + 1]), b.local("add", acc, (acc, "mail"), size=4))
        assert kinds(b) == cut


@pytest.mark.parametrize("side, rounds", [(2, 1), (5, 2), (6, 3)])
def test_an_alignment_is_one_run_along_one_axis_or_both(side, rounds):
    b = builder(side, side)
    align.align(b, "x", "x")
    assert kinds(b) == [("tiles", rounds), ("local", 1)]
    b = builder(side, side)
    align.align_both(b, "x", "w")
    assert kinds(b) == [("tiles", rounds), ("local", 1)]


def test_rounds_of_other_axes_or_data_are_other_runs():
    b = builder(3, 3)
    align.align(b, "x", "x")
    align.align(b, "w", "x")
    align.align(b, "x", "y")
    assert kinds(b) == [("tiles", 1), ("local", 1)] * 3
    b = builder(3, 3)
    transpose(b, "x", b.like("z", "x"))  # down or up to the diagonal and then along the row, for either distance
    assert kinds(b) == [("local", 1), *[("tiles", 1)] * 2, ("circuit", 2)], "of the corner, a message alone"


def test_every_round_of_a_product_is_its_own_run():
    b = builder(4, 4)
    b.buffer("c", (4,), "fp32", "output")
    gemm.meshgemm(b, "x", "w", "c", m=2, k=2, n=2)
    assert kinds(b) == [("product", 1)] * 4


def test_a_circuit_sends_received_tiles_on():
    b = builder(3, 3)
    b.round(b.exchange("x", "x", "x", 0, [1, 2], [0]))
    broadcast(b, "x", "y", 0, label="")
    assert kinds(b) == [("circuit", 2)]
    b = builder(3, 3)
    b.buffer("all", (4,), "fp32", slots=3)
    all_gather(b, "x", "all", "x")  # every multicast sends from `x`, and none brings it
    assert kinds(b) == [("circuit", 1)] * 3


def test_lines_that_move_otherwise_pass_tiles_on():
    b = builder(2, 3)
    b.round(b.exchange("x", "x", b.like("y", "x"), np.array([[0], [1]]), np.array([[1], [2]])))
    assert kinds(b) == [("tiles", 1)]


def test_a_cache_that_hands_nothing_on_still_has_its_round():
    b = builder(2, 2)
    b.buffer("cache", (4,), "fp32", "cache", slots=4)
    KvCache(2, 3).append(b, {"cache": "x"}, 0)  # the first entry goes to the last row; its exchange moves no tile
    assert kinds(b) == [("circuit", 1)]
