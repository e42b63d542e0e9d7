"""Layers, weights and modes of torch that a converted model or an operation cannot take, and the remedy of each."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from tiny import CONFIG
from wafer_triton import (
    Builder,
    Intent,
    WaferError,
    WaferForCausalLM,
    all_reduce,
    as_mesh,
    check,
    clear_cache,
    convert,
    executor,
    mesh_gemm,
    mesh_gemm_t,
    mesh_gemv,
    rms_norm,
    scatter,
    softmax,
)
from wafer_triton.algorithms.product import recipe

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning")


def test_convert_refuses_a_lazy_layer_before_its_first_run():
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.LazyLinear(2)))
    with pytest.raises(WaferError) as error:
        convert(model, mesh=2)
    said = "convert: 1.0.weight of a LazyLinear has no shape before its first run; run the model once on an input, then"
    assert str(error.value).startswith(said)
    with pytest.raises(WaferError, match="weight of a LazyBatchNorm1d has no shape before its first run"):
        convert(nn.Sequential(nn.Linear(4, 4), nn.LazyBatchNorm1d()), mesh=2)
    with pytest.raises(WaferError, match="convert: weight of a LazyLinear has no shape"):
        convert(nn.LazyLinear(2), mesh=2)
    model(torch.ones(3, 4))
    assert convert(model, mesh=2)(torch.ones(3, 4)).shape == (3, 2)


@pytest.mark.parametrize(
    "change",
    [
        lambda weight: weight.data.mul_(2),
        lambda weight: np.multiply(weight.detach().numpy(), 2, out=weight.detach().numpy()),
    ],
)
def test_a_change_that_torch_does_not_count_waits_for_one_that_it_does(change):
    model, x = convert(nn.Sequential(nn.Linear(4, 4, bias=False)), mesh=2), torch.ones(3, 4)
    before = model(x)
    change(model[0].weight)
    assert torch.equal(model(x), before)
    with torch.no_grad():
        model[0].weight.add_(0)
    assert torch.equal(model(x), 2 * before)


A, B, TILES = torch.arange(36.0).view(6, 6), torch.arange(36.0).view(6, 6).flip(0), torch.ones(2, 2, 4)
OPERATIONS = {
    "mesh_gemm": (lambda x: mesh_gemm(x, B, mesh=2), A),
    "mesh_gemm_t": (lambda x: mesh_gemm_t(x, B, mesh=2), A),
    "mesh_gemv": (lambda x: mesh_gemv(x, B, mesh=2), A),
    "all_reduce": (lambda x: all_reduce(x, axis="x", mesh=2), TILES),
    "rms_norm": (lambda x: rms_norm(x, B[1], mesh=2), A),
    "softmax": (lambda x: softmax(x, mesh=2), A),
}
RUNS = {
    "record": (lambda x: mesh_gemm(x, A, mesh=2, record=True)[0], "gemm"),
    "executor": (lambda x: mesh_gemm(x, A, mesh=2, executor=executor("torch", emulate_on="cpu")), "gemm"),
    "convert": (convert(nn.Sequential(nn.Linear(6, 6)), mesh=2), "MeshLinear 0"),
    "norm": (convert(nn.Sequential(nn.RMSNorm(6, eps=1e-6)), mesh=2), "MeshRMSNorm 0"),
}
ROWS = "is batched by torch.vmap, which has no rule here; give all rows in one operand, or call it in a loop"
TANGENT = "has a tangent of forward-mode differentiation, which is not computed here; give operand.detach()"


def dual(call: Callable[[torch.Tensor], Any], x: torch.Tensor) -> Any:
    with forward_ad.dual_level():
        return call(forward_ad.make_dual(x, torch.ones_like(x)))


def faked(call: Callable[[torch.Tensor], Any], x: torch.Tensor) -> Any:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        return call(mode.from_tensor(x))


def on_meta(call: Callable[[torch.Tensor], Any], x: torch.Tensor) -> Any:
    with torch.device("meta"):
        return call(x)


TRANSFORMS = {
    "vmap": (lambda call, x: torch.vmap(call)(torch.stack([x, x])), ROWS),
    "jvp": (lambda call, x: torch.func.jvp(call, (x,), (x,)), TANGENT),
    "dual": (dual, TANGENT),
    "grad": (lambda call, x: torch.func.grad(lambda own: call(own).sum())(x), "is tracked by torch.func, "),
}
OUTSIDE = "does not follow a run; call it outside, or call an operation on tensors alone, without record and executor"
TRACES = {
    "torch.jit.trace": lambda call, x: torch.jit.trace(call, (x,)),
    "make_fx": lambda call, x: make_fx(call)(x),
    "FakeTensorMode": faked,
    "a transform of torch.func": lambda call, x: torch.func.functionalize(call)(x),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize(
    ("operand", "message"),
    [
        (np.ones((4, 4), np.float32), r"is of type numpy.ndarray; give a torch tensor \(torch.as_tensor makes one\)"),
        ([[1.0]], "is of type list; give a torch tensor"),
        (None, "is of type NoneType; give a torch tensor"),
        (torch.eye(4).to_sparse(), r"is sparse \(torch.sparse_coo\); give operand.to_dense"),
    ],
    ids=["numpy", "list", "None", "sparse"],
)
def test_an_operand_that_is_no_dense_tensor(name, operand, message):
    with pytest.raises(WaferError, match=f"{name}: operand 1 {message}"):
        OPERATIONS[name][0](operand)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_transform_without_a_rule_names_the_operand(name, transform):
    (call, x), (transformed, said) = OPERATIONS[name], TRANSFORMS[transform]
    with pytest.raises(WaferError, match=f"^{name}: operand 1 {re.escape(said)}"):
        transformed(call, x)
    assert torch.isfinite(call(x)).all()


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_on_tensors_is_traced_as_one_operator(name):
    call, x = OPERATIONS[name]
    for trace in (torch.jit.trace(call, (x,)), make_fx(call)(x), torch.func.functionalize(call)):
        assert torch.equal(trace(x + 1), call(x + 1))
    assert on_meta(call, x).shape == call(x).shape
    assert torch.equal(on_meta(call, x), call(x)), "torch's default device is not the operands'"


@pytest.mark.parametrize("mode", TRACES)
@pytest.mark.parametrize("kind", RUNS)
def test_a_run_that_torch_would_trace_is_refused_and_leaves_no_wrong_memory(kind, mode):
    call, name = RUNS[kind]
    clear_cache()
    with pytest.raises(WaferError, match=f"^{name}: {mode} {OUTSIDE}$"):
        TRACES[mode](call, A)
    with pytest.raises(
        WaferError, match=f"operand 1 (is batched by|has a tangent of)|^{name}: a transform of torch.func {OUTSIDE}$"
    ):
        TRANSFORMS["vmap" if mode == "make_fx" else "jvp"][0](call, A)
    assert torch.isfinite(call(A)).all()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: scatter(x, as_mesh(2), "(y m) (x n)").gather(), "scatter: torch.jit.trace does not follow a run"),
        (lambda x: mesh_gemm(scatter(x, as_mesh(2), "(y m) (x k)"), scatter(A, as_mesh(2), "(y k) (x n)")), "scatter"),
    ],
)
def test_tiles_are_not_cut_while_torch_traces(call, said):
    with pytest.raises(WaferError, match=f"^{said}"):
        torch.jit.trace(call, (A,))


META = "on the meta device, without values; make it outside of torch.device\\('meta'\\)$"


def test_a_tensor_without_values_is_named():
    x = A.to("meta")
    for kind, name in (("convert", "MeshLinear 0"), ("norm", "MeshRMSNorm 0")):
        with pytest.raises(WaferError, match=f"^{name}: x is {META}"):
            RUNS[kind][0](x)
    own = executor("torch", emulate_on="cpu")
    with pytest.raises(WaferError, match=rf"^a tensor \[6, 6\] to cut into tiles is {META}"):
        mesh_gemm(x, x, mesh=2, executor=own)
    b = Builder(as_mesh(2), "t")
    b.buffer("x", (4,), "fp32", "input")
    b.like("y", "x")
    b.round(b.local("copy", "y", "x", size=4))
    with pytest.raises(WaferError, match=f"^t: buffer 'x' is given a tensor {META}"):
        own.bind(b.build(), {"x": TILES.to("meta")})


def test_a_default_device_without_values_is_named_or_has_no_effect(tmp_path):
    with torch.device("meta"):
        model = convert(nn.Sequential(nn.RMSNorm(6, eps=1e-6, device="cpu")), mesh=2)
        own = WaferForCausalLM.from_config(CONFIG, mesh=2, max_length=8)
        tokens = own.generate([1, 2], 3).tokens
        with pytest.raises(WaferError, match=f"buffer 'ids' is given a tensor {META}"):
            own(torch.ones(1, 2, dtype=torch.long, device="cpu"))
        product = recipe("gemm", as_mesh(2), "fp32", ((6, 6), (6, 6)), ())
        assert check(product.schedule, Intent.of(product)).ok
    assert torch.equal(model(A), RUNS["norm"][0](A))
    assert tokens == WaferForCausalLM.from_config(CONFIG, mesh=2, max_length=8).generate([1, 2], 3).tokens
