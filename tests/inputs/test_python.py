"""Mistakes of a user in Python: a `WaferError` with fault, place and remedy."""

import sys
import warnings
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
import torch
from torch import nn

from tiny import checkpoint
from wafer_triton import (
    Builder,
    Intent,
    Mesh,
    WaferError,
    WaferForCausalLM,
    all_reduce,
    as_mesh,
    check,
    convert,
    distributed,
    draw,
    estimate,
    executor,
    link_loads,
    mesh_gemm,
    mesh_gemm_t,
    mesh_gemv,
    rms_norm,
    run,
    scatter,
    softmax,
)
from wafer_triton.compare.algorithms import compare_gemm
from wafer_triton.compare.sweep import sweep
from wafer_triton.cost.search import plan
from wafer_triton.device import PRESETS
from wafer_triton.models.convert import off_mesh
from wafer_triton.schedule.product import recipe
from wafer_triton.schedule.rounds import Cores, Slot
from wafer_triton.shape.decoder import DecoderShape

A = torch.arange(36.0).view(6, 6)
LINEAR = nn.Sequential(nn.Linear(2, 2))
OPERATIONS = {
    "mesh_gemm": lambda x: mesh_gemm(x, x, mesh=2),
    "mesh_gemm_t": lambda x: mesh_gemm_t(x, x, mesh=2),
    "mesh_gemv": lambda x: mesh_gemv(x, x, mesh=2),
    "all_reduce": lambda x: all_reduce(x, axis="x", mesh=2),
    "rms_norm": lambda x: rms_norm(x, x, mesh=2),
    "softmax": lambda x: softmax(x, mesh=2),
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
        OPERATIONS[name](operand)


TILES = torch.ones(2, 2, 4)


def built(send=0, outs="y", where=None, unused=0):
    """Build one round on a 2 x 2 mesh, where core 0 of each mesh row sends its tile and then all cores copy it."""
    b = Builder(as_mesh(2), "t")
    b.buffer("x", (4,), "fp32", "input")
    b.like("y", "x")
    if unused:
        b.buffer("unused", (unused,), "fp16", "input")
    b.round(b.exchange("x", "x", "y", send, 1), b.local("copy", outs, "x", where=where, size=4))
    return b.build()


def poisoned(layer):
    nn.init.constant_(layer.weight, float("nan"))
    return layer


CALLS = {
    lambda: rms_norm(A, A[0], mesh=2, eps=-5): "rms_norm: eps = -5.0 must be 0 or a positive number",
    lambda: rms_norm(A, A[0], mesh=2, eps=float("nan")): "rms_norm: eps = nan must be a finite number",
    lambda: softmax(A, mesh=2, scale=float("nan")): "softmax: scale = nan must be a finite number",
    lambda: softmax(A, mesh=2, scale="x"): "softmax: scale = 'x' must be a finite number",
    lambda: mesh_gemm(A, A, mesh=(31, 37)): "mesh 31x37: products of matrices fold it .* 1,147 logical cores on each",
    lambda: compare_gemm(4, 0, 1, 1): "m = 0 must be a whole number of at least 1",
    lambda: mesh_gemm(A, A, mesh=2, backend=5): "gemm: backend = 5 must be a name in quotes",
    lambda: mesh_gemm(A, A, mesh=2, executor=5): "gemm: executor = 5 is none; give a result of wafer_triton.executor",
    lambda: as_mesh(4, []): r"unknown device \[\]",
    lambda: Builder("4", "t"): "Builder 't': mesh is of type str; give a Mesh",
    lambda: built(send=[[0], [0, 1]]): r"send = \[\[0\], \[0, 1\]\] must be whole numbers, positions",
    lambda: built(send=np.zeros((1, 1, 2), int)): r"send = .* must be whole numbers, positions \[n\] on all lines",
    lambda: built(where=Cores("q", np.array([0]))): "copy: axis 'q' is neither 'x' nor 'y'",
    lambda: built(where=Cores("x", np.array([True, False]))): "where = .* must be whole numbers",
    lambda: built(where=Cores("x", np.array([1.5]))): r"where = array\(\[1.5\]\) must be whole numbers",
    lambda: built(where=Cores("x", None)): "where = None must be whole numbers",
    lambda: built(where=Cores("x", np.array([1, 1]))): r"copy names core \(0, 1\) twice",
    lambda: built(unused=2**40): "needs 2,199,023,255,584 B in round 0",
    lambda: mesh_gemm(A, A, mesh=2, exchange=None): "gemm: exchange = None must be a name in quotes",
    lambda: Mesh("2", 2): "mesh '2' x 2: rows must be a whole number of at least 1",
    lambda: Intent({"x": "(y r) (x r)"}, {}): r"Intent: '\(y r\) \(x r\)', the partition spec of 'x', names an",
    lambda: check(built(), Intent({"x": {"r": -3}}, {}, reference=dict)): "r is neither .* numbers are whole, from 0",
    lambda: check(built(), Intent({"x": {"r": 0.5}}, {}, reference=dict)): "r is neither .* numbers are whole, from 0",
    lambda: link_loads(built(), block=0): "block = 0 must be a whole number of at least 1",
    lambda: recipe("gemm", as_mesh(2), "fp32", ((2, 2), (2, 2)), (("foo", 1),)): "no option 'foo'; options: algorithm",
    lambda: run(recipe("gemm", as_mesh(2), "fp32", ((6, 6), (6, 6)), ()), (A,), executor()): "1 operands for 2 inputs",
    lambda: sweep("gemv", {"k": []}, mesh=4, n=8): "sweep over k: it has no value; give one at least",
    lambda: sweep("gemv", {"k": ["a"]}, mesh=4, n=8): "k = 'a' must be a whole number of at least 1",
    lambda: sweep("gemv", {"hop_cycles": ["a"]}, mesh=4, n=8, k=8): "hop_cycles = 'a' must be a finite number",
    lambda: sweep("gemv", {"k": [8, 8]}, mesh=4, n=8): "sweep over k: 8 comes twice; give each value once",
    lambda: Slot("x", 0, "z"): "slot of 'x': axis 'z' is neither 'x' nor 'y'",
    lambda: Slot("x", 1.0): "slot of 'x': index 1.0 is neither a whole number, nor one for each position, nor None",
    lambda: Slot("x", "2"): "slot of 'x': index '2' is neither a whole number",
    lambda: Slot("x", np.arange(4.0)): r"slot of 'x': index array\(.*\) is neither a whole number",
    lambda: Slot("x", torch.ones(2)): r"slot of 'x': index tensor\(.*\) is neither a whole number",
    lambda: Slot("x", [True, False]): r"slot of 'x': index \[True, False\] is neither a whole number",
    lambda: Slot("x", [[0], [0, 1]]): r"slot of 'x': index \[\[0\], \[0, 1\]\] is neither a whole number",
    lambda: Builder(as_mesh(2), "t").buffer("", (1,), "fp32"): "t: buffer '' has no name; give a text",
    lambda: Builder(as_mesh(2), "t").buffer(3, (1,), "fp32"): "t: buffer 3 has no name; give a text",
    lambda: replace(PRESETS["wse2"], name=""): "device '' has no name; give a text",
    lambda: replace(PRESETS["wse2"], name=None): "device None has no name; give a text",
    lambda: recipe("conv", as_mesh(4), "fp32", ((4, 4), (4, 4)), ()): "recipe 'conv': choose one of gemm, gemv",
    lambda: recipe("gemm", as_mesh(4), "fp32", ((64,), (64, 4)), ()): r"gemm of \[64\], \[64, 4\]: give 2 shapes of 2",
    lambda: recipe("gemm", as_mesh(4), "fp32", ((64, 64), (63, 64)), ()): "the inner sizes are 64 and 63; give the",
    lambda: recipe("gemv", as_mesh(4), "fp32", ((1, 64), (63, 64)), ()): "the inner sizes are 64 and 63; give the same",
    lambda: draw.links(built(), None): "None is no path of a file",
    lambda: draw.perfetto(built(), "/tmp"): "/tmp: is a folder; give the path of a file in it",
    lambda: draw.page("a.txt", "t", [], PRESETS["wse2"]): "a.txt: a page is HTML; end its name with .html",
    lambda: estimate.cap(model="olmoe-1b-7b", mesh=360, context=8, routing=[1, 2]): r"routing \[1, 2\]: give uni",
    lambda: estimate.cap(model="olmoe-1b-7b", mesh=360, context=8, routing={}): "routing {}: give uniform",
    lambda: estimate.cap(model="olmoe-1b-7b", mesh=360, context=8, routing=None): "routing None: give uniform, a skew",
    lambda: mesh_gemm(A, A, mesh=2, executor=executor("torch"), backend="triton"): "executor and backend are given",
    lambda: mesh_gemm(torch.nested.nested_tensor([A[0], A[1, :2]]), A, mesh=2): "mesh_gemm: operand 1 is nested",
    lambda: mesh_gemm(A.clone().requires_grad_(), A, mesh=2): "mesh_gemm: operand 1 requires a gradient, which is not",
    lambda: as_mesh(True): "mesh True: give a side such as 16",
    lambda: distributed.executor(timeout=float("nan")): "timeout = nan must be a number of seconds above 0",
    lambda: distributed.executor(timeout=-1): "timeout = -1 must be a number of seconds above 0",
    lambda: Intent.of(None): "Intent.of: a NoneType is no recipe",
    lambda: executor().bind(built(), {"x": TILES * 1j}): "buffer 'x' is given a tensor of torch.complex64; give its",
    lambda: executor().bind(built(), {"x": TILES}).write("x", A): r"the tensor given is \[6, 6\]",
    lambda: executor().bind(built(), {"x": TILES}).write("x", None): "buffer 'x' is given a NoneType; give a dense",
    lambda: estimate.decode(model="smollm2-135m", mesh=64, context="5"): "context = '5' must be a whole number of at",
    lambda: estimate.decode(model="smollm2-135m", mesh=64, context=5, head_groups="8"): "head_groups = '8', but",
    lambda: estimate.request(model="smollm2-135m", prefill_mesh=64, decode_mesh=64, input=1, output=0): "output = 0 ",
    lambda: estimate.decode(model="olmoe-1b-7b", mesh=64, context=5, program="paper-benchmark"): "no program with ",
    lambda: DecoderShape(8, 8, 1, 1, 1, 8, 0, qkv_bias=True, rotary=False): "decoder: without rotary embedding no bias",
    lambda: estimate.energy(seconds="1", against_seconds=1): "seconds = '1' must be a number",
    lambda: plan(model="smollm2-135m", input=1, output=1, sides=[]): "sides is empty; give a side at least",
    lambda: plan(model="smollm2-135m", input=1, output=1, step=900): "no mesh of wse2 was tried: .* no multiple of 900",
    lambda: rms_norm(A[:0], A[0], mesh=2): r"rms_norm of \[0, 6\], \[6\]: every size must be a whole number",
    lambda: softmax(A[:0], mesh=2): r"softmax of \[0, 6\]: every size must be a whole number",
    lambda: WaferForCausalLM.from_config("smollm2-135m", mesh=64, head_groups="3"): "head_groups = '3', but",
    lambda: scatter(A, as_mesh(2), "(y m) (h x n)", h=0): "scatter: h = 0 must be the positive size of an axis",
    lambda: scatter(A, as_mesh(2), "(y m) (x n)", q=3): "scatter: q = 3 must be the positive size of an axis",
    lambda: Mesh(2, 2, origin=(1,)): r"mesh 2 x 2: origin \(1,\) must be whole numbers of at least 0, a pair",
    lambda: Mesh(2, 2, origin=None): "mesh 2 x 2: origin None must be whole numbers",
    lambda: Mesh(2, 2, fold=(1,)): "mesh 2 x 2: fold .* must be whole numbers of at least 1",
    lambda: as_mesh("1_0"): "mesh '1_0': give a side such as 16",
    lambda: executor("torch", emulate_on="nope"): "emulate_on 'nope': torch has no such device here",
    lambda: run(None, (A,), executor()): "of type NoneType is no recipe",
    lambda: convert("x", mesh=4): "convert: 'x' of type str is no model; give a torch.nn.Module",
    lambda: convert(nn.Linear(2, 2), mesh=4): r"to convert within it; give .*, such as torch.nn.Sequential\(layer\)",
    lambda: convert(convert(nn.Sequential(nn.Linear(2, 2)), mesh=2), mesh=2): "within it; it is converted already",
    lambda: convert(nn.Sequential(poisoned(nn.Linear(2, 2))), mesh=2): "the weight of 0 holds NaN or infinity",
    lambda: convert(LINEAR, mesh=2, backend="x"): "backend 'x': choose 'torch' or 'triton'",
    lambda: convert(LINEAR, mesh=2, exchange="x"): "exchange 'x': choose one of explicit, elided",
    lambda: convert(LINEAR, mesh=2, accumulate="x"): "convert: accumulate = 'x': partial sums are kept",
    lambda: WaferForCausalLM.from_pretrained(None): "checkpoint None: give a folder",
    lambda: WaferForCausalLM.from_config(None): "model None: give a name such as smollm2-135m",
    lambda: WaferForCausalLM.from_config("llama3-8b", mesh=16): "no mesh on the device fits",
}  # fmt: skip
NUMBERS = count()


@pytest.mark.parametrize(("call", "message"), CALLS.items(), ids=lambda value: str(next(NUMBERS)))
def test_a_wrong_call(call, message):
    with pytest.raises(WaferError, match=message):
        call()


def test_a_backend_whose_package_is_not_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "wafer_triton.emulate.triton", None)
    with pytest.raises(WaferError, match="the Triton backend needs the package triton .*; use backend='torch'"):
        executor("triton")


@pytest.mark.parametrize("x", [torch.randn(3, 5), torch.ones(3, 2, dtype=torch.int32)])
def test_a_converted_layer_refuses_wrong_inputs(x):
    layer = convert(nn.Sequential(nn.Linear(2, 2)), mesh=2)
    with pytest.raises(WaferError, match=r"MeshLinear: x \[3, .\] of .* must be \[..., 2\] of a floating dtype"):
        layer(x)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.linear = nn.Embedding(10, 4), nn.Linear(4, 4)
        self.experts = nn.Parameter(torch.ones(2, 4, 4))


def test_convert_warns_of_parameters_off_the_mesh():
    with pytest.warns(
        UserWarning, match=r"34.78 % of the parameters of Experts stay off the mesh.*: Experts \(32 param"
    ) as warned:
        model = convert(Experts(), mesh=2)
    assert warned[0].filename == __file__  # the line of the call
    assert off_mesh(model) == {"Experts": 32, "Embedding": 40}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        convert(nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4)), mesh=2)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return WaferForCausalLM.from_pretrained(checkpoint(tmp_path_factory.mktemp("tiny")), mesh=2, max_length=16)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"top_k": 3}, "top_k = 3: at temperature 0 the likeliest token is taken; give a temperature above 0"),
        ({"top_p": 0.5}, "top_p = 0.5: at temperature 0 the likeliest token is taken"),
        ({"temperature": 1.0, "seed": 2**70}, "seed = 1180591620717411303424 must lie between"),
        ({"temperature": True}, "temperature = True must be a number"),
    ],
)
def test_sampling_that_makes_no_sense(model, how, message):
    with pytest.raises(WaferError, match=message):
        model.generate([1], 2, **how)


def test_the_tokens_of_a_stream_have_the_shape_of_its_prompts(model):
    stream = model.generate([1, 2], 3)
    assert list(stream) == stream.tokens
    assert model.generate([[1, 2]], 0).tokens == [[]]
    assert len(list(model.generate([1], 2, temperature=1e-300, seed=1))) == 2


def test_a_model_refuses_wrong_inputs(model):
    with pytest.raises(WaferError, match="state_dict is of type NoneType; give names with tensors"):
        model.load_state_dict(None)
    with pytest.raises(WaferError, match="no tokens to look up"):
        model.embed([])
    poisoned = dict(model.state_dict())
    poisoned["model.norm.weight"] = torch.full((16,), float("nan"))
    with pytest.raises(WaferError, match="state_dict: model.norm.weight holds NaN or infinity"):
        model.load_state_dict(poisoned)


def test_indices_of_slots_have_the_types_of_positions():
    for index in ([0, 1], (0, 1), np.array([0, 1], np.int32), torch.tensor([0, 1])):
        assert Slot("x", index).index.dtype == np.int64 and Slot("x", index).index.tolist() == [0, 1]
    assert type(Slot("x", np.int64(3)).index) is int and Slot("x", None).index is None


def test_a_tensor_that_requires_a_gradient_is_taken_where_none_is_kept():
    with torch.no_grad():
        assert torch.equal(mesh_gemm(A.clone().requires_grad_(), A, mesh=2), mesh_gemm(A, A, mesh=2))
