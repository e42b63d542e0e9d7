"""The public operations: every way to call them, and every mistake that a caller can make."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from wafer_triton import ops
from wafer_triton.algorithms.product import recipe
from wafer_triton.cost.price import price
from wafer_triton.count.account import Account
from wafer_triton.device import PRESETS
from wafer_triton.device.layout import MeshTensor, scatter
from wafer_triton.device.mesh import Mesh, as_mesh
from wafer_triton.errors import BackendError, DtypeError, MeshError, ShapeError, SramError, WaferError

CALLS = {
    "mesh_gemm": ((5, 7), (7, 3)),
    "mesh_gemm_t": ((5, 7), (3, 7)),
    "mesh_gemm_tn": ((7, 5), (7, 3)),
    "mesh_gemv": ((7,), (7, 3)),
    "mesh_gemv-batch": ((2, 7), (7, 3)),
    "all_reduce": ((2, 3, 4),),
    "rms_norm": ((5, 7), (7,)),
    "softmax": ((5, 7),),
}
every = pytest.mark.parametrize("name", CALLS)


def operands(name: str, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(shape).to(dtype) for shape in CALLS[name])


def call(name: str, *tensors, **how):
    more = {"axis": "x"} if name == "all_reduce" else {}
    return getattr(ops, name.split("-")[0])(*tensors, **({"mesh": "2x3"} | more | how))


# --- ways to call ---


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_results_keep_dtype_and_own_their_memory(name, dtype):
    given = operands(name, dtype)
    kept = [one.clone() for one in given]
    got = call(name, *given)
    assert got.dtype == dtype and got.isfinite().all()
    got.fill_(9)
    assert all(torch.equal(one, two) for one, two in zip(given, kept, strict=True))
    again = call(name, *given)
    assert not again.eq(9).all()


def test_a_mesh_in_any_spelling():
    given = operands("softmax")
    wanted = call("softmax", *given)
    for mesh in ((2, 3), [2, 3], Mesh(2, 3), Mesh(2, 3, origin=(7, 9)), Mesh(2, 3, replace(PRESETS["wse3"], name="x"))):
        assert torch.equal(call("softmax", *given, mesh=mesh), wanted)


@every
def test_views_are_taken_as_they_are(name):
    given = operands(name)
    strided = [torch.stack([one, one], -1)[..., 0] for one in given]
    assert torch.equal(call(name, *strided), call(name, *given))


@every
def test_a_record_on_request(name):
    given = operands(name)
    got, record = call(name, *given, record=True)
    assert torch.equal(got, call(name, *given))
    assert isinstance(record, Account)
    assert 0 < record.sram_peak_bytes == sum(record.sram_by_buffer.values()) <= 49_152
    assert min(record.rounds, record.hops, record.link_bytes, record.messages) > 0


@pytest.mark.slow
@every
def test_fake_tensors_have_the_shape_of_the_real(name):
    real = call(name, *operands(name, torch.float16))
    with FakeTensorMode():
        fake = call(name, *operands(name, torch.float16))
    assert (fake.shape, fake.dtype, fake.device) == (real.shape, real.dtype, real.device)


@pytest.mark.slow
def test_torch_compile_takes_calls_whole_with_their_options_and_a_folded_mesh():
    torch._dynamo.reset()
    a, b, square = torch.randn(5, 7).half(), torch.randn(3, 7).half(), Mesh(2, 3).square()

    def chain(a, b):
        c = ops.mesh_gemm_t(2 * a, b, mesh=Mesh(2, 3), accumulate="fp16", exchange="elided")
        return ops.softmax(c, scale=0.25, mesh=3), ops.all_reduce(a[0, 0].expand(6, 6, 4), axis="x", mesh=square)

    got, wanted = torch.compile(chain, fullgraph=True, backend="aot_eager")(a, b), chain(a, b)
    assert square.shape == (6, 6) and all(map(torch.equal, got, wanted))


class Operators(TorchDispatchMode):
    """The calls of operators within the mode."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.calls.append((operator, args))
        return operator(*args, **(kwargs or {}))


@every
def test_results_are_contiguous_where_the_mesh_divides_no_size(name):
    got = call(name, *operands(name))
    assert got.is_contiguous() and got.view(-1).shape == (got.numel(),)


@pytest.mark.slow
@pytest.mark.parametrize("gradient", [False, True])
@every
def test_the_operator_passes_torchs_own_checks(name, gradient):
    with Operators() as seen:
        call(name, *operands(name))
    ((operator, args),) = [one for one in seen.calls if one[0] is torch.ops.wafer_triton.apply.default]
    tensors = [one.requires_grad_(gradient) for one in args[1]]
    torch.library.opcheck(operator, (args[0], tensors, *args[2:]))


@pytest.mark.slow
def test_a_compiled_scale_may_change():
    torch._dynamo.reset()
    x, compiled = torch.randn(5, 7), torch.compile(ops.softmax, fullgraph=True, backend="eager", dynamic=True)
    for scale in (0.5, 0.25):
        assert torch.equal(compiled(x, mesh=2, scale=scale), ops.softmax(x, mesh=2, scale=scale))


def test_a_record_of_a_compiled_function_is_that_of_an_eager_one():
    torch._dynamo.reset()
    a, b = operands("mesh_gemm")

    def product(a, b):
        return ops.mesh_gemm(2 * a, b, mesh=3, record=True)

    (got, record), (wanted, counted) = torch.compile(product, backend="eager")(a, b), product(a, b)
    assert torch.equal(got, wanted) and record == counted


def test_a_mistake_in_a_compiled_graph_has_its_line():
    torch._dynamo.reset()
    compiled = torch.compile(lambda a: ops.mesh_gemm(a, a, mesh=3), fullgraph=True, backend="eager")
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"mesh_gemm: a \[5, 7\] has 7 columns, b \[5, 7\] 5 rows"):
        compiled(torch.randn(5, 7))


@pytest.mark.slow
def test_an_exported_program_runs_in_another_process_where_a_first_call_imports_no_compiler(tmp_path):
    class Product(torch.nn.Module):
        def forward(self, a, b):
            return ops.mesh_gemm(a, b, mesh=as_mesh("2x3", "wse3,sram_kib=64"), algorithm="cannon")

    a, b = torch.randn(5, 7), torch.randn(7, 3)
    torch.export.save(torch.export.export(Product(), (a, b)), tmp_path / "product.pt2")
    torch.save((a, b, Product()(a, b)), tmp_path / "values.pt")
    code = (
        "import sys, torch; from wafer_triton import mesh_gemm; a, b, c = torch.load(sys.argv[2]); "
        "mesh_gemm(a, b, mesh=2); mesh_gemm(a, b, mesh=2, record=True); assert 'torch._dynamo' not in sys.modules; "
        "assert torch.equal(torch.export.load(sys.argv[1]).module()(a, b), c)"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "product.pt2", tmp_path / "values.pt"], check=True)


def test_a_record_is_the_callers_own():
    a = torch.ones(4, 4)
    first, other = (ops.mesh_gemm(a, a, mesh=2, record=True)[1] for _ in range(2))
    assert first == other
    first.sram_by_buffer.clear()
    assert other == ops.mesh_gemm(a, a, mesh=2, record=True)[1] != first


# --- mesh tensors ---

PATTERNS = {
    "mesh_gemm": ("(y m) (x k)", "(y k) (x n)"),
    "mesh_gemm_t": ("(y m) (x k)", "(y n) (x k)"),
    "mesh_gemm_tn": ("(y k) (x m)", "(y k) (x n)"),
    "mesh_gemv-batch": ("m (y k)", "(y k) (x n)"),
    "rms_norm": ("(y m) (x n)", "(x n)"),
    "softmax": ("(y m) (x n)",),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_mesh_tensors_in_and_out(name):
    given = operands(name)
    mesh = as_mesh("2x3").square() if "gemm" in name else as_mesh("2x3")
    cut = [scatter(one, mesh, pattern) for one, pattern in zip(given, PATTERNS[name], strict=True)]
    operation = getattr(ops, name.split("-")[0])
    got, record = operation(*cut, record=True)
    assert isinstance(got, MeshTensor) and got.mesh == mesh
    assert torch.equal(got.gather(), call(name, *given))
    assert record == call(name, *given, record=True)[1]
    if len(cut) == 2:
        assert torch.equal(operation(cut[0], given[1]).gather(), got.gather()), "a mesh tensor and a plain one"
        assert torch.equal(operation(given[0], cut[1], mesh=mesh), got.gather()), "a plain one and a mesh tensor"


def test_products_chain_without_leaving_the_mesh():
    mesh = as_mesh("2x3").square()
    a, b, c = (
        torch.randint(-3, 4, (5, 7)).float(),
        torch.randint(-3, 4, (7, 4)).float(),
        torch.randint(-3, 4, (4, 3)).float(),
    )
    cut = scatter(a, mesh, "(y m) (x k)")
    first = ops.mesh_gemm(cut, scatter(b, mesh, "(y k) (x n)"))
    second = ops.mesh_gemm(first, scatter(c, mesh, "(y k) (x n)"))  # whose pattern has other letters
    assert torch.equal(second.gather(), a @ b @ c)


def test_a_mesh_tensor_cut_otherwise_or_elsewhere():
    x = torch.randn(6, 6)
    cut = scatter(x, Mesh(2, 2), "(x m) (y k)")
    with pytest.raises(ShapeError, match=r"a must be cut as '\(y m\) \(x k\)', not '\(x m\) \(y k\)'"):
        ops.mesh_gemm(cut, x)
    with pytest.raises(MeshError, match="x lies on mesh 2x2, not 3x3"):
        ops.softmax(scatter(x, Mesh(2, 2), "(y m) (x n)"), mesh=3)


# --- mistakes ---

A, B = torch.zeros(4, 6), torch.zeros(6, 5)
MISTAKES = {
    "gemm-inner": (
        lambda: ops.mesh_gemm(A, A, mesh=2), ShapeError, r"mesh_gemm: a \[4, 6\] has 6 columns, b \[4, 6\] 4 rows"),
    "gemm-3d": (lambda: ops.mesh_gemm(A, B[None], mesh=2), ShapeError, r"the second operand is \[1, 6, 5\]"),
    "gemm-empty": (lambda: ops.mesh_gemm(A[:0], B, mesh=2), ShapeError, r"the first operand is \[0, 6\]"),
    "gemm-t-inner": (
        lambda: ops.mesh_gemm_t(A, B, mesh=2), ShapeError, r"mesh_gemm_t: a \[4, 6\] and b \[6, 5\] differ in columns"),
    "gemm-tn-inner": (
        lambda: ops.mesh_gemm_tn(A, B, mesh=2), ShapeError, r"mesh_gemm_tn: a \[4, 6\] and b \[6, 5\] differ in rows"),
    "gemv-inner": (
        lambda: ops.mesh_gemv(A[:, 0], B, mesh=2), ShapeError, r"mesh_gemv: x has 4 elements, w \[6, 5\] 6 rows"),
    "gemv-axis": (lambda: ops.mesh_gemv(A[0], B, mesh=2, axis="z"), MeshError, "axis 'z' is neither 'x' .across"),
    "gemv-scalar": (lambda: ops.mesh_gemv(A[0, 0], B, mesh=2), ShapeError, r"the first operand is \[\]"),
    "rms-weight": (
        lambda: ops.rms_norm(A, B[0], mesh=2), ShapeError,
        r"rms_norm: x \[4, 6\] must be \[m, n\] and weight \[5\] \[n\]"),
    "softmax-empty": (lambda: ops.softmax(A[:, :0], mesh=2), ShapeError, r"softmax: x \[4, 0\] must be \[m, n\]"),
    "softmax-vector": (lambda: ops.softmax(A[0], mesh=2), ShapeError, r"softmax: x \[6\] must be \[m, n\]"),
    "all-reduce-shape": (
        lambda: ops.all_reduce(A, axis="x", mesh=(4, 5)), ShapeError,
        r"all_reduce: x \[4, 6\] must begin with the mesh's \[4, 5\]"),
    "all-reduce-op": (
        lambda: ops.all_reduce(A, axis="x", op="mean", mesh=(4, 6)), ShapeError, "op 'mean' is neither 'add' nor 'max"),
    "mixed-dtypes": (
        lambda: ops.mesh_gemm(A, B.half(), mesh=2), DtypeError, "gemm: operands mix fp32 and fp16"),
    "integers": (lambda: ops.mesh_gemm(A, B.int(), mesh=2), DtypeError, "gemm: operand 2: dtype int32 is not"),
    "mixed-devices": (
        lambda: ops.mesh_gemm(A, B.to("meta"), mesh=2), DtypeError,
        "operands lie on cpu and meta; move them to one device"),
    "accumulate": (
        lambda: ops.mesh_gemm(A, B, mesh=2, accumulate="fp8"), DtypeError,
        "accumulate='fp8': partial sums are kept in 'fp32' or 'fp16'"),
    "accumulate-dtype": (
        lambda: ops.mesh_gemm(A, B, mesh=2, accumulate="fp16"), DtypeError,
        "accumulate='fp16' needs fp16 tiles, not fp32"),
    "backend": (lambda: ops.softmax(A, mesh=2, backend="jax"), BackendError, "backend 'jax': choose 'torch' or"),
    "exchange": (
        lambda: ops.softmax(A, mesh=2, exchange="lazy"), BackendError, "exchange 'lazy': choose one of explicit"),
    "sram": (
        lambda: ops.mesh_gemm(torch.zeros(200, 200), torch.zeros(200, 200), mesh=1), SramError,
        r"gemm \[200, 200\] x \[200, 200\] on mesh 1x1: core \(0, 0\) .* a 160,000 B, b 160,000 B, c 160,000 B$"),
}  # fmt: skip


@pytest.mark.parametrize(("wrong", "kind", "message"), MISTAKES.values(), ids=MISTAKES)
def test_an_error_names_the_mistake_and_its_place(wrong, kind, message):
    with pytest.raises(kind, match=message) as caught:
        wrong()
    assert isinstance(caught.value, WaferError)


def test_a_tensor_cut_on_an_unfolded_mesh_is_refused():
    cut = scatter(torch.zeros(6, 6), as_mesh("2x3"), "(y m) (x k)")
    with pytest.raises(MeshError) as caught:
        ops.mesh_gemm(cut, torch.zeros(6, 6))
    assert "square" in str(caught.value), "says that the tensor must be cut on mesh.square()"


@pytest.mark.parametrize(
    "scale", [1 / np.sqrt(64), np.float32(0.125), torch.tensor(0.125), 1], ids=["np", "np32", "torch", "int"]
)
def test_numbers_of_any_kind(scale):
    x = torch.randn(3, 5)
    torch.testing.assert_close(ops.softmax(x, scale=scale, mesh=2), (x * float(scale)).softmax(-1))
    assert ops.rms_norm(x, torch.ones(5), eps=scale, mesh=2).isfinite().all()


def test_a_record_has_the_predicted_cycles_of_its_rounds():
    a, b = torch.randn(12, 12), torch.randn(12, 12)
    _, record = ops.mesh_gemm(a, b, mesh=4, record=True)
    made = recipe("gemm", as_mesh(4), "fp32", ((12, 12), (12, 12)), (("algorithm", "mesh"), ("accumulate", "fp32")))
    whole = price(made.schedule)
    assert record.predicted.cycles == whole.cycles
    assert record.predicted.seconds == whole.cycles / PRESETS["wse2"].clock_hz
    assert record.predicted.compute_cycles + record.predicted.communication_cycles == pytest.approx(whole.cycles)
    twice = record + record
    assert (twice.rounds, twice.predicted.cycles) == (2 * record.rounds, 2 * whole.cycles)
    assert (record * 3).predicted.cycles == pytest.approx(3 * whole.cycles)
    assert "predicted on the wafer" in str(record)
