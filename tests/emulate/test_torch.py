"""The torch executor: poison that is read, inputs, shared memory, errors."""

import pytest
import torch

from wafer_triton.algorithms.product import recipe
from wafer_triton.cost.price import price
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.planner import EXCHANGES
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.errors import ShapeError
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Slot

pytestmark = pytest.mark.slow


def test_poison_is_seen_where_it_is_read():
    b = Builder(Mesh(1, 2), "poisoned")
    b.buffer("s", (1,), "fp32")
    b.buffer("out", (1,), "fp32", "output")
    b.round(b.local("copy", "out", "s", size=1))
    for poison in (True, False):
        program = TorchExecutor(poison=poison).bind(b.build(), {})
        program.run()
        out = program.read("out")
        assert (out.isnan() if poison else out.eq(0)).all()


def test_inputs_are_rounded_and_copied():
    b = Builder(Mesh(1, 1), "given")
    b.buffer("x", (1,), "fp16", "state")
    b.round(b.local("add", "x", ("x", "x"), size=1))
    given = torch.full((1, 1, 1), 1 / 3)
    program = TorchExecutor().bind(b.build(), {"x": given})
    program.run()
    assert given.item() == torch.tensor(1 / 3).item()
    assert program.read("x").item() == (torch.tensor(1 / 3).half() * 2).item()


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_programs_share_memory(exchange):
    b = Builder(Mesh(1, 3), "shared")
    b.buffer("x", (2,), "fp32", "state")
    b.like("x.next", "x")
    b.round(b.exchange("x", "x", "x.next", [2, 0, 1], [0, 1, 2]))
    b.round(b.local("copy", "x", "x.next", size=2))
    made, executor = b.build(), TorchExecutor(exchange=exchange)
    x = torch.arange(6.0).view(1, 3, 2)
    scratch: dict = {}
    first = executor.bind(made, {"x": x}, None, scratch)
    second = executor.bind(made, {}, first.memory, scratch)
    assert first.memory["x"] is second.memory["x"] and first.memory["x.next"] is second.memory["x.next"]
    first.run()
    second.run()
    assert torch.equal(first.read("x"), x.roll(2, 1))
    other = executor.bind(made, {"x": x}, None, scratch)
    assert other.memory["x"] is not first.memory["x"]


# --- errors ---


def test_tensors_must_be_given_and_fit():
    b = Builder(Mesh(2, 3), "fit")
    b.buffer("x", (4,), "fp32", "input")
    b.round(b.local("copy", "x", "x", size=4))
    made = b.build()
    with pytest.raises(ShapeError, match="fit: no tensor given for input buffer 'x'"):
        TorchExecutor().bind(made, {})
    for shape in ((2, 3, 5), (3, 2, 4), (2, 3), (24,)):
        text = r"fit: buffer 'x' is \[4\] x 1 on 2 x 3 cores, the tensor given is \[" + ", ".join(map(str, shape))
        with pytest.raises(ShapeError, match=text):
            TorchExecutor().bind(made, {"x": torch.zeros(shape)})
    b.buffer("tall", (8, 12), "fp32", "input")
    b.round(b.local("copy", "tall", "tall", size=96))
    for shape in ((12, 8), (4, 24), (4, 8, 3)):
        with pytest.raises(ShapeError, match=r"'tall' is \[8, 12\] x 1 on 2 x 3 cores"):
            TorchExecutor().bind(b.build(), {"x": torch.zeros(2, 3, 4), "tall": torch.zeros(2, 3, *shape)})
    whole = {"x": torch.zeros(2, 3, 4), "tall": torch.zeros(2, 3, 8, 12)}
    b.buffer("slots", (4,), "fp32", "input", 3)
    b.round(b.local("copy", Slot("slots", 1), Slot("slots", 0), size=4))
    with pytest.raises(ShapeError, match=r"'slots' is \[4\] x 3 on 2 x 3 cores, the tensor given is \[2, 3, 4, 3\]"):
        TorchExecutor().bind(b.build(), {**whole, "slots": torch.zeros(2, 3, 4, 3)})
    b.buffer("matrices", (2, 3), "fp32", "input", 2)
    for form in ((2, 2, 3), (2, 6), (12,), (1, 12), (12, 1), (2, 6, 1)):
        values = torch.arange(72.0).view(2, 3, *form)
        program = TorchExecutor().bind(b.build(), {**whole, "slots": torch.zeros(2, 3, 12), "matrices": values})
        assert torch.equal(program.read("matrices").flatten(), values.flatten())
    with pytest.raises(ShapeError, match="fit: no buffer 'y' to give a tensor to; it has x"):
        TorchExecutor().bind(made, {"x": torch.zeros(2, 3, 4), "y": torch.zeros(2, 3, 4)})
    program = TorchExecutor().bind(made, {"x": torch.zeros(2, 3, 4)})
    for use in (lambda: program.read("y"), lambda: program.write("y", torch.zeros(2, 3, 4))):
        with pytest.raises(ShapeError, match="fit: no buffer 'y'; it has x"):
            use()


def test_a_program_predicts_the_price_of_its_schedule():
    made = recipe("gemm", Mesh(2, 2), "fp32", ((4, 4), (4, 4)), ()).schedule
    program = TorchExecutor().bind(made, {name: torch.zeros(2, 2, 2, 2) for name in ("a", "b")})
    cycles = price(made).cycles
    assert cycles > 0 and program.predicted.cycles == cycles
    assert program.predicted.seconds == cycles / made.mesh.device.clock_hz
