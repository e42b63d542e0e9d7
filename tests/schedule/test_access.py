"""What a round reads and writes, in order."""

import numpy as np

from wafer_triton.device.mesh import Mesh
from wafer_triton.schedule.access import acts, overlaps, written
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores, Slot


def test_exchanges_read_before_they_write_and_operations_follow_in_order():
    b = Builder(Mesh(2, 3), "accesses")
    for name, slots in (("a", 1), ("two", 2), ("c", 1), ("d", 1)):
        b.buffer(name, (4,), "fp32", "state", slots)
    shift = b.exchange("x", "a", Slot("two", 1), send=[0, 1], recv=[1, 2])
    product = b.local("gemm", "c", ("a", Slot("two", 0)), Cores("y", [1]), m=2, k=2, n=2, add=True)
    part = b.local("copy", "d", "c", size=3)
    round_ = b.round(shift, product, part)
    schedule = b.build()

    exchanges, added, copied = acts(round_)
    (sent,), (arrived,) = exchanges.reads, exchanges.writes
    assert sent.cells(schedule).tolist() == [0, 1, 3, 4], "columns 0 and 1 of each row"
    assert arrived.cells(schedule).tolist() == [3, 5, 9, 11], "slot 1 of columns 1 and 2"
    assert [access.slot.buffer for access in added.reads] == ["a", "two", "c"], "the sums are read as well"
    assert [access.keeps(schedule) for act in (exchanges, added, copied) for access in act.writes] == [
        False,
        True,
        True,
    ]
    assert np.array_equal(copied.reads[0].cells(schedule), np.arange(6))
    assert round_.uses.keys() == {"a", "two", "c", "d"} and written(round_) == {"two", "c", "d"}
    assert not overlaps(round_), "the product reads another slot of the buffer in which tiles arrive"
