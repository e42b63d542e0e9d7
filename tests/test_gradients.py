"""Gradients of mesh operations: torch's own, by schedules that are counted as those of forward."""

import gc
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from wafer_triton import ops
from wafer_triton.algorithms.product import recipe
from wafer_triton.count.account import account
from wafer_triton.device.layout import scatter
from wafer_triton.device.mesh import as_mesh
from wafer_triton.emulate.pool import POOL
from wafer_triton.errors import DtypeError, WaferError

# a call on a mesh, the same in plain torch, and the shapes of its operands
Case = tuple[Callable[..., Tensor], Callable[..., Tensor], tuple[tuple[int, ...], ...]]
CASES: dict[str, Case] = {
    "mesh_gemm": (ops.mesh_gemm, lambda a, b: a @ b, ((7, 5), (5, 11))),
    "mesh_gemm_t": (ops.mesh_gemm_t, lambda a, b: a @ b.T, ((7, 5), (11, 5))),
    "mesh_gemm_tn": (ops.mesh_gemm_tn, lambda a, b: a.T @ b, ((5, 7), (5, 11))),
    "mesh_gemv": (ops.mesh_gemv, lambda x, w: x @ w, ((5,), (5, 11))),
    "mesh_gemv-x": (lambda x, w, **how: ops.mesh_gemv(x, w, axis="x", groups=2, **how),
                    lambda x, w: x @ w, ((3, 5), (5, 11))),
    "all_reduce": (lambda x, **how: ops.all_reduce(x, axis="y", **how),
                   lambda x: x.sum(0, True).expand_as(x), ((2, 3, 4),)),
    "rms_norm": (lambda x, w, **how: ops.rms_norm(x, w, eps=1e-3, **how),
                 lambda x, w: torch.nn.functional.rms_norm(x, (11,), w, 1e-3), ((7, 11), (11,))),
    "rms_norm-rows-of-padding": (lambda x, w, **how: ops.rms_norm(x, w, eps=0, **how),
                                 lambda x, w: torch.nn.functional.rms_norm(x, (5,), w, 0), ((5, 5), (5,))),
    "softmax": (lambda x, **how: ops.softmax(x, scale=0.7, **how), lambda x: (0.7 * x).softmax(-1), ((7, 11),)),
}  # fmt: skip
every = pytest.mark.parametrize("name", CASES)
meshes = pytest.mark.parametrize("mesh", ["3x3", "2x4", "1x5"])


def values(name: str, mesh: str, seed: int = 0) -> list[Tensor]:
    """Operands that require a gradient; tiles of an all-reduce are those of its mesh."""
    torch.manual_seed(seed)
    shapes = [as_mesh(mesh).shape + shape[2:] if len(shape) == 3 else shape for shape in CASES[name][2]]
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def wide(tensors: list[Tensor]) -> list[Tensor]:
    return [one.detach().double().requires_grad_() for one in tensors]


def assert_near(got: list[Tensor], wanted: list[Tensor]) -> None:
    for one, other in zip(got, wanted, strict=True):
        assert one.dtype == torch.float32 and one.shape == other.shape
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5 * float(other.abs().max()))


@every
@meshes
def test_gradients_are_torchs_in_fp64_by_either_exchange_with_the_same_bits(name, mesh):
    # tiles have no fp64, so gradcheck's differences would drown in rounding
    call, plain, _ = CASES[name]
    operands = values(name, mesh)
    exact = wide(operands)
    y = plain(*exact)
    dy = torch.randn(y.shape)
    wanted = torch.autograd.grad(y, exact, dy.double())
    got = torch.autograd.grad(call(*operands, mesh=mesh), operands, dy)
    assert_near(got, wanted)
    elided = torch.autograd.grad(call(*operands, mesh=mesh, exchange="elided"), operands, dy)
    assert all(map(torch.equal, got, elided))


@pytest.mark.parametrize("name", [name for name in CASES if "norm" not in name and "softmax" not in name])
def test_gradients_of_gradients_are_torchs(name):
    call, plain, _ = CASES[name]
    operands = values(name, "2x4")
    exact = wide(operands)

    def twice(call, operands):
        y = call(*operands).square().sum()
        first = torch.autograd.grad(y, operands, create_graph=True)
        return torch.autograd.grad(sum(one.square().sum() for one in first), operands)

    assert_near(twice(lambda *given: call(*given, mesh="2x4"), operands), twice(plain, exact))


@every
def test_gradients_of_the_triton_executor(name):
    call, plain, _ = CASES[name]
    mesh = "1x3" if "gem" not in name else "2"  # products fold a mesh
    operands = values(name, mesh)
    exact = wide(operands)
    got = torch.autograd.grad(call(*operands, mesh=mesh, backend="triton").square().sum(), operands)
    assert_near(got, torch.autograd.grad(plain(*exact).square().sum(), exact))


@pytest.mark.parametrize("name", [name for name in CASES if "norm" not in name and "softmax" not in name])
def test_a_result_may_be_written_into(name):
    call, plain, _ = CASES[name]
    operands = values(name, "2x4")
    exact = wide(operands)
    got = torch.autograd.grad(call(*operands, mesh="2x4").mul_(2).sum(), operands)
    assert_near(got, torch.autograd.grad((2 * plain(*exact)).sum(), exact))


def test_only_gradients_that_are_asked_for_are_computed():
    a, b = values("mesh_gemm", "2x4")
    with ops.recording() as record:
        c = ops.mesh_gemm(a.detach(), b, mesh="2x4")
        c.sum().backward()
    assert a.grad is None
    assert record.rounds == sum(account(one).rounds for one in schedules("gemm", ((7, 5), (5, 11))) if one)


def schedules(name: str, shapes: tuple[tuple[int, int], ...]):
    """Forward, and the gradient of the second operand."""
    (m, k), (_, n) = shapes
    yield recipe(name, "2x4", "fp32", shapes).schedule
    yield recipe(name, "2x4", "fp32", ((m, k), (m, n)), (("transposed", "a"),)).schedule


def test_a_recording_adds_up_the_schedules_of_forward_and_backward():
    with ops.recording() as record:
        x, w = values("mesh_gemv-x", "2x4")
        y = CASES["mesh_gemv-x"][0](x, w, mesh="2x4")
        with ops.recording() as inner:
            ops.softmax(y, mesh="2x4").square().sum().backward()
    wanted = [
        recipe("gemv", "2x4", "fp32", ((3, 5), (5, 11)), (("axis", "x"), ("groups", (2,)))),
        recipe("softmax", "2x4", "fp32", ((3, 11),)),
        recipe("softmax_dx", "2x4", "fp32", ((3, 11), (3, 11))),
        recipe("gemv", "2x4", "fp32", ((3, 11), (5, 11)), (("axis", "y"), ("transposed", "b"))),
        recipe("outer", "2x4", "fp32", ((3, 5), (3, 11)), (("axis", "x"),)),
    ]
    of = [ops.Record.of(one.schedule) for one in wanted]
    for name in ("rounds", "stages", "hops", "link_bytes", "messages", "macs", "serial_words"):
        assert getattr(record, name) == sum(getattr(one, name) for one in of), name
        assert getattr(inner, name) == sum(getattr(one, name) for one in of[1:]), name
    assert record.predicted.cycles == pytest.approx(sum(one.predicted.cycles for one in of), rel=1e-12)


def test_a_recording_of_nothing_is_empty_and_of_another_device_is_its_own():
    with ops.recording() as record:
        pass
    assert (record.rounds, record.predicted.cycles) == (0, 0)
    with ops.recording() as record:
        ops.softmax(torch.ones(4, 4), mesh=as_mesh(2, "wse3"))
    assert record.device.name == "wse3"


@pytest.mark.slow
def test_a_graph_of_torchs_compiler_holds_forward_and_backward():
    torch._dynamo.reset()

    def loss(a, b, weight):
        c = ops.rms_norm(ops.mesh_gemm(2 * a, b, mesh="2x3"), weight, mesh=3)
        return ops.softmax(c, mesh=2).square().sum()

    operands = [torch.randn(shape, requires_grad=True) for shape in ((5, 7), (7, 4), (4,))]
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    got, wanted = (torch.autograd.grad(call(*operands), operands) for call in (compiled, loss))
    assert all(map(torch.equal, got, wanted))


def test_two_hundred_steps_keep_what_twenty_kept():
    a, b = values("mesh_gemm", "2x4")

    def after(steps: int) -> tuple[int, int]:
        for _ in range(steps):
            a.grad = b.grad = None
            ops.mesh_gemm(a, b, mesh="2x4").square().sum().backward()
        gc.collect()
        return POOL.bytes, sum(isinstance(one, Tensor) for one in gc.get_objects())

    assert after(20) == after(200)


A = torch.ones(4, 4, requires_grad=True)
REFUSED = {
    "all_reduce: the gradient of op 'maximum' is not": lambda: ops.all_reduce(
        A[..., None], axis="x", op="maximum", mesh=4
    ).sum().backward(),
    "rms_norm_dx: the gradient of a gradient is not": lambda: torch.autograd.grad(
        ops.rms_norm(A, torch.ones(4), mesh=2).sum(), A, create_graph=True
    )[0].sum().backward(),
    "softmax_dx: the gradient of a gradient is not": lambda: torch.autograd.grad(
        ops.softmax(A, mesh=2).square().sum(), A, create_graph=True
    )[0].sum().backward(),
    "mesh_gemm: operand 1 is tracked by torch.func": lambda: torch.func.grad(
        lambda x: ops.mesh_gemm(x, A, mesh=2).sum()
    )(A.detach()),
    "gemm: operand 2 requires a gradient, which is not computed of an executor": lambda: ops.mesh_gemm(
        A.detach(), A, mesh=2, executor=ops.executor("torch")
    ),
    "gemm: operand 2 requires a gradient, which is not computed of a MeshTensor": lambda: ops.mesh_gemm(
        scatter(A.detach(), as_mesh(2), "(y m) (x k)"), A
    ),
    r"mesh gemm .*: operand 1 requires a gradient, which is not computed of run": lambda: ops.run(
        recipe("gemm", 2, "fp32", ((4, 4), (4, 4))), (A, A), ops.executor("torch")
    ),
}  # fmt: skip


@pytest.mark.parametrize("said", REFUSED)
def test_what_has_no_gradient_says_so(said):
    with pytest.raises(DtypeError, match=said):
        REFUSED[said]()


def test_an_operand_that_changed_before_backward_is_torchs_error():
    a, b = values("mesh_gemm", "2x4")
    c = ops.mesh_gemm(a, b, mesh="2x4")
    with torch.no_grad():
        b.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        c.sum().backward()


@pytest.mark.parametrize(
    ("name", "shapes"),
    [("softmax_dx", ((2, 3), (3, 2))), ("outer", ((2, 3), (3, 3))), ("rms_norm_dx", ((2, 3), (3,), (2, 3), (2, 4)))],
)
def test_shapes_of_a_gradient_agree(name, shapes):
    with pytest.raises(WaferError, match="transposed = True must be 'a', 'b' or ''"):
        recipe("gemm", 2, "fp32", ((4, 4), (4, 4)), (("transposed", True),))
    with pytest.raises(WaferError, match=f"{name} of .*: [mn] is . and .; give shapes"):
        recipe(name, 2, "fp32", shapes)
