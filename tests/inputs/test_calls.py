"""Further calls of the library that make no sense: a `WaferError` that says what and where."""

import numpy as np
import pytest
import torch
from torch import nn

from wafer_triton import (
    Builder,
    Intent,
    MeshTensor,
    WaferError,
    account,
    as_mesh,
    convert,
    draw,
    executor,
    mesh_gemm,
    price,
    run,
)
from wafer_triton.compare.algorithms import compare_gemm
from wafer_triton.device import PRESETS
from wafer_triton.schedule.product import recipe

A = torch.arange(36.0).view(6, 6)
GEMM = recipe("gemm", as_mesh(2), "fp32", ((6, 6), (6, 6)), ())


def draft() -> Builder:
    b = Builder(as_mesh(2), "t")
    b.buffer("x", (4,), "fp32", "input")
    b.buffer("y", (4,), "fp32", "output")
    return b


def built():
    b = draft()
    b.round(b.local("copy", "y", "x", size=4))
    return b.build()


def program():
    return executor().bind(built(), {"x": torch.ones(2, 2, 4)})


CALLS = [
    (lambda: run(GEMM, (A, A[:5]), executor()), r"operand 2 is \[5, 6\], and its recipe is for \[6, 6\]"),
    (lambda: run(GEMM, (A, A), None), "run: executor None is none; give what wafer_triton.executor makes"),
    (lambda: mesh_gemm(A, A, mesh=2, record="no"), "gemm: record = 'no' must be true or false"),
    (lambda: price(built(), 5), "price: using is of type int; give a Constants"),
    (lambda: account(built()) * -1, "an account -1 times: give a whole number of at least 0"),
    (lambda: account(built()) * 1.5, "an account 1.5 times: give a whole number of at least 0"),
    (lambda: Intent.of(built()), "Intent.of: a Schedule is no recipe; "),
    (lambda: Builder(as_mesh(2), ""), "Builder: the schedule has no name"),
    (lambda: draft().round(draft().local("copy", "y", "x", size=4), label=5), "label of a round is of type int"),
    (lambda: draft().round(draft().local("copy", "y", "x", size=4), pattern="ring"), "pattern of a round is of type s"),
    (lambda: draft().repeat(-1, print), "repeat -1 times: give a number from 0 to 1,000,000"),
    (lambda: draft().repeat(10**12, print), "repeat 1,000,000,000,000 times: give a number from 0 to 1,000,000"),
    (lambda: draft().repeat(2, 5), "t: repeat of 5: give a function of the turn's number"),
    (
        lambda: MeshTensor(as_mesh(2), A, "(y m) (x n)", (6, 6), {}).gather(),
        r"tiles \[6, 6\] of a tensor \[6, 6\] cut ",
    ),
    (lambda: convert(nn.Sequential(nn.Linear(2, 2)), mesh=2)("x"), "MeshLinear: x is of type str; give a torch tensor"),
    (lambda: draw.mesh(built(), "x.png", round="a"), "t: round 'a' is not one of its 1 rounds"),
    (lambda: draw.compare([1], "x.png"), "compare: a row is of type int; give what compare_gemm makes"),
    (lambda: draw.sweep([{"a": 1}], "x.png"), "a sweep's rows hold 'a' alone; give the estimates as well"),
    (lambda: draw.values(built(), "x", core=(0, 0)), "values: a Schedule holds no values; give a program"),
    (lambda: draw.values(program(), "x", core=5), "values: core = 5 must be a pair of whole numbers, row and column"),
    (lambda: draw.page("p.html", "t", ["x"], PRESETS["wse2"]), "t: a str is no scene of a page; give what draw.scene"),
    (lambda: draw.page("p.html", "t", [draw.scene(built())], "wse2"), "t: device of a page is of type str; give a Dev"),
]


@pytest.mark.parametrize(("call", "message"), CALLS, ids=range(len(CALLS)))
def test_a_wrong_call(call, message):
    with pytest.raises(WaferError, match=message):
        call()


def test_an_account_adds_up_with_an_account_alone():
    with pytest.raises(TypeError, match=r"unsupported operand type\(s\) for \+: 'Account' and 'int'"):
        account(built()) + 5
    assert (account(built()) * 2).rounds == 2


def test_what_fits_is_taken():
    assert torch.equal(run(GEMM, (A, A), executor()).gather(), A @ A)
    assert draft().repeat(0, print) is None
    assert np.isfinite([row.cycles for row in compare_gemm(2, 4, 4, 4)]).all()
