"""Elision changes no bit: a tile is copied out of memory before another tile is written there."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wafer_triton.algorithms.product import recipe
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.reference import Reference
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.local import local_op, registry
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores, Slot
from wafer_triton.schedule.schedule import Schedule

pytestmark = pytest.mark.slow

EXCHANGES = ("explicit", "elided")


def values(schedule: Schedule, given: dict[str, torch.Tensor], exchange: str = "explicit", **options) -> dict:
    program = TorchExecutor(exchange=exchange, **options).bind(schedule, given)
    program.run()
    return {name: program.read(name) for name, buffer in schedule.buffers.items() if buffer.role != "scratch"}


def defined(schedule: Schedule, given: dict[str, torch.Tensor]) -> dict:
    """Return the result of the reference executor."""
    reference = Reference(schedule, given)
    reference.run()
    return {name: reference.read(name) for name, buffer in schedule.buffers.items() if buffer.role != "scratch"}


def same(wanted: dict[str, torch.Tensor], got: dict[str, torch.Tensor]) -> None:
    assert wanted.keys() == got.keys()
    for name, value in wanted.items():
        assert torch.equal(value, got[name]), f"{name}: {value.flatten().tolist()} and {got[name].flatten().tolist()}"


def elision(name: str) -> Schedule:
    b = Builder(Mesh(3, 3), name)
    for buffer in ("a", "b", "c", "out"):
        b.buffer(buffer, (4,), "fp32", "state")
    ring, here = [2, 0, 1], [0, 1, 2]

    def move(src, dst, axis="x", send=ring, recv=here, lines=None):
        return b.exchange(axis, src, dst, send, recv, lines)

    def copy(out, src, where=None):
        return b.local("copy", out, src, where, size=4)

    middle = Cores("x", np.array([1]))
    if name == "chain":
        b.round(move("a", "b"))
        b.round(move("b", "c", "y"))
        b.round(move("c", "a"))
    elif name == "source-overwritten":
        b.round(move("a", "b"))
        b.round(copy("a", "c"))
    elif name == "source-partly-overwritten":
        b.round(move("a", "b"))
        b.round(copy("a", "c", middle))
    elif name == "source-accumulated":
        b.round(move("a", "b"))
        b.round(b.local("add", "a", ("a", "b"), size=4))
    elif name == "target-partly-overwritten":
        b.round(move("a", "b"))
        b.round(copy("b", "c", middle))
    elif name == "target-overwritten":
        b.round(move("a", "b"))
        b.round(copy("b", "c"))
    elif name == "swap":
        b.round(move("a", "c"))
        b.round(move("b", "a"))
        b.round(move("c", "b"))
    elif name == "swap-along-both-axes":
        b.round(move("a", "c"), move("b", "out", "y"))
        b.round(move("out", "a", "y"))
        b.round(move("c", "b", "x", here, ring))
        b.round(copy("out", "a", middle))
    elif name == "cycle-of-three":
        b.round(move("a", "out"))
        b.round(move("b", "a", "y"))
        b.round(move("c", "b"))
        b.round(move("out", "c"))
        b.round(b.local("add", "out", ("b", "c"), size=4))
        b.round(b.local("add", "a", ("a", "out"), size=4))
    elif name == "one-buffer-twice":
        b.round(move("a", "b"), move("a", "c", "y"))
        b.round(copy("a", "b"))
    elif name == "back-and-forth":
        b.round(move("a", "b"))
        b.round(move("b", "a", "x", here, ring))
        b.round(move("a", "b"))
    elif name == "partial-move-into-the-source":
        b.round(move("a", "b"))
        b.round(move("c", "a", "x", [0], [1]))
    elif name == "partial-move-out-of-a-renamed":
        b.round(move("a", "b"))
        b.round(move("b", "c", "y", [0], [2]))
    elif name == "lines-of-a-renamed":
        b.round(move("a", "b"))
        b.round(move("b", "c", "y", lines=[0, 2]))
    elif name == "multicast":
        b.round(move("a", "b", "x", 1, here))
        b.round(move("b", "c", "y", 2, here))
        b.round(copy("a", "out"))
    elif name == "stale":
        b.round(move("a", "b"))
        b.round(move("b", "c"), move("out", "a", "x", [0], [1]))
    elif name == "read-by-some":
        b.round(move("a", "b"))
        b.round(copy("out", "b", Cores("x", np.array([[0], [2], [1]]))))
        b.round(copy("a", "c"))
    elif name == "product":
        b.round(move("a", "b"))
        b.round(b.local("gemm", "out", ("a", "b"), m=2, k=2, n=2), move("b", "c"))
        b.round(b.local("gemm", "out", ("b", "c"), m=2, k=2, n=2, add=True))
        b.round(b.local("gemm", "b", ("a", "c"), m=2, k=2, n=2))
    return b.build()


NAMES = (
    "chain", "source-overwritten", "source-partly-overwritten", "source-accumulated", "target-partly-overwritten",
    "target-overwritten", "swap", "swap-along-both-axes", "cycle-of-three", "one-buffer-twice", "back-and-forth",
    "partial-move-into-the-source", "partial-move-out-of-a-renamed", "lines-of-a-renamed", "multicast", "stale",
    "read-by-some", "product",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_renamed_tiles_settle(name):
    schedule = elision(name)
    tiles = (1 + torch.arange(36.0)).view(3, 3, 4)
    given = {buffer: 100.0**number * tiles for number, buffer in enumerate(("a", "b", "c", "out"))}
    explicit = values(schedule, given)
    same(defined(schedule, given), explicit)
    program = TorchExecutor(exchange="elided").bind(schedule, given)
    for _ in range(2):
        program.run()
        same(explicit, {buffer: program.read(buffer) for buffer in explicit})
        for buffer in given:
            program.write(buffer, given[buffer])


@st.composite
def programs(draw):
    """Random valid rounds of full and partial moves, copies and sums over four buffers."""
    rows, cols = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    b = Builder(Mesh(rows, cols), "random")
    names = ["a", "b", "c", "d"]
    for name in names:
        b.buffer(name, (1,), "fp32", "state")
    for _ in range(draw(st.integers(1, 7))):
        steps, order = [], draw(st.permutations(names))
        for src, dst in ((order[0], order[1]), (order[0], order[2]))[: draw(st.integers(0, 2))]:
            axis = draw(st.sampled_from("xy"))
            size = b.mesh.length(axis)
            kind = draw(st.sampled_from(["permute", "gather", "some"]))
            recv = list(range(size)) if kind != "some" else sorted(draw(st.sets(st.integers(0, size - 1), min_size=1)))
            send = draw(st.permutations(range(size))) if kind == "permute" else [
                draw(st.integers(0, size - 1)) for _ in recv
            ]  # fmt: skip
            steps.append(b.exchange(axis, src, dst, send, recv))
        if draw(st.booleans()):
            where = None if draw(st.booleans()) else Cores("x", np.array([draw(st.integers(0, cols - 1))]))
            out = draw(st.sampled_from(order[1:] if steps else order))
            ins = [draw(st.sampled_from(names)) for _ in range(2)]
            steps.append(b.local("add", out, ins, where, size=1))
        b.round(*steps)
    return b.build()


@settings(max_examples=60)
@given(programs())
def test_elision_changes_nothing_in_random_schedules(schedule):
    rows, cols = schedule.mesh.shape
    given = {
        name: 100.0**number * (1 + torch.arange(rows * cols)).view(rows, cols, 1) for number, name in enumerate("abcd")
    }
    wanted = defined(schedule, given)
    for exchange in EXCHANGES:
        same(wanted, values(schedule, given, exchange))


def test_a_copy_of_part_of_a_tile_leaves_the_rest():
    b = Builder(Mesh(1, 2), "part")
    for name in ("a", "b", "c"):
        b.buffer(name, (4,), "fp32", "state")
    b.round(b.exchange("x", "a", "b", [1, 0], [0, 1]))
    b.round(b.local("copy", "b", "c", size=2))
    given = {name: 10.0**number * (1 + torch.arange(8.0)).view(1, 2, 4) for number, name in enumerate("abc")}
    same(values(b.build(), given), values(b.build(), given, "elided"))


def test_slots_of_rows_are_moved_and_not_renamed():
    b = Builder(Mesh(3, 2), "slots")
    b.buffer("cache", (1,), "fp32", "cache", 3)
    b.buffer("v", (1,), "fp32", "output")
    b.round(b.exchange("y", Slot("cache", np.array([0, 1, 2]), "y"), "v", [1, 2, 0], [0, 1, 2]))
    cache = torch.arange(18.0).view(3, 2, 3)
    for exchange in EXCHANGES:
        assert values(b.build(), {"cache": cache}, exchange)["v"].flatten().tolist() == [7, 10, 14, 17, 0, 3], exchange


def test_elision_really_saves_the_moves():
    schedule = recipe("gemm", Mesh(4, 4), "fp32", ((8, 8), (8, 8)), ()).schedule
    given = {name: torch.zeros(4, 4, 2, 2) for name in "ab"}
    explicit, elided = (TorchExecutor(exchange=exchange).bind(schedule, given) for exchange in EXCHANGES)
    products = sum(op.op == "gemm" for round_ in schedule.rounds for op in round_.locals)
    moves = sum(len(round_.exchanges) for round_ in schedule.rounds)
    assert len(explicit.steps) >= products + moves
    assert len(elided.steps) < len(explicit.steps) - products


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_an_own_operation_that_writes_a_part_keeps_the_rest(monkeypatch, exchange, dtype):
    """Its parameter is not called `size`, as that of a copy is."""
    monkeypatch.setattr(registry, "LOCAL_OPS", dict(registry.LOCAL_OPS))

    @local_op(tiles=lambda *, count: ((count,),) * 2, work=lambda *, count: (0, count), partial=True)
    def head_torch(out, x, *, count):
        """out [count] = x."""
        out[..., :count] = x[..., :count]

    b = Builder(Mesh(1, 3), "head")
    for name, role in (("x", "input"), ("z", "input"), ("y", "scratch"), ("out", "output")):
        b.buffer(name, (3,), dtype, role)
    b.round(b.exchange("x", "x", "y", [0, 1, 2], [1, 2, 0]))
    b.round(b.local("head", "y", "z", count=2))
    b.round(b.local("copy", "out", "y", size=3))
    given = {"x": torch.arange(1.0, 10).view(1, 3, 3), "z": torch.zeros(1, 3, 3)}
    program = TorchExecutor(exchange=exchange, poison=True).bind(b.build(), given)
    program.run()
    assert program.read("out").tolist() == [[[0, 0, 9], [0, 0, 3], [0, 0, 6]]]
