"""The traffic of runs by hand; test_walk.py compares it with a walk of every message of every core."""

from dataclasses import replace

import numpy as np
import pytest

from wafer_triton.algorithms.product import recipe
from wafer_triton.algorithms.reduce import all_reduce
from wafer_triton.cost.price import price
from wafer_triton.count.account import account
from wafer_triton.count.runs import RoundRun, kind, runs
from wafer_triton.count.traffic import RunTraffic, Traffic
from wafer_triton.device import device
from wafer_triton.device.mesh import Mesh
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores, Round, Slot

ROOMY = replace(device("wse2"), sram_bytes=1 << 40)


def builder(rows: int, cols: int, words: int = 1) -> Builder:
    b = Builder(Mesh(rows, cols, ROOMY), "traffic")
    for name in ("a", "b"):
        b.buffer(name, (words,), "fp32", "input")
    return b


def traffic(b: Builder) -> RunTraffic:
    """Return the traffic of all rounds as one run."""
    return Traffic(b).run(RoundRun(tuple(b.rounds)))


def test_a_path_goes_on_from_where_data_arrived():
    b = builder(1, 8)
    for core in range(3):
        b.round(b.exchange("x", "a", "a", [core], [core + 1]))
    assert traffic(b).hops == 3


def test_other_data_is_not_waited_for():
    b = builder(1, 8)
    b.round(b.exchange("x", "a", "a", [0], [2]))
    b.round(b.exchange("x", "a", "a", [3], [7]))
    b.round(b.exchange("x", "a", "a", [2], [3]))
    assert traffic(b).hops == 4  # longer than 0 to 2 to 3


def test_moves_along_both_axes_of_a_round_go_at_the_same_time():
    b = builder(4, 4)
    for core in range(2):
        b.round(b.exchange("x", "a", "a", [core], [core + 1]), b.exchange("y", "b", "b", [0], [core + 1]))
    assert traffic(b).hops == 2  # 1 + 1 along x; at most 2 along y, where nothing follows on


def test_rounds_along_one_axis_and_then_the_other_add_up():
    b = builder(3, 5)
    b.round(b.exchange("x", "a", "a", 0, [1, 2, 3, 4], [0]))
    b.round(b.exchange("y", "a", "a", 0, [1, 2]))
    assert traffic(b).hops == 4 + 2


def test_positions_in_one_physical_core_are_no_hop_apart():
    b = Builder(replace(Mesh(1, 3, ROOMY), fold=(2, 4)), "folded")  # 2 rows of 12 positions
    b.buffer("a", (3,), "fp32", "input")
    b.round(b.exchange("x", "a", "a", [0, 5], [3, 10]))
    # 0 to 3 stays inside; 5 to 10 crosses one link, which the two rows share
    assert traffic(b) == RunTraffic(hops=1, busiest_words=2 * 3, mean_words=6.0, link_bytes=2 * 12)


def test_words_are_per_busiest_line_and_bytes_per_mesh():
    b = builder(3, 5, words=2)
    b.round(b.exchange("x", "a", "a", [0], [3]))
    b.round(b.exchange("x", "a", "a", 0, [1, 2], [1]))
    # on line 1 links 0 and 1 carry both tiles, link 2 the first alone; the multicast crosses two links
    assert traffic(b) == RunTraffic(hops=3, busiest_words=4, mean_words=(4 + 4 + 2) / 3, link_bytes=8 * (3 * 3 + 2))


def test_mean_words_are_no_fewer_than_those_of_the_largest_tile():
    b = builder(1, 200)
    b.buffer("large", (100,), "fp32", "input")
    b.like("next", "large")
    stays = b.exchange("x", "large", "next", [0], [0])
    b.round(stays, b.exchange("x", "a", "b", [0], [2]), b.exchange("x", "b", "a", [1], [2]))
    assert traffic(b).mean_words == 1.5  # one tile crosses the first link, two the second; the large one crosses none
    b.steps.clear()
    b.round(
        b.exchange("x", "large", "next", [0], [99]),  # its last word comes after 99 others and 99 hops
        b.exchange("x", "a", "b", np.arange(100, 198, 2), np.arange(101, 199, 2)),  # 49 links with one word each
    )
    assert traffic(b) == RunTraffic(hops=99, busiest_words=100, mean_words=100, link_bytes=4 * (99 * 100 + 49))


def test_halves_of_a_word_take_a_word():
    b = Builder(Mesh(1, 2, ROOMY), "fp16")
    b.buffer("a", (3,), "fp16", "input")
    b.round(b.exchange("x", "a", "a", [0], [1]))
    assert traffic(b) == RunTraffic(hops=1, busiest_words=2, mean_words=2.0, link_bytes=6)


def test_nothing_moves():
    b = builder(2, 2)
    b.round(b.local("copy", "b", "a", size=1))
    b.steps.append(Round((b.exchange("x", "a", "b", [], []),)))
    assert traffic(b) == RunTraffic()


def test_rows_that_are_summed_to_cores_of_their_own_take_turns():
    """GEMM-T: every row has its sum once at every core."""
    schedule = recipe("gemm", Mesh(5, 5, ROOMY), "fp16", ((5, 5), (5, 5)), (("transposed", "b"),)).schedule
    sums = [run for run in runs(schedule) if kind(run.ends[0]) == "stream"]
    # Chains run from both ends to a core; in every turn one row's core is the first or the last, four hops away.
    assert [Traffic(schedule).hops(run) for run in sums] == [4, 4, 4, 4, 4]


def test_a_whole_buffer_counts_whole():
    """Check that all slots sent as one tile put the same bytes on the links as one slot of their size."""
    found = []
    for tile, slots, whole in ((96, 1, False), (32, 3, True)):
        b = Builder(Mesh(5, 5, ROOMY), "sums")
        b.buffer("a", (tile,), "fp32", "state", slots)
        all_reduce(b, Slot("a", None) if whole else "a", "y")
        found.append((account(b.build()).link_bytes, price(b.build()).cycles, price(b.build()).link_cycles))
    assert found[0] == found[1]


@pytest.mark.parametrize("axis", ["x", "y"])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("shifts", [(0, 1, 2, 3), (1, 2, 3, 0), (2, 1, 3, 0), (3, 0, 0, 0)])
def test_words_are_those_of_the_fullest_line(axis, apart, shifts):
    """Row or column i shifts its tiles by shifts[i], in one exchange or in one for each: as full as the fullest."""
    b, at = Builder(Mesh(4, 4), "shifts"), np.arange(4)
    for name in ("a", "c"):
        b.buffer(name, (480,), "fp32", "state")
    to = [(at + by) % 4 for by in shifts]
    if apart:
        b.round(*(b.exchange(axis, "a", "c", at, recv, lines=[line]) for line, recv in enumerate(to)))
    else:
        b.round(b.exchange(axis, "a", "c", np.stack([at] * 4), np.stack(to)))
    schedule = b.build()
    (run,) = runs(schedule)
    assert Traffic(schedule).run(run).busiest_words == account(schedule).busiest_link_bytes // 4 > 0


@pytest.mark.parametrize("axis", ["x", "y"])
def test_whole_tiles_are_waited_for_in_every_round(axis):
    """A core of a butterfly has its message from afar after those from near by; other lines need not wait for it."""
    b, at = Builder(Mesh(8, 8), "butterfly"), np.arange(8)
    for name in ("a", "c"):
        b.buffer(name, (48,), "fp32", "state")
    for distance in (1, 2, 4):
        b.round(b.exchange(axis, "a", "c", at, at ^ distance))
    b.round(b.exchange(axis, "a", "c", [0, 1], [1, 0], lines=[3]))
    schedule = b.build()
    (run,) = runs(schedule)
    assert account(schedule).serial_words == Traffic(schedule).run(run).busiest_words == (1 + 2 + 4 + 1) * 48
    b.round(b.exchange(axis, "a", "c", [0, 1], [1, 0], lines=[4]))
    assert account(b.build()).serial_words == 8 * 48


def test_moves_that_stream_and_moves_of_whole_tiles_have_words_of_their_own():
    """The same moves in two rounds: sums flow over a line at once, tiles that are not combined wait."""
    found = []
    for combined in (True, False):
        b = Builder(Mesh(2, 4), "sums" if combined else "tiles")
        for name in ("a", "c"):
            b.buffer(name, (48,), "fp32", "state")
        for send, recv in (([[0], [2]], [[1], [1]]), ([[1], [1]], [[3], [0]])):
            moved = b.exchange("x", "a", "c", send, recv)
            b.round(moved, *[b.local("add", "a", ("a", "c"), Cores("x", recv), size=48)] * combined)
        found.append((kind(b.build().rounds[0]), account(b.build()).serial_words))
    assert found == [("stream", 48), ("tiles", 96)]
