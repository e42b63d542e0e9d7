"""The table of rounds adds up to the account."""

import pytest

from schedules import squares
from wafer_triton import draw
from wafer_triton.algorithms.product import recipe
from wafer_triton.count.account import account, per_round
from wafer_triton.device.mesh import Mesh
from wafer_triton.draw.trace import held
from wafer_triton.schedule import sram
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.schedule import Schedule


def work_alone() -> Schedule:
    b = Builder(Mesh(2, 2), "work alone")
    b.buffer("a", (3,), "fp32", "input")
    b.buffer("b", (3,), "fp32", "output")
    b.round(b.local("copy", "b", "a", size=3))
    return b.build()


SCHEDULES = {
    "square": squares(Mesh(4, 4), tile=3),
    "folded": squares(Mesh(2, 3)),
    "one-core": squares(Mesh(1, 1)),
    "summa": squares(Mesh(3, 3), "summa"),
    "gemv": recipe("gemv", Mesh(5, 4), "fp32", ((1, 12), (12, 12)), ()).schedule,
    "work-alone": work_alone(),
}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_a_table_of_rounds_adds_up_to_the_account(schedule):
    records, total = draw.rounds(schedule).records, account(schedule)
    assert [sum(row[name] for row in records) for name in ("messages", "link_bytes")] == [
        total.messages, total.link_bytes
    ]  # fmt: skip
    each = []  # the row of every round
    for row in records:
        first, _, last = row["rounds"].partition("-")
        assert int(first) == len(each)
        each += [row] * (int(last or first) + 1 - int(first))
    assert sum(row["macs"] for row in each) == total.macs
    assert [row["hops"] for row in each] == [counted.hops for counted in per_round(schedule)]
    assert max(row["flows"] for row in each) == total.flows
    assert sum(row["moves_along"][0] in "xy" for row in each) == total.stages
    assert max(row["sram_bytes"] for row in each) == total.sram_peak_bytes


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_sram_over_the_rounds_peaks_where_the_account_says(schedule):
    each, peak = held(schedule), sram.account(schedule)
    assert each.shape == (len(schedule.rounds), len(schedule.buffers))
    assert each.sum(1).max() == peak.peak_bytes
    assert each.sum(1).argmax() == peak.peak_round
    at_peak = dict(zip(schedule.buffers, each[peak.peak_round].tolist(), strict=True))
    assert {name: size for name, size in at_peak.items() if size} == peak.by_buffer


def test_a_table_puts_rounds_alike_in_one_row():
    said = [
        "mesh gemm [12, 12] x [12, 12] on mesh 4x4 of wse2",
        "rounds  step           moves along        hops  busiest link  flows  multiply-adds  core's SRAM  messages  over links",  # noqa: E501
        "---------------------------------------------------------------------------------------------------------------------",
        "0-1     align a and b  xy                    2          18 B      1              0         72 B        32       864 B",  # noqa: E501
        "2       align a and b  -                     0           0 B      0              0         72 B         0         0 B",  # noqa: E501
        "3-6     gemm           xy beside compute     2          18 B      1             27        108 B       128   3.375 KiB",  # noqa: E501
        "7       sums to fp16   -                     0           0 B      0              0         54 B         0         0 B",  # noqa: E501
    ]
    assert str(draw.rounds(SCHEDULES["square"])).split("\n") == said
