"""Further wrong calls of the library: a `WaferError` names the fault and its place."""

import numpy as np
import pytest
import torch
from torch import nn

from tiny import checkpoint
from wafer_triton import (
    Builder,
    Cores,
    Intent,
    MeshTensor,
    WaferError,
    WaferForCausalLM,
    account,
    as_mesh,
    check,
    convert,
    distributed,
    draw,
    executor,
    mesh_gemm,
    run,
    scatter,
)
from wafer_triton.compare.algorithms import compare_gemm
from wafer_triton.device import PRESETS
from wafer_triton.models.generate import token_rows
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


CUTS = {"x": "(y r)"}, {"y": "(y r)"}
CALLS = [
    (lambda: run(GEMM, (A, A[:5]), executor()), r"operand 2 is \[5, 6\], and its recipe is for \[6, 6\]"),
    (lambda: run(GEMM, (A, A), None), "run: executor None is none; give a result of wafer_triton.executor"),
    (lambda: mesh_gemm(A, A, mesh=2, record="no"), "gemm: record = 'no' must be true or false"),
    (lambda: account(built()) * -1, "an account -1 times: give a whole number from 0 to"),
    (lambda: account(built()) * 1.5, "an account 1.5 times: give a whole number from 0 to"),
    (lambda: Intent.of(built()), "Intent.of: a Schedule is no recipe; "),
    (
        lambda: check(built(), Intent(*CUTS, on={"y": Cores("x", np.array([9]))})),
        r"on\['y'\] names a core that is off m",
    ),
    (lambda: check(built(), Intent(*CUTS, on={"y": Cores("x", [0])})), r"on\['y'\]: positions \[0\] must be an array"),
    (lambda: Builder(as_mesh(2), ""), "Builder: the schedule has no name"),
    (lambda: draft().repeat(-1, print), "repeat -1 times: give a number from 0 to 1,000,000"),
    (lambda: draft().repeat(10**12, print), "repeat 1,000,000,000,000 times: give a number from 0 to 1,000,000"),
    (lambda: draft().repeat(2, 5), "t: repeat of 5: give a function of the iteration's number"),
    (
        lambda: MeshTensor(as_mesh(2), A, "(y m) (x n)", (6, 6), {}).gather(),
        r"tiles \[6, 6\] of a tensor \[6, 6\] cut ",
    ),
    (
        lambda: convert(nn.Sequential(nn.Linear(2, 2)), mesh=2)("x"),
        "MeshLinear: operand 1 is of type str; give a torch t",
    ),
    (lambda: draw.values(built(), "x", core=(0, 0)), "values: a Schedule holds no values; give a program"),
    (lambda: draw.values(program(), "x", core=5), "core = 5 must be a pair"),
    (
        lambda: draw.page("p.html", "t", ["x"], PRESETS["wse2"]),
        "t: a str is no scene of a page; give a result of draw.scene",
    ),
    (lambda: draw.page("p.html", "t", [draw.scene(built())], PRESETS["wse2"], beside=9), "beside = 9 is the number of"),
    (
        lambda: draw.curves([{"a": 1, "b": "x"}], ["a"], "b", "x.png"),
        "column 'b' does not hold numbers alone; show another",
    ),
    (lambda: scatter(A, as_mesh(2), "(y m) (x n)", m=2), r"m = 2, but 3 of \[6, 6\] lie on a core"),
    (
        lambda: scatter(A.to_sparse(), as_mesh(2), "(y m) (x n)"),
        "scatter: the tensor is sparse or nested; give a dense",
    ),
    (
        lambda: MeshTensor(as_mesh(2), "t", "(y m) (x n)", (6, 6), {}).gather(),
        "a mesh tensor: tiles is of type str; give a tensor",
    ),
    (lambda: Builder(as_mesh(2), "t", family="x"), "Builder 't': family 'x': choose one of kernel, decode"),
    (lambda: distributed.executor(shards="x"), "shards 'x': mesh 'x': give a side such as 16"),
    (lambda: WaferForCausalLM.from_config("smollm2-135m", mesh=64, placed=5), "placed = 5 must be callable; give a f"),
    (
        lambda: WaferForCausalLM.from_config("smollm2-135m", mesh=64, progress=5),
        "progress = 5 must be callable; give a f",
    ),
    (lambda: token_rows(torch.zeros(1, 3)), "input_ids of torch.float32 must be a tensor of token ids, whole numbers"),
]


@pytest.mark.parametrize(("call", "message"), CALLS, ids=range(len(CALLS)))
def test_a_wrong_call(call, message):
    with pytest.raises(WaferError, match=message):
        call()


def test_an_account_adds_up_with_an_account_alone():
    with pytest.raises(TypeError, match=r"unsupported operand type\(s\) for \+: 'Account' and 'int'"):
        account(built()) + 5
    assert (account(built()) * 2).rounds == 2


def test_operands_that_fit_are_taken():
    assert torch.equal(run(GEMM, (A, A), executor()).gather(), A @ A)
    assert draft().repeat(0, print) is None
    assert np.isfinite([row.cycles for row in compare_gemm(2, 4, 4, 4)]).all()


def test_a_token_that_no_integer_of_torch_holds_is_outside_of_the_vocabulary(tmp_path):
    model = WaferForCausalLM.from_pretrained(checkpoint(tmp_path / "ok"), mesh=2)
    with pytest.raises(WaferError, match=f"token {2**70} is outside the vocabulary of 256"):
        list(model.generate([2**70], 2))
    for token in ("a", 1.5):
        with pytest.raises(WaferError, match=rf"tokens\[0\] = '?{token}'? is of type .*; give a token id"):
            model.embed([token])


def test_a_generation_config_that_is_a_folder_is_named(tmp_path):
    folder = checkpoint(tmp_path / "ok")
    (folder / "generation_config.json").mkdir()
    with pytest.raises(WaferError, match="generation_config.json: is a folder, not a file"):
        WaferForCausalLM.from_pretrained(folder, mesh=2)
