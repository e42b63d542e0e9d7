"""Operations of a user's: what they declare, and that a definition that comes anew counts everywhere."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType

import pytest
import torch

from wafer_triton import Builder, Cores, Intent, account, all_reduce, check, clear_cache, estimate, executor, price
from wafer_triton.algorithms import reduce
from wafer_triton.decoder import decode
from wafer_triton.decoder.block import HEADS, Variant, sub_layer
from wafer_triton.emulate.planner import EXCHANGES
from wafer_triton.emulate.pool import POOL
from wafer_triton.emulate.reference import Reference
from wafer_triton.errors import ScheduleError
from wafer_triton.local import local_op
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.shape.read import shape_of

TWO = {"tiles": lambda *, size: ((size,),) * 2, "work": lambda *, size: (0, 2 * size), "elementwise": True}
THREE = {"tiles": lambda *, size: ((size,),) * 3, "work": lambda *, size: (0, size)}


@pytest.fixture(autouse=True)
def definitions(registered) -> Iterator[None]:
    yield
    clear_cache()


def decaying(define: Callable) -> Schedule:
    """Build x, and twice half of it plus x, by an operation "decay" that `define` defines."""

    @define
    def decay_torch(state, a, *, size: int):
        state.mul_(0.5).add_(a)

    b = Builder("2x2", "moving average")
    b.buffer("x", (4,), "bf16", "input")
    b.buffer("state", (4,), "bf16", "output")
    b.round(b.local("copy", "state", "x", size=4))
    for _ in range(2):
        b.round(b.local("decay", "state", "x", size=4))
    return b.build()


AVERAGE = Intent(
    {"x": {"r": "y", "c": "x"}}, {"state": {"r": "y", "c": "x"}}, reference=lambda t: {"state": 1.75 * t["x"]}
)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_an_operation_that_reads_its_output_declares_it(exchange):
    schedule, x = decaying(local_op(**TWO, updates=("state",))), torch.arange(16.0).view(2, 2, 4)
    assert check(schedule, AVERAGE).ok
    program = executor("torch", exchange, "cpu", poison=True).bind(schedule, {"x": x})
    program.run()
    assert torch.equal(program.read("state"), (1.75 * x).bfloat16())


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_an_output_that_is_read_and_not_declared_is_nan_and_found(exchange):
    schedule = decaying(local_op(**TWO))
    (found,) = check(schedule, AVERAGE).findings
    assert found.verdict == "unwritten-read" and "updates=('state',)" in found.message
    program = executor("torch", exchange, "cpu").bind(schedule, {"x": torch.ones(2, 2, 4)})
    program.run()
    assert program.read("state").isnan().all()


@pytest.mark.parametrize("larger", [True, False])
def test_an_output_that_is_compared_and_not_declared_is_found_though_it_leaves_no_nan(larger):
    @local_op(**TWO)
    def extreme_torch(out, a, *, size: int):
        out.copy_(torch.where(out > a if larger else out < a, out, a))

    b = Builder("1x1", "extremes")
    b.buffer("x", (8,), "fp32", "input")
    b.buffer("out", (8,), "fp32", "output")
    b.round(b.local("copy", "out", "x", size=8), b.local("extreme", "out", "x", size=8))
    assert check(b.build()).names == {"unwritten-read"}


def test_an_output_of_which_a_part_is_left_is_found():
    @local_op(**TWO)
    def some_torch(out, a, *, size: int):
        out[..., 1:] = a[..., 1:]

    b = Builder("1x1", "a part")
    b.buffer("x", (4,), "fp32", "input")
    b.buffer("out", (4,), "fp32", "output")
    b.round(b.local("copy", "out", "x", size=4), b.local("some", "out", "x", size=4))
    assert check(b.build()).names == {"unwritten-read"}


@pytest.mark.parametrize("updates", [("a",), ("q",), "out", 3])
def test_outputs_that_are_updated_are_named(updates):
    def half_torch(out, a, *, size: int):
        out.add_(a)

    with pytest.raises(ScheduleError, match=r"local operation 'half': `updates` is .*; give a tuple of some of out"):
        local_op(**TWO, updates=updates)(half_torch)


def smallest(elementwise: bool = True, by: float = 0.0) -> None:
    @local_op(**THREE, elementwise=elementwise)
    def smallest_torch(out, a, b, *, size: int):
        out.copy_(a.minimum(b) + by)


def chain() -> Schedule:
    b = Builder("1x8", "chain")
    b.buffer("x", (8,), "fp32", "input")
    b.buffer("y", (8,), "fp32", "output")
    b.like("mail", "x")
    for at in range(7):
        moves = b.exchange("x", "y" if at else "x", "mail", [at], [at + 1])
        b.round(moves, b.local("smallest", "y", ("x", "mail"), Cores("x", [at + 1]), size=8))
    return b.build()


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("axis", ["x", "y"])
def test_a_tree_combines_by_an_operation_of_ones_own(axis, exchange):
    smallest()
    b = Builder("3x5", "least")
    b.buffer("x", (4,), "fp32", "state")
    reduce.all_reduce(b, "x", axis, op="smallest")
    schedule, x = b.build(), torch.randn(3, 5, 4)
    program = executor("torch", exchange, "cpu").bind(schedule, {"x": x})
    program.run()
    dim = 1 if axis == "x" else 0
    assert torch.equal(program.read("x"), x.amin(dim, keepdim=True).expand_as(x))
    as_sums = all_reduce(x, mesh="3x5", axis=axis, record=True)[1]
    assert (account(schedule).hops, price(schedule).cycles) == (as_sums.hops, as_sums.cost.cycles)


def test_a_definition_that_comes_anew_is_priced_and_run():
    smallest(elementwise=True)
    schedule, on, x = chain(), executor("torch", emulate_on="cpu"), torch.arange(64.0).view(1, 8, 8)

    def last() -> float:
        program = on.borrow(schedule)
        program.write("x", x)
        program.run()
        POOL.give(program)
        return program.read("y")[0, 7, 0].item()

    before = price(schedule).cycles
    assert last() == 0
    smallest(elementwise=False, by=1.0)
    assert price(schedule).cycles == price(chain()).cycles > 2 * before
    assert last() == 7


def test_an_estimate_knows_a_definition_that_comes_anew():
    def define(work: int) -> None:
        @local_op(tiles=lambda *, size: ((size,),) * 2, work=lambda *, size: (0, work * size), elementwise=True)
        def more_torch(out, a, *, size: int):
            out.copy_(a.relu())

    @sub_layer("more", "decode", HEADS)
    def more(b, block):
        decode.ffn.add_steps(b, block)
        b.round(b.local("more", "x", "x", size=b.buffers["x"].numel), label="more")

    shape, cycles = replace(shape_of("smollm2-135m"), variant=Variant({decode.ffn: more})), []
    for work in (1, 10_000, 1):
        define(work)
        cycles.append(estimate.decode(model=shape, mesh=120, context=512).cycles_per_layer)
    assert cycles[0] == cycles[2] < cycles[1] / 2


@pytest.mark.parametrize("line", ["", "from __future__ import annotations"])
def test_types_of_parameters_are_read_however_they_are_annotated(line, monkeypatch):
    module = ModuleType("written")
    monkeypatch.setitem(sys.modules, "written", module)
    vars(module).update(
        local_op=local_op,
        TWO={**TWO, "tiles": lambda *, size, times: ((size,),) * 2, "work": lambda *, size, times: (0, 1)},
    )
    exec(
        f"{line}\n@local_op(**TWO)\ndef scaled_torch(out, a, *, size: int, times: int): out.copy_(a * times)",
        vars(module),
    )
    b = Builder("1x1", "scaled")
    b.buffer("x", (4,), "fp32", "state")
    b.round(b.local("scaled", "x", "x", size=4, times="0.5"))
    with pytest.raises(ScheduleError, match="times = '0.5' must be a whole number"):
        b.build()


def test_the_reference_leaves_no_output_that_an_operation_does_not_write():
    """The operations of this package are tried by the tests of the executors, which compare with the reference."""
    b = Builder("1x1", "left")
    b.buffer("x", (2,), "fp32", "state")
    b.buffer("long", (3,), "fp32", "state")
    b.round(b.local("copy", "long", "x", size=2))
    machine = Reference(b.build(), {"x": torch.ones(1, 1, 2), "long": torch.full((1, 1, 3), 5.0)})
    machine.run()
    assert machine.read("long").flatten().tolist() == [1, 1, 5]
