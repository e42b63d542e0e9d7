"""Random schedules in both executors: elided, a tile is copied out of memory before another one is written there."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wafer_triton.algorithms.product import recipe
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.executor import EXCHANGES, Executor
from wafer_triton.emulate.reference import Reference
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.emulate.triton import TritonExecutor
from wafer_triton.local import local_op, registry
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores, Slot
from wafer_triton.schedule.schedule import Schedule

pytestmark = pytest.mark.slow


@st.composite
def programs(draw):
    """Draw valid rounds of full and partial moves, copies, sums and one product over four buffers of 2 x 2 tiles."""
    rows, cols = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    b, products = Builder(Mesh(rows, cols), "random"), draw(st.integers(0, 1))
    names = ["a", "b", "c", "d"]
    dtype = draw(st.sampled_from(["fp32", "bf16"]))
    for name in names:
        b.buffer(name, (2, 2), dtype, "state")
    for _ in range(draw(st.integers(1, 7))):
        steps, order = [], draw(st.permutations(names))
        sent = (order[0], draw(st.sampled_from((order[0], order[3]))))[: draw(st.integers(0, 2))]
        for src, dst in zip(sent, order[1:], strict=False):
            axis = draw(st.sampled_from("xy"))
            size, across = (b.mesh.length(one) for one in (axis, "yx"["xy".index(axis)]))
            kind = draw(st.sampled_from(["permute", "gather", "some"]))
            recv = list(range(size)) if kind != "some" else sorted(draw(st.sets(st.integers(0, size - 1), min_size=1)))
            send = draw(st.permutations(range(size))) if kind == "permute" else [
                draw(st.integers(0, size - 1)) for _ in recv
            ]  # fmt: skip
            lines = draw(st.none() | st.sets(st.integers(0, across - 1), min_size=1).map(sorted))
            steps.append(b.exchange(axis, src, dst, send, recv, lines))
        if draw(st.booleans()):
            where = draw(st.sampled_from([None, Cores("x", [draw(st.integers(0, cols - 1))]), Cores("y", [0])]))
            out = draw(st.sampled_from([name for name in order if name not in sent]))
            op = draw(st.sampled_from(["add", "copy", "gemm"][: 2 + products]))
            ins = [draw(st.sampled_from([name for name in names if op != "gemm" or name != out])) for _ in range(2)]
            products -= op == "gemm"
            params = {"m": 2, "k": 2, "n": 2, "add": draw(st.booleans())} if op == "gemm" else {
                "size": draw(st.sampled_from((4, 3))) if op == "copy" else 4
            }  # fmt: skip
            steps.append(b.local(op, out, ins[:1] if op == "copy" else ins, where, **params))
        b.round(*steps)
    return b.build()


def leaves_the_values_of_the_reference(executor: type[Executor], schedule: Schedule) -> None:
    """Run twice in the same memory, with explicit and with elided exchange."""
    given = {name: torch.randint(-9, 10, (*schedule.mesh.shape, 4)).float() for name in "abcd"}
    reference = Reference(schedule, given)
    reference.run()
    for exchange in EXCHANGES:
        program = executor(exchange=exchange).bind(schedule, given)
        for _ in range(2):
            for name, tiles in given.items():
                program.write(name, tiles)
            program.run()
            assert [name for name in given if not torch.equal(program.read(name).cpu(), reference.read(name))] == []


@settings(max_examples=150)
@given(programs())
def test_torch_leaves_the_values_of_the_reference_in_random_schedules(schedule):
    leaves_the_values_of_the_reference(TorchExecutor, schedule)


@settings(max_examples=30)
@given(programs())
def test_triton_leaves_the_values_of_the_reference_in_random_schedules(schedule):
    leaves_the_values_of_the_reference(TritonExecutor, schedule)


def test_slots_of_rows_are_moved_and_not_renamed():
    b = Builder(Mesh(3, 2), "slots")
    b.buffer("cache", (1,), "fp32", "cache", 3)
    b.buffer("v", (1,), "fp32", "output")
    b.round(b.exchange("y", Slot("cache", np.array([0, 1, 2]), "y"), "v", [1, 2, 0], [0, 1, 2]))
    for exchange in EXCHANGES:
        program = TorchExecutor(exchange=exchange).bind(b.build(), {"cache": torch.arange(18.0).view(3, 2, 3)})
        program.run()
        assert program.read("v").flatten().tolist() == [7, 10, 14, 17, 0, 3], exchange


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
