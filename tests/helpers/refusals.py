"""A builder with some buffers, and its error for a round that breaks a rule of the machine."""

import pytest

from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import ScheduleError, WaferError
from wafer_triton.schedule.builder import Builder


def builder(rows: int = 2, cols: int = 3) -> Builder:
    b = Builder(Mesh(rows, cols), "demo")
    for name in ("a", "b", "c"):
        b.buffer(name, (4,), "fp32", "input")
    b.buffer("two", (4,), "fp32", "scratch", 2)
    b.buffer("half", (4,), "fp16")
    b.buffer("long", (5,), "fp32")
    return b


def refused(b: Builder, *steps, message: str, label: str = "") -> None:
    b.round(*steps, label=label)
    with pytest.raises(ScheduleError) as caught:
        b.build()
    where = "demo, round 0" + (f" ({label})" if label else "") + ": "
    assert str(caught.value) == where + message, str(caught.value)
    assert isinstance(caught.value, WaferError)
