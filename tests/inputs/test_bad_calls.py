"""Wrong calls in Python: the class of the error, and the fact in its message: the name and the value."""

import re
import sys
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from wafer_triton import (
    Builder,
    Cores,
    Intent,
    Mesh,
    MeshTensor,
    account,
    as_mesh,
    check,
    convert,
    distributed,
    draw,
    estimate,
    executor,
    link_loads,
    mesh_gemm,
    rms_norm,
    run,
    scatter,
    softmax,
)
from wafer_triton.algorithms import norm
from wafer_triton.algorithms.collectives import broadcast
from wafer_triton.algorithms.kv_cache import KvCache
from wafer_triton.algorithms.product import recipe
from wafer_triton.compare.sweep import sweep
from wafer_triton.cost.search import plan
from wafer_triton.device import PRESETS
from wafer_triton.errors import (
    ArgumentError,
    BackendError,
    CacheError,
    CheckpointError,
    ConfigError,
    DeviceError,
    DrawError,
    DtypeError,
    MeshError,
    ScheduleError,
    ShapeError,
    WaferError,
)
from wafer_triton.local import LocalOp
from wafer_triton.models.convert import off_mesh
from wafer_triton.schedule.rounds import Slot
from wafer_triton.shape.decoder import DecoderShape

A = torch.arange(36.0).view(6, 6)
GEMM = recipe("gemm", as_mesh(2), "fp32", ((6, 6), (6, 6)), ())
CUTS = {"x": "(y r)"}, {"y": "(y r)"}
X = torch.ones(4, 4)
TILES = torch.ones(2, 2, 4)


def program():
    return executor().bind(built(), {"x": TILES})


def built(send=0, where=None):
    """Build one round on a 2 x 2 mesh, where core 0 of each mesh row sends its tile and then all cores copy it."""
    b = Builder(as_mesh(2), "t")
    b.buffer("x", (4,), "fp32", "input")
    b.like("y", "x")
    b.round(b.exchange("x", "x", "y", send, 1), b.local("copy", "y", "x", where=where, size=4))
    return b.build()


def poisoned(layer):
    nn.init.constant_(layer.weight, float("nan"))
    return layer


def own_builder(*tile):
    b = Builder(Mesh(4, 4), "own")
    b.buffer("x", tile, "fp32", "input")
    return b


def norm_of(*tile):
    norm.rms_norm(own_builder(*tile), "x", "g", "o", "x", width=16, eps=1e-5)


CALLS = [
    (
        lambda: run(GEMM, (A, A[:5]), executor()),
        ShapeError,
        "mesh gemm [6, 6] x [6, 6]: operand 2 is [5, 6], and its recipe",
    ),
    (lambda: run(GEMM, (A, A), None), BackendError, "run: executor None is none"),
    (lambda: mesh_gemm(A, A, mesh=2, record="no"), BackendError, "gemm: record = 'no'"),
    (lambda: account(built()) * -1, ShapeError, "an account -1 times"),
    (lambda: account(built()) * 1.5, ShapeError, "an account 1.5 times"),
    (lambda: Intent.of(built()), ScheduleError, "Intent.of: a Schedule is no recipe;"),
    (
        lambda: check(built(), Intent(*CUTS, on={"y": Cores("x", np.array([9]))})),
        ScheduleError,
        "Intent: on['y'] names a core that is off mesh 2x2",
    ),
    (
        lambda: check(built(), Intent(*CUTS, on={"y": Cores("x", [-1])})),
        ScheduleError,
        "Intent: on['y'] names a core that is off mesh 2x2",
    ),
    (lambda: Builder(as_mesh(2), ""), ScheduleError, "Builder: the schedule has no name"),
    (lambda: own_builder(4).loop(-1).__enter__(), ScheduleError, "own: loop -1 times"),
    (lambda: own_builder(4).loop(10**12).__enter__(), ScheduleError, "own: loop 1000000000000 times"),
    (
        lambda: MeshTensor(as_mesh(2), A, "(y m) (x n)", (6, 6), {}).gather(),
        ShapeError,
        "tiles [6, 6] of a tensor [6, 6] cut by '(y m) (x n)'",
    ),
    (
        lambda: draw.page("p.html", "t", [draw.scene(built())], PRESETS["wse2"], beside=9),
        DrawError,
        "t: beside = 9 is the number of none of 1 scenes",
    ),
    (
        lambda: scatter(A, as_mesh(2), "(y m) (x n)", m=2),
        ShapeError,
        "pattern '(y m) (x n)': m = 2, but 3 of [6, 6] lie on a core",
    ),
    (lambda: scatter(A.to_sparse(), as_mesh(2), "(y m) (x n)"), ShapeError, "scatter: the tensor is sparse or nested"),
    (lambda: Builder(as_mesh(2), "t", family="x"), ScheduleError, "Builder 't': family 'x'"),
    (lambda: distributed.executor(shards="x"), MeshError, "shards 'x': mesh 'x'"),
    (lambda: rms_norm(A, A[0], mesh=2, eps=-5), ShapeError, "rms_norm: eps = -5.0"),
    (lambda: rms_norm(A, A[0], mesh=2, eps=float("nan")), ShapeError, "rms_norm: eps = nan"),
    (lambda: softmax(A, mesh=2, scale="x"), ShapeError, "softmax: scale = 'x'"),
    (lambda: mesh_gemm(A, A, mesh=2, backend=5), BackendError, "gemm: backend = 5"),
    (lambda: mesh_gemm(A, A, mesh=2, executor=5), BackendError, "gemm: executor = 5 is none"),
    (lambda: as_mesh(4, []), DeviceError, "unknown device []"),
    (lambda: built(send=[[0], [0, 1]]), ScheduleError, "t: send = [[0], [0, 1]]"),
    (lambda: built(send=np.zeros((1, 1, 2), int)), ScheduleError, "t: send = array([[[0, 0]]])"),
    (lambda: built(where=Cores("x", np.array([True, False]))), ScheduleError, "Cores: at = array([ True, False])"),
    (lambda: built(where=Cores("x", np.array([1, 1]))), ScheduleError, "t, round 0: copy names core (0, 1) twice"),
    (
        lambda: Intent({"x": "(y r) (x r)"}, {}),
        ScheduleError,
        "Intent: '(y r) (x r)', the partition spec of 'x', names an axis",
    ),
    (
        lambda: check(built(), Intent({"x": {"r": -3}}, {}, reference=dict)),
        ScheduleError,
        "partition spec {'r': -3} of 'x' on mesh 2x2: r",
    ),
    (lambda: link_loads(built(), block=0), ShapeError, "block = 0"),
    (
        lambda: recipe("gemm", as_mesh(2), "fp32", ((2, 2), (2, 2)), (("foo", 1),)),
        ShapeError,
        "recipe 'gemm': no option 'foo'",
    ),
    (
        lambda: run(recipe("gemm", as_mesh(2), "fp32", ((6, 6), (6, 6)), ()), (A,), executor()),
        ShapeError,
        "mesh gemm [6, 6] x [6, 6]: 1 operands for 2 inputs",
    ),
    (lambda: sweep("gemv", {"k": []}, mesh=4, n=8), ConfigError, "sweep over k: it has no value"),
    (lambda: Slot("x", 0, "z"), ScheduleError, "slot of 'x': axis 'z'"),
    (lambda: Slot("x", 1.0), ScheduleError, "slot of 'x': index 1.0"),
    (lambda: Slot("x", [True, False]), ScheduleError, "slot of 'x': index [True, False]"),
    (lambda: Slot("x", [[0], [0, 1]]), ScheduleError, "slot of 'x': index [[0], [0, 1]]"),
    (lambda: Slot("x", [0, 2**40]), ScheduleError, "slot of 'x': index [0, 1099511627776] has numbers of more"),
    (lambda: Builder(as_mesh(2), "t").buffer("", (1,), "fp32"), ScheduleError, "t: buffer '' has no name"),
    (lambda: recipe("conv", as_mesh(4), "fp32", ((4, 4), (4, 4)), ()), ShapeError, "recipe 'conv'"),
    (lambda: recipe("gemm", as_mesh(4), "fp32", ((64,), (64, 4)), ()), ShapeError, "gemm of [64] and [64, 4]"),
    (
        lambda: recipe("gemm", as_mesh(2), "fp32", ((4, 4), (4, 2.0)), ()),
        ShapeError,
        "gemm of [4, 4] and [4, 2.0]: every",
    ),
    (lambda: recipe("gemm", as_mesh(2), "fp32", ((4, 4), (4, 0)), ()), ShapeError, "gemm of [4, 4] and [4, 0]: every"),
    (
        lambda: recipe("gemm", as_mesh(4), "fp32", ((64, 64), (63, 64)), ()),
        ShapeError,
        "gemm of [64, 64] and [63, 64]: k is 64 and 63; give shapes [m, k] and [k, n]",
    ),
    (lambda: draw.perfetto(built(), "/tmp"), DrawError, "/tmp: is a folder"),
    (lambda: draw.page("a.txt", "t", [], PRESETS["wse2"]), DrawError, "a.txt: a page is HTML; end its name with .html"),
    (lambda: estimate.cap(model="olmoe-1b-7b", mesh=360, context=8, routing=[1, 2]), ShapeError, "routing [1, 2]"),
    (
        lambda: mesh_gemm(A, A, mesh=2, executor=executor("torch"), backend="triton"),
        BackendError,
        "gemm: executor and backend are given, and an executor has its",
    ),
    (
        lambda: mesh_gemm(torch.nested.nested_tensor([A[0], A[1, :2]]), A, mesh=2),
        DtypeError,
        "mesh_gemm: operand 1 is nested",
    ),
    (lambda: distributed.executor(timeout=float("nan")), BackendError, "timeout = nan"),
    (
        lambda: executor().bind(built(), {"x": TILES * 1j}),
        DtypeError,
        "t: buffer 'x' is given a tensor of torch.complex64",
    ),
    (
        lambda: executor().bind(built(), {"x": torch.full((2, 2, 4), 2**24 + 1)}),
        DtypeError,
        "t: buffer 'x' of fp32 is given the whole number 16,777,217, which fp32 would round",
    ),
    (
        lambda: executor().bind(built(), {"x": TILES}).write("x", A),
        ShapeError,
        "t: buffer 'x' is [4] x 1 on 2 x 2 cores, the tensor given is",
    ),
    (
        lambda: estimate.request(model="smollm2-135m", prefill_mesh=64, decode_mesh=64, input=1, output=0),
        ShapeError,
        "output = 0",
    ),
    (
        lambda: estimate.decode(model="olmoe-1b-7b", mesh=64, context=5, program="paper-benchmark"),
        ConfigError,
        "olmoe-1b-7b: no program with experts was measured",
    ),
    (
        lambda: DecoderShape(8, 8, 1, 1, 1, 8, 0, qkv_bias=True, rotary=False),
        ConfigError,
        "decoder: without rotary embedding no bias, head norm or grouped",
    ),
    (lambda: plan(model="smollm2-135m", input=1, output=1, sides=[]), ShapeError, "sides is empty"),
    (
        lambda: plan(model="smollm2-135m", input=1, output=1, step=900),
        MeshError,
        "no mesh of wse2 was tried: its sides have no multiple of 900",
    ),
    (lambda: rms_norm(A[:0], A[0], mesh=2), ShapeError, "rms_norm of [0, 6] and [6]: every size"),
    (lambda: scatter(A, as_mesh(2), "(y m) (h x n)", h=0), ShapeError, "scatter: h = 0"),
    (lambda: scatter(A, as_mesh(2), "(y m) (x n)", q=3), ShapeError, "scatter: q = 3"),
    (lambda: Mesh(2, 2, origin=(1,)), MeshError, "mesh 2 x 2: origin (1,)"),
    (lambda: run(None, (A,), executor()), ScheduleError, "run: None of type NoneType is no recipe;"),
    (
        lambda: convert(nn.Linear(2, 2), mesh=4),
        ShapeError,
        "Linear has no Linear, Conv1D or RMSNorm to convert within it",
    ),
    (
        lambda: convert(nn.Sequential(poisoned(nn.Linear(2, 2))), mesh=2),
        CheckpointError,
        "convert: the weight of 0 holds NaN or infinity",
    ),
    (lambda: broadcast(own_builder(3), "x", "x", 1.5), ScheduleError, "own: root = 1.5 of a broadcast"),
    (lambda: KvCache(3, 2).append(own_builder(3), {"x": "y"}, -1), CacheError, "own: entry number -1 is appended"),
    (lambda: norm_of(4), ScheduleError, "own: buffer 'x' has tiles (4,)"),
    (lambda: rms_norm(X, X[0], epsilon=1e-5, mesh=2), ArgumentError, "rms_norm: unknown keyword 'epsilon'"),
    (lambda: distributed.executor(shard="2x2"), BackendError, "distributed.executor: no option 'shard'"),
    (lambda: as_mesh(2).length("z"), MeshError, "mesh 2x2: axis 'z'"),
    (lambda: sweep("gemm", {"mesh": "24"}, m=8, k=8, n=8), DeviceError, "sweep over mesh: values are of type str"),
    (lambda: program().run(until=1.5), ScheduleError, "until = 1.5"),
]


@pytest.mark.parametrize(("call", "error", "fact"), CALLS, ids=range(len(CALLS)))
def test_a_wrong_call_names_the_fact(call, error, fact):
    with pytest.raises(error) as caught:
        call()
    assert fact in str(caught.value) and type(caught.value) is error


def test_a_backend_whose_package_is_not_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "wafer_triton.emulate.triton", None)
    with pytest.raises(WaferError, match="the Triton backend needs the package triton .*; use backend='torch'"):
        executor("triton")


@pytest.mark.parametrize("x", [torch.randn(3, 5), torch.ones(3, 2, dtype=torch.int32)])
def test_a_converted_layer_refuses_wrong_inputs(x):
    layer = convert(nn.Sequential(nn.Linear(2, 2)), mesh=2)
    with pytest.raises(WaferError, match=r"MeshLinear 0: x \[3, .\] of .* must be \[..., 2\] of a floating dtype"):
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


def test_indices_of_slots_have_the_types_of_positions():
    for index in ([0, 1], (0, 1), np.array([0, 1], np.int32), torch.tensor([0, 1])):
        assert Slot("x", index).index.dtype == np.int32 and Slot("x", index).index.tolist() == [0, 1]
    assert type(Slot("x", np.int64(3)).index) is int and Slot("x", None).index is None


def test_a_tensor_that_requires_a_gradient_is_taken_where_none_is_kept():
    with torch.no_grad():
        assert torch.equal(mesh_gemm(A.clone().requires_grad_(), A, mesh=2), mesh_gemm(A, A, mesh=2))


def test_lists_and_tuples_make_one_recipe():
    given = "gemm", as_mesh(2), "fp32"
    assert recipe(*given, [[4, 4], [4, 4]], []) is recipe(*given, ((4, 4), (4, 4)), ())


@pytest.mark.parametrize(
    "tiles, work, message",
    [
        (((3,),) * 5, (0, 3), r"`tiles` returns .*; give whole sizes for out, a"),
        (((3, "a"),) * 2, (0, 3), r"`tiles` returns .*; give whole sizes for out, a"),
        (((3,),) * 2, (0, -5), r"`work` returns \(0, -5\); give multiply-adds and other operations, at least 0"),
        (((3,),) * 2, (0, float("nan")), "`work` returns .*; give multiply-adds and other operations, at least 0"),
        (((3,),) * 2, None, "`work` returns None; give multiply-adds and other operations, at least 0"),
    ],
)
def test_sizes_and_work_of_an_own_operation_are_counts(tiles, work, message):
    operation = LocalOp("own", lambda out, a, *, size: None, lambda *, size: tiles, lambda *, size: work)
    assert re.search(message, operation.fault({"size": 3}, (None,), (None,)))
