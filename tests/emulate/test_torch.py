"""The torch executor: poison that is read, parts of tiles, shared memory, the messages of a tree, errors."""

import numpy as np
import pytest
import torch

from wafer_triton.algorithms.product import recipe
from wafer_triton.cost.price import price
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.errors import ShapeError
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores
from wafer_triton.schedule.schedule import Schedule

pytestmark = pytest.mark.slow

EXCHANGES = ("explicit", "elided")
exchanges = pytest.mark.parametrize("exchange", EXCHANGES)


def values(made: Schedule, given: dict[str, torch.Tensor], exchange: str = "explicit", **options) -> dict:
    program = TorchExecutor(exchange=exchange, **options).bind(made, given)
    program.run()
    return {name: program.read(name) for name, buffer in made.buffers.items() if buffer.role != "scratch"}


def test_poison_is_seen_where_it_is_read():
    b = Builder(Mesh(1, 2), "poisoned")
    b.buffer("s", (1,), "fp32")
    b.buffer("out", (1,), "fp32", "output")
    b.round(b.local("copy", "out", "s", size=1))
    assert values(b.build(), {}, poison=True)["out"].isnan().all()
    assert values(b.build(), {})["out"].eq(0).all()


# --- rounds ---


@exchanges
@pytest.mark.parametrize("where", [None, Cores("x", np.array([0, 1, 3]))], ids=["all", "some"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_copy_of_a_part_leaves_the_rest(dtype, where, exchange):
    b = Builder(Mesh(2, 4), "part")
    b.buffer("x", (2,), "fp32", "input")
    b.buffer("y", (5,), dtype, "state")
    b.round(b.local("copy", "y", "x", where, size=2))
    x, y = torch.randn(2, 4, 2).bfloat16().float(), torch.randn(2, 4, 5).bfloat16().float()
    wanted, cores = y.clone(), slice(None) if where is None else where.cols
    wanted[:, cores, :2] = x[:, cores]
    program = TorchExecutor(exchange=exchange).bind(b.build(), {"x": x, "y": y})
    for _ in range(2):  # a second run finds the first one's values in temporary memory
        program.run()
        assert torch.equal(program.read("y").float(), wanted)


def test_inputs_are_rounded_and_copied():
    b = Builder(Mesh(1, 1), "given")
    b.buffer("x", (1,), "fp16", "state")
    b.round(b.local("add", "x", ("x", "x"), size=1))
    given = torch.full((1, 1, 1), 1 / 3)
    program = TorchExecutor().bind(b.build(), {"x": given})
    program.run()
    assert given.item() == torch.tensor(1 / 3).item()
    assert program.read("x").item() == (torch.tensor(1 / 3).half() * 2).item()


@exchanges
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


# --- messages of a tree ---


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("alike", [False, True])
def test_messages_are_added_where_they_arrive(alike, slots, exchange):
    b = Builder(Mesh(3, 4), "messages")
    b.buffer("acc", (4,), "fp32", "output")
    b.buffer("inbox", (4,), "fp32", "scratch", slots)
    ends = ([0], [1], None) if alike else ([[0], [1], [2]], [[1], [2], [3]], np.arange(3))
    move = b.exchange("x", "acc", "inbox", *ends)
    b.round(move, b.local("add", "acc", ("acc", "inbox"), move.moves.receivers, size=4))
    x = torch.randn(3, 4, 4)
    wanted = x.clone()
    for row in range(3):
        at = 0 if alike else row
        wanted[row, at + 1] += x[row, at]
    assert torch.equal(values(b.build(), {"acc": x}, exchange)["acc"], wanted)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_message_is_added_only_on_the_lines_that_say_so(exchange):
    b = Builder(Mesh(3, 4), "one line")
    b.buffer("acc", (4,), "fp32", "output")
    b.buffer("inbox", (4,), "fp32")
    move = b.exchange("x", "acc", "inbox", [0], [1])
    b.round(move, b.local("add", "acc", ("acc", "inbox"), Cores("x", move.moves.recv, np.array([0])), size=4))
    x = torch.randn(3, 4, 4)
    wanted = x.clone()
    wanted[0, 1] += x[0, 0]
    assert torch.equal(values(b.build(), {"acc": x}, exchange)["acc"], wanted)


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
