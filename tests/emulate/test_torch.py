"""The torch executor: poison that is read, inputs, shared memory, errors."""

import re

import pytest
import torch

from wafer_triton.algorithms.product import recipe
from wafer_triton.cost.price import price
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.planner import EXCHANGES
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.errors import ShapeError
from wafer_triton.schedule.builder import Builder

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
    b, forms = Builder(Mesh(2, 3), "fit"), {"x": (4,), "tall": (8, 12), "slots": (3, 4), "matrices": (2, 2, 3)}
    for name, shape, slots in (("x", (4,), 1), ("tall", (8, 12), 1), ("slots", (4,), 3), ("matrices", (2, 3), 2)):
        b.buffer(name, shape, "fp32", "input", slots)
    b.round(b.local("copy", "x", "x", size=4))
    made, whole = b.build(), {name: torch.zeros(2, 3, *form) for name, form in forms.items()}
    for name, is_, *wrong in (
        ("x", "[4] x 1", (2, 3, 5), (3, 2, 4), (2, 3), (24,)),
        ("tall", "[8, 12] x 1", (2, 3, 12, 8), (2, 3, 4, 24), (2, 3, 4, 8, 3)),
        ("slots", "[4] x 3", (2, 3, 4, 3)),
    ):
        for shape in wrong:
            text = f"fit: buffer '{name}' is {is_} on 2 x 3 cores, the tensor given is {list(shape)}"
            with pytest.raises(ShapeError, match=re.escape(text)):
                TorchExecutor().bind(made, whole | {name: torch.zeros(shape)})
    for form in ((2, 2, 3), (2, 6), (12,), (1, 12), (12, 1), (2, 6, 1)):
        values = torch.arange(72.0).view(2, 3, *form)
        program = TorchExecutor().bind(made, whole | {"matrices": values})
        assert torch.equal(program.read("matrices").flatten(), values.flatten())
    for given, text in (
        ({}, "no tensor given for input buffer 'x'"),
        (whole | {"y": whole["x"]}, "no buffer 'y' to give a tensor to; it has x, tall"),
    ):
        with pytest.raises(ShapeError, match=f"fit: {text}"):
            TorchExecutor().bind(made, given)
    for use in (lambda: program.read("y"), lambda: program.write("y", whole["x"])):
        with pytest.raises(ShapeError, match="fit: no buffer 'y'; it has x"):
            use()


def test_a_program_predicts_the_price_of_its_schedule():
    made = recipe("gemm", Mesh(2, 2), "fp32", ((4, 4), (4, 4)), ()).schedule
    program = TorchExecutor().bind(made, {name: torch.zeros(2, 2, 2, 2) for name in ("a", "b")})
    cycles = price(made).cycles
    assert cycles > 0 and program.predicted.cycles == cycles
    assert program.predicted.seconds == cycles / made.mesh.device.clock_hz
