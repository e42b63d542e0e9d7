"""A schedule has the same counts in `account` and in its price."""

from dataclasses import fields, replace

import numpy as np
import pytest

from healthy import on_mesh
from wafer_triton import local
from wafer_triton.algorithms.collectives import multicast
from wafer_triton.algorithms.product import recipe
from wafer_triton.cost.price import Cost, price, priced
from wafer_triton.count.account import Account, account, multiply_adds
from wafer_triton.count.counts import Counts
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import ScheduleError
from wafer_triton.schedule.builder import Builder

NAMES = [each.name for each in fields(Counts)]


def shared(counts: Counts) -> dict[str, float]:
    return {name: getattr(counts, name) for name in NAMES}


@pytest.mark.parametrize("mesh", ["2x3", pytest.param("4x4", marks=pytest.mark.slow)])
def test_account_and_price_count_every_schedule_alike(mesh):
    cases = on_mesh(mesh)
    assert len(cases) > 50
    for case in cases:
        assert shared(account(case.schedule)) == shared(price(case.schedule)), case.name


def test_a_circuit_that_goes_on_is_set_up_once():
    b = Builder(Mesh(3, 4), "both ways")
    b.buffer("x", (3,), "fp32", "output")
    b.round(b.exchange("x", "x", "x", 0, np.arange(1, 4), [0]))
    b.round(*multicast(b, "x", "x", "y", 0))
    made = b.build()
    assert shared(account(made)) == shared(price(made))
    assert (account(made).rounds, account(made).stages) == (2, 1)


def test_products_alone_have_multiply_adds():
    b = Builder(Mesh(1, 1), "work")
    for name, size in (("x", 12), ("y", 12), ("s", 3), ("c", 9)):
        b.buffer(name, (size,), "fp32", "output" if name in "cs" else "input")
    b.round(b.local("gemm", "c", ("x", "y"), m=3, k=4, n=3), b.local("sum_squares", "s", "x", m=3, n=4))
    made = b.build()
    product, squares = made.rounds[0].locals
    assert (multiply_adds(product), multiply_adds(squares)) == (3 * 4 * 3, 0)
    assert local.find("sum_squares").work(**squares.params) == (0, 3 * 4), "a vector operation has elements"
    assert account(made).macs == price(made).macs == 3 * 4 * 3


def test_schedules_that_repeat_cost_as_often_as_they_run():
    made = on_mesh("2x3")[0].schedule
    assert priced([(made, 2), (made, 3)]).cycles == pytest.approx(5 * price(made).cycles)
    assert priced([]) == Cost() and sum([], Account()) == Account()


@pytest.mark.parametrize("reads", [account, price])
def test_a_schedule_that_was_changed_by_hand_is_refused_by_its_fault(reads):
    made = recipe("gemm", Mesh(4, 4), "fp32", ((8, 8), (8, 8)), ()).schedule
    with pytest.raises(ScheduleError, match="round 0 .*: buffer 'a' is not declared"):
        reads(replace(made, buffers={}))
