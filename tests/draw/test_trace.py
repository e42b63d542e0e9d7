"""The trace equals the account round by round, and can be read as a table."""

import numpy as np
import pytest

from wafer_triton import draw
from wafer_triton.algorithms.product import recipe
from wafer_triton.count.account import account, per_round
from wafer_triton.device.mesh import Mesh
from wafer_triton.draw.trace import trace
from wafer_triton.schedule import sram
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.schedule import Schedule


def gemm(mesh: Mesh, algorithm: str = "mesh") -> Schedule:
    return recipe("gemm", mesh, "fp16", ((12, 12), (12, 12)), (("algorithm", algorithm),)).schedule


def work_alone() -> Schedule:
    b = Builder(Mesh(2, 2), "work alone")
    b.buffer("a", (3,), "fp32", "input")
    b.buffer("b", (3,), "fp32", "output")
    b.round(b.local("copy", "b", "a", size=3))
    return b.build()


SCHEDULES = {
    "square": gemm(Mesh(4, 4)),
    "folded": gemm(Mesh(2, 3)),
    "one-core": gemm(Mesh(1, 1)),
    "summa": gemm(Mesh(3, 3), "summa"),
    "gemv": recipe("gemv", Mesh(5, 4), "fp32", ((1, 12), (12, 12)), ()).schedule,
    "work-alone": work_alone(),
}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_a_trace_adds_up_to_the_account(schedule):
    traced, total = trace(schedule), account(schedule)
    for name in ("messages", "link_bytes", "macs"):
        assert traced.counts[name].shape == (len(schedule.rounds),)
        assert traced.counts[name].sum() == getattr(total, name), name
    assert traced.counts["hops"].tolist() == [counted.hops for counted in per_round(schedule)]
    assert traced.counts["busiest_link_bytes"].sum() == total.serial_bytes
    assert traced.counts["flows"].max() == total.flows
    assert sum(bool(axes) for axes in traced.axes) == total.stages


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_sram_over_the_rounds_peaks_where_the_account_says(schedule):
    traced, held = trace(schedule), sram.account(schedule)
    assert traced.sram.shape == (len(schedule.rounds), len(schedule.buffers))
    assert traced.sram.sum(1).max() == held.peak_bytes
    assert traced.sram.sum(1).argmax() == held.peak_round
    at_peak = dict(zip(schedule.buffers, traced.sram[held.peak_round].tolist(), strict=True))
    assert {name: size for name, size in at_peak.items() if size} == held.by_buffer


def test_a_trace_has_axes_labels_and_overlap():
    traced = trace(SCHEDULES["square"])
    assert traced.labels == ("align a and b",) * 3 + ("gemm",) * 4 + ("sums to fp16",)
    assert traced.axes == ("xy", "xy", "", "xy", "xy", "xy", "xy", "")
    assert np.flatnonzero(traced.overlaps).tolist() == [3, 4, 5, 6], "the shifts of MeshGEMM run beside its products"


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
