"""Hand-counted accounts of small schedules."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from schedules import moved
from wafer_triton import price
from wafer_triton.algorithms.product import recipe
from wafer_triton.count.account import Account, account, link_loads, per_round
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import ScheduleError
from wafer_triton.ops import mesh_gemm
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores
from wafer_triton.schedule.schedule import Schedule


def schedule(mesh: Mesh, *moves, work: int = 0) -> Schedule:
    """Build a round of 12-byte moves a -> b, (axis, send, recv[, lines]) each, and `work` multiply-adds."""
    b = Builder(mesh, "counted")
    b.buffer("a", (3,), "fp32", "input")
    steps = [*moved(b, *moves)]
    if work:
        b.buffer("c", (work,), "fp32")
        b.buffer("d", (work,), "fp32")
        b.buffer("e", (1,), "fp32")
        steps.append(b.local("gemm", "e", ("c", "d"), m=1, k=work, n=1))
    b.round(*steps)
    return b.build()


def counts(totals: Account) -> dict[str, int]:
    return {
        name: getattr(totals, name)
        for name in ("rounds", "stages", "hops", "messages", "link_bytes", "busiest_link_bytes")
    }


@pytest.mark.parametrize(
    ("mesh", "move", "hops", "messages", "tiles", "busiest"),
    [
        (Mesh(1, 4), ("x", [0], [1]), 1, 1, 1, 1),
        (Mesh(1, 4), ("x", [0], [3]), 3, 1, 3, 1),
        (Mesh(2, 4), ("x", [3], [0]), 3, 2, 6, 1),
        (Mesh(2, 4), ("x", [0], [3], [1]), 3, 1, 3, 1),
        (Mesh(4, 2), ("y", [0, 1], [2, 3]), 2, 4, 8, 2),  # both cross the link from row 1 to row 2
        (Mesh(1, 5), ("x", [2, 2], [3, 4]), 2, 1, 2, 1),  # a multicast crosses each link once
        (Mesh(1, 5), ("x", 2, [0, 1, 3, 4]), 2, 1, 4, 1),
        (Mesh(3, 3), ("x", [[0], [-1], [2]], [[2], [-1], [1]]), 2, 2, 3, 1),
        (Mesh(1, 3), ("x", [0, 1, 2], [1, 2, 0]), 2, 3, 4, 1),  # two steps east, the way back west
        (Mesh(2, 3), ("x", [1], [1]), 0, 2, 0, 0),
    ],
    ids=["step", "far", "two-lines", "one-line", "shared-link", "multicast", "both-ways", "per-line", "wrap", "self"],
)
def test_one_exchange(mesh, move, hops, messages, tiles, busiest):
    totals = account(schedule(mesh, move))
    assert counts(totals) == {
        "rounds": 1, "stages": 1, "hops": hops, "messages": messages,
        "link_bytes": 12 * tiles, "busiest_link_bytes": 12 * busiest,
    }  # fmt: skip


def test_links_are_named_by_direction_and_sending_core():
    loads = link_loads(schedule(Mesh(2, 3), ("x", [0], [2]), ("y", [1], [0], [2])))
    assert loads.keys() == {"east", "west", "south", "north"} and not loads["west"].any() and not loads["south"].any()
    assert loads["east"].tolist() == [[12, 12, 0], [12, 12, 0]]
    assert loads["north"].tolist() == [[0, 0, 0], [0, 0, 12]]
    loads = link_loads(schedule(Mesh(2, 3), ("x", [2], [1], [0]), ("y", [0], [1])))
    assert loads["west"].tolist() == [[0, 0, 12], [0, 0, 0]]
    assert loads["south"].tolist() == [[12, 12, 12], [0, 0, 0]]


def test_exchanges_of_a_round_share_links_and_take_the_longest():
    totals = account(schedule(Mesh(1, 4), ("x", [0], [2]), ("x", [1], [2]), work=7))
    assert counts(totals) == {
        "rounds": 1, "stages": 1, "hops": 2, "messages": 2, "link_bytes": 36, "busiest_link_bytes": 24,
    }  # fmt: skip
    assert totals.macs == 7


def test_a_round_of_work_alone_is_no_stage():
    totals = account(schedule(Mesh(2, 2), work=5))
    assert (totals.rounds, totals.stages, totals.hops, totals.link_bytes, totals.macs) == (1, 0, 0, 0, 5)


def test_moves_inside_a_folded_core_cost_no_hop():
    mesh = Mesh(1, 2).square()  # a 2 x 2 grid on two cores
    inside = account(schedule(mesh, ("y", [0, 1], [1, 0])))
    assert (inside.hops, inside.link_bytes) == (0, 0)
    across = account(schedule(mesh, ("x", [0], [1])))
    assert (across.hops, across.link_bytes) == (1, 24)  # two logical rows share the link
    assert link_loads(schedule(mesh, ("x", [0], [1])))["east"].tolist() == [[24, 0]]
    mesh = Mesh(2, 4).square()  # rows of two logical ones each
    far = account(schedule(mesh, ("y", [0, 1], [2, 1]), work=3))
    assert (far.hops, far.link_bytes) == (1, 4 * 12)
    assert far.macs == 2 * 3, "a core works for all of its fold"


def test_accounts_add_up_and_repeat():
    one = account(schedule(Mesh(1, 4), ("x", [0], [2]), work=7))
    two = account(schedule(Mesh(1, 4), ("x", [3], [0])))
    both = one + two
    for name in ("rounds", "stages", "hops", "messages", "link_bytes", "busiest_link_bytes", "macs"):
        assert getattr(both, name) == getattr(one, name) + getattr(two, name)
        assert getattr(one * 3, name) == 3 * getattr(one, name)
    assert both.sram_peak_bytes == max(one.sram_peak_bytes, two.sram_peak_bytes)
    assert both.sram_by_buffer == max((one, two), key=lambda each: each.sram_peak_bytes).sram_by_buffer
    assert one + Account() == one == Account() + one
    few, many = Account(sram_by_buffer={"a": 9}), Account(sram_by_buffer={"a": 1, "b": 2})
    assert (few + many).sram_by_buffer == (many + few).sram_by_buffer == {"a": 9}, "the most bytes, not buffers"
    assert one * 3 == one + one + one
    assert (one * 3).sram_peak_bytes == one.sram_peak_bytes


def test_rounds_that_are_one_object_count_each_time():
    example = schedule(Mesh(1, 4), ("x", [0], [2]))
    twice = replace(example, rounds=(*example.rounds, *example.rounds))
    assert counts(account(twice)) == {name: 2 * value for name, value in counts(account(example)).items()}
    assert link_loads(twice)["east"].tolist() == [[24, 24, 0, 0]]


def test_the_text_of_an_account_has_units_and_keeps_the_mesh_from_a_core():
    # two lines: both tiles cross the link from core 1 to core 2, and one of them the link before it
    text = str(account(schedule(Mesh(2, 4), ("x", [0], [2]), ("x", [1], [2]), work=7)))
    assert text.split("\n") == [
        "critical path  1 round, 1 routing stage, 2 hops, 6 words over the busiest link of each run",
        "whole mesh     4 messages, 72 B summed over all links",
        "busiest link   24 B, at most 2 messages in a round",
        "busiest core   7 multiply-adds, SRAM peak 96 B: c 28 B, d 28 B, a 12 B, b0 12 B, b1 12 B, e 4 B",
    ]


def test_the_text_of_an_account_sums_small_buffers_and_lists_launches():
    buffers = {name: size for size, name in enumerate("abcdefgh", 1)}
    text = str(Account(rounds=2000, sram_peak_bytes=36, sram_by_buffer=buffers, launches=("gemm", "2 x move")))
    assert "2,000 rounds, 0 routing stages" in text
    assert text.endswith(
        "h 8 B, g 7 B, f 6 B, e 5 B, d 4 B, c 3 B, 2 smaller buffers 3 B\nemulation      launches: gemm, 2 x move"
    )
    assert str(Account()).endswith("0 multiply-adds, SRAM peak 0 B")


def test_a_record_does_not_depend_on_exchange_or_values():
    a = torch.randn(6, 6)
    records = [mesh_gemm(x, x, mesh=3, exchange=how, record=True)[1] for x, how in ((a, "explicit"), (0 * a, "elided"))]
    assert records[0] == records[1]
    assert records[0].sram_peak_bytes == sum(records[0].sram_by_buffer.values())


@pytest.mark.parametrize(
    ("moves", "flows", "serial"),
    [
        ([("x", [0], [2]), ("x", [1], [2])], 2, 6),
        ([("x", [0], [2]), ("x", [2], [0])], 1, 3),
        ([("x", [0], [1], [0]), ("x", [0], [1], [1])], 1, 3),
        ([("x", [0], [2], [0, 1]), ("x", [1], [2], [1])], 2, 6),
        ([("x", [0], [2]), ("x", [1], [2]), ("x", [[1], [1]], [[3], [3]])], 2, 6),
        ([("x", 0, [1, 2, 3])], 1, 3),
        ([("x", [0], [1]), ("x", [0], [2], [1]), ("x", [0], [3])], 1, 3),
        ([("x", [0], [1]), ("y", [0], [1])], 1, 3),
    ],
    ids=[
        "shared",
        "opposite",
        "other-lines",
        "some-lines-shared",
        "per-line",
        "multicast",
        "multicast-apart",
        "other-axis",
    ],
)
def test_flows_on_one_link_pass_one_by_one(moves, flows, serial):
    totals = account(schedule(Mesh(2, 4), *moves))
    assert (totals.flows, totals.serial_words) == (flows, serial)


def test_serial_words_add_up_over_runs_and_flows_do_not():
    crowded = account(schedule(Mesh(1, 4), ("x", [0], [2]), ("x", [1], [2])))
    free = account(schedule(Mesh(1, 4), ("x", [0], [1])))
    both = crowded + free
    assert (both.serial_words, both.flows) == (6 + 3, 2)
    assert ((both * 3).serial_words, (both * 3).flows) == (3 * 9, 2)


def test_every_round_has_its_account():
    example = recipe("gemm", Mesh(3, 3), "fp16", ((9, 9), (9, 9)), ()).schedule
    assert [one.stages for one in per_round(example)] == [bool(round_.exchanges) for round_ in example.rounds]
    totals = account(example)
    # two tiles of nine elements in fp16, each in five words, come over the busiest link of the alignment
    assert totals.serial_words == sum(one.serial_words for one in per_round(example))
    assert totals.flows == max(one.flows for one in per_round(example))


def test_loads_beyond_the_whole_numbers_of_a_float_are_exact():
    b = Builder(Mesh(2, 4), "large")
    b.buffer("a", (2**52 + 1,), "fp32", "input")
    b.buffer("b", (2**52 + 1,), "fp32")
    for lines in ([0], [0, 1], [[1], [2]]):
        send, recv = ([0], [3]) if np.ndim(lines) == 1 else (lines, [[2], [3]])
        b.round(b.exchange("x", "a", "b", send, recv, lines if np.ndim(lines) == 1 else [0, 1]))
    one = 4 * (2**52 + 1)
    assert link_loads(b.build(draft=True))["east"].tolist() == [[2 * one, 3 * one, 2 * one, 0], [one, one, 2 * one, 0]]


@pytest.mark.parametrize(("send", "recv"), [(4, 0), (9, 0), (0, 2)])
def test_a_draft_that_leaves_the_mesh_has_no_counts(send, recv):
    b = Builder(Mesh(1, 2), "off")
    b.buffer("x", (1,), "fp32", "state")
    b.round(b.exchange("x", "x", b.like("y", "x"), [send], [recv]))
    for count in (account, price):
        with pytest.raises(ScheduleError, match=r"round 0.*off the mesh"):
            count(b.build(draft=True))


SPLITS = {
    "everywhere": [[None]],
    "columns": [[Cores("x", [0])], [Cores("x", [1])]],
    "of each row another": [[Cores("x", [[0], [1], [0]])], [Cores("x", [[1], [0], [1]])]],
    "a column, and all": [[Cores("x", [1]), None]],
}


@pytest.mark.parametrize("split", SPLITS)
def test_the_busiest_core_has_the_operations_that_it_runs(split):
    """A round in which each core runs one product costs what one product does, on whatever cores others run."""
    found = []
    for groups in (SPLITS[split], [[None] * len(SPLITS[split][0])]):
        b = Builder("3x2", "products")
        for name, role in (("a", "input"), ("w", "input"), ("c", "state")):
            b.buffer(name, (4, 4), "fp32", role)
        ops = [b.local("gemm", "c", ("a", "w"), where, m=4, k=4, n=4, add=True) for group in groups for where in group]
        b.round(*ops)
        b.round(*(b.local("copy", "c", "a", op.where, size=16) for op in ops))
        made = b.build()
        found.append((account(made).macs, price(made).cycles, price(made).tuned_cycles))
    assert found[0] == found[1] and found[0][0] == 64 * len(SPLITS[split][0])
