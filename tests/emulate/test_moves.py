"""Exchanges as users may write them: every executor leaves the same tiles, with explicit and with elided exchange."""

import pytest
import torch

from wafer_triton import Builder, as_mesh
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.emulate.triton import TritonExecutor
from wafer_triton.schedule.rounds import Slot
from wafer_triton.schedule.schedule import Schedule

SWAP = {"send": [1, 0], "recv": [0, 1]}


@pytest.mark.parametrize("exchange", ["explicit", "elided"])
@pytest.mark.parametrize("executor", [TorchExecutor, TritonExecutor])
class TestMoves:
    def test_two_rounds_that_begin_with_one_exchange(self, executor, exchange):
        b = Builder(as_mesh("1x8"), "shared")
        b.buffer("x", (2,), "fp32", "input")
        for name in ("between", "y"):
            b.buffer(name, (2,), "fp32", "output")
        shared = b.exchange("x", "x", "y", send=[4, 5, 6], recv=[0, 1, 3])
        for core in (4, 6):
            b.round(shared, b.exchange("x", "x", "y", send=[[core] * 3], recv=[[2, 5, 7]]))
            if core == 4:
                b.round(b.local("copy", "between", "y", size=2))
        got = left(executor(exchange=exchange), b.build(), torch.arange(8.0).repeat_interleave(2).view(1, 8, 2))
        assert got["between"][0, [0, 1, 2, 3, 5, 7], 0].tolist() == [4, 5, 4, 6, 4, 4]
        assert got["y"][0, [0, 1, 2, 3, 5, 7], 0].tolist() == [4, 5, 6, 6, 6, 6]

    def test_tiles_that_came_full_circle_lie_in_another_buffer(self, executor, exchange):
        b = Builder(as_mesh("1x2"), "full circle")
        b.buffer("x", (2,), "fp32", "input")
        b.buffer("y", (2,), "fp32")
        b.buffer("z", (2,), "fp32")
        b.buffer("out", (2,), "fp32", "output", 2)
        for src, dst in (("x", "y"), ("y", "z"), ("z", Slot("out", 1))):
            b.round(b.exchange("x", src, dst, **SWAP))
        x = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
        got = left(executor(exchange=exchange, poison=True), b.build(), x)["out"]
        assert got[0, :, 1].tolist() == [[3, 4], [1, 2]]

    def test_all_slots_of_a_buffer_at_once(self, executor, exchange):
        b = Builder(as_mesh("1x2"), "whole buffers")
        b.buffer("x", (2,), "fp32", "input", 2)
        b.buffer("out", (2,), "fp32", "output", 2)
        b.round(b.exchange("x", Slot("x", None), Slot("out", None), **SWAP))
        x = torch.arange(8.0).view(1, 2, 2, 2)
        assert torch.equal(left(executor(exchange=exchange), b.build(), x)["out"], x[:, [1, 0]])


def left(executor, schedule: Schedule, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the outputs after a run."""
    program = executor.bind(schedule, {"x": x})
    program.run()
    return {name: program.read(name) for name, one in schedule.buffers.items() if one.role == "output"}
