"""The Triton executor on a GPU: values, the same bits in every mode, graphs, a whole wafer, and errors."""

from dataclasses import replace

import pytest
import torch

from tiles import same_bits
from wafer_triton import mesh_gemm, mesh_gemm_t, recording
from wafer_triton.algorithms.product import recipe
from wafer_triton.device import PRESETS
from wafer_triton.device.dtype import torch_dtype
from wafer_triton.device.layout import scatter
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.emulate.triton import TritonExecutor
from wafer_triton.errors import BackendError
from wafer_triton.ops import run
from wafer_triton.ops.testing import assert_close

ROOMY = replace(PRESETS["wse2"], name="roomy", sram_bytes=64 * 2**20)
CASES = {  # side of the mesh, m, k, n: on a GPU, and rehearsed; None where a rehearsal would repeat another case's
    "gemm-64x64-tiles": ("gemm", (16, 1024, 1024, 1024), None),
    "gemm-128x128-tiles": ("gemm", (8, 1024, 1024, 1024), None),
    "gemm-64x64-tiles-on-32": ("gemm", (32, 2048, 2048, 2048), None),
    "gemm-128x128-tiles-on-16": ("gemm", (16, 2048, 2048, 2048), (2, 34, 34, 34)),
    "gemm-128x128-tiles-on-32": ("gemm", (32, 4096, 4096, 4096), None),
    "gemm-256x256-tiles-on-16": ("gemm", (16, 4096, 4096, 4096), None),
    "gemm-256x256-tiles-on-32": ("gemm", (32, 8192, 8192, 8192), None),
    "gemm-16x16-tiles": ("gemm", (16, 256, 256, 256), (4, 8, 8, 8)),
    "gemm-32x32-tiles": ("gemm", (16, 512, 512, 512), None),
    "gemm-ragged": ("gemm", (7, 300, 200, 500), (3, 7, 5, 8)),
    "gemm-small-tiles": ("gemm", (48, 96, 144, 48), None),
    "gemv": ("gemv", (64, 1, 4096, 14336), None),
    "gemv-ragged": ("gemv", (48, 1, 1000, 777), (4, 1, 13, 19)),
    "gemv-batch": ("gemv", (32, 16, 2048, 1024), (2, 6, 8, 6)),
}


def each_case(large: bool) -> list:
    """Return the parameters of a test: a race between programs needs large tiles on a mesh that is large as well."""
    return [
        pytest.param(case, marks=[pytest.mark.gpu_alone] if rehearsed is None else [])
        for case, (_, _, rehearsed) in CASES.items()
        if ("tiles-on" in case) == large
    ]


cases = pytest.mark.parametrize("case", each_case(large=False))
dtypes = pytest.mark.parametrize("dtype", ["bf16", pytest.param("fp16", marks=pytest.mark.gpu_alone), "fp32"])
exchanges = pytest.mark.parametrize("exchange", ["explicit", "elided"])


@pytest.fixture
def made(size):
    """Return a function: case, dtype -> recipe."""

    def make(case, dtype):
        op, on_gpu, rehearsed = CASES[case]
        side, m, k, n = size(on_gpu, rehearsed)
        return recipe(op, Mesh(side, side, ROOMY), dtype, ((m, k), (k, n)), ())

    return make


@pytest.fixture
def operands(size, device):
    """Return a function: case, dtype -> both operands on the device."""

    def make(case, dtype, integers=False):
        _, on_gpu, rehearsed = CASES[case]
        _, m, k, n = size(on_gpu, rehearsed)
        if integers:
            return tuple(torch.randint(-1, 2, one, device=device).to(torch_dtype(dtype)) for one in ((m, k), (k, n)))
        return tuple(torch.randn(one, device=device).to(torch_dtype(dtype)) for one in ((m, k), (k, n)))

    return make


# --- values ---


@dtypes
@exchanges
@cases
def test_values(case, exchange, dtype, made, operands):
    a, b = operands(case, dtype)
    got = run(made(case, dtype), (a, b), TritonExecutor(exchange=exchange)).gather()
    want = a.double() @ b.double()
    if dtype == "fp32":
        assert ((got.double() - want).abs() <= rounding(a, b)).all(), case
    else:
        assert_close(got, want, dtype, plain=a @ b, name=case)


def rounding(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the error bound of an fp32 product in any order of sums: k roundings of half a unit in the last place."""
    k, unit = a.shape[-1], torch.finfo(torch.float32).eps / 2
    return k * unit / (1 - k * unit) * (a.abs().double() @ b.abs().double())


@pytest.mark.parametrize("case", each_case(large=True))
def test_explicit_products_of_large_tiles_are_exact_again_and_again(case, made, operands, size):
    """Use integers, whose products are exact in any order: a tile that is overwritten early shows."""
    a, b = operands(case, "bf16", integers=True)
    want, program = (a.float() @ b.float()).bfloat16(), bound(made(case, "bf16"), (a, b), TritonExecutor())
    for _ in range(size(50 if a.shape[0] <= 4096 else 5, 1)):
        write(made(case, "bf16"), program, (a, b))
        program.run()
        name, pattern, shape = made(case, "bf16").output
        assert torch.equal(program.gather(name, pattern, shape), want)


@exchanges
@cases
def test_integers_are_exact(case, exchange, made, operands):
    a, b = operands(case, "bf16", integers=True)
    got = run(made(case, "bf16"), (a, b), TritonExecutor(exchange=exchange)).gather()
    assert torch.equal(got, (a.float() @ b.float()).bfloat16())


def test_the_torch_executor_on_the_device_agrees(device, made, operands):
    for case in ("gemm-ragged", "gemv-ragged"):
        a, b = operands(case, "fp32", integers=True)
        want = run(made(case, "fp32"), (a, b), TorchExecutor(device=device)).gather()
        assert torch.equal(run(made(case, "fp32"), (a, b), TritonExecutor()).gather(), want)


# --- the same bits however it runs ---


@dtypes
@cases
def test_explicit_and_elided_are_the_same_bits(case, dtype, made, operands):
    given, what = operands(case, dtype), made(case, dtype)
    explicit, elided = (run(what, given, TritonExecutor(exchange=how)).gather() for how in ("explicit", "elided"))
    assert same_bits(explicit, elided)


@dtypes
@cases
def test_every_kind_of_launch_is_the_same_bits(case, dtype, made, operands):
    given, what = operands(case, dtype), made(case, dtype)
    plain = run(what, given, TritonExecutor()).gather()
    assert same_bits(plain, run(what, given, launch_a_round()).gather())


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.gpu_alone)])
@exchanges
@cases
def test_order_of_cores_and_poison_change_nothing(case, exchange, seed, made, operands):
    given, what = operands(case, "bf16"), made(case, "bf16")
    plain = run(what, given, TritonExecutor(exchange=exchange)).gather()
    shuffled = run(what, given, TritonExecutor(exchange=exchange, shuffle=seed, poison=True)).gather()
    assert same_bits(plain, shuffled) and plain.isfinite().all()


@exchanges
@cases
def test_runs_again_and_again(case, exchange, made, operands, size):
    """Repeat a run with inputs given anew, as a run moves them; a race would now and then give another result."""
    what, given = made(case, "bf16"), operands(case, "bf16")
    program, first = bound(what, given, TritonExecutor(exchange=exchange)), None
    for _ in range(size(50, 2)):
        write(what, program, given)
        program.run()
        found = program.read("out")
        first = found if first is None else first
        assert same_bits(found, first)


@exchanges
@cases
def test_a_captured_program_is_its_run(case, exchange, made, operands):
    what, given, others = made(case, "bf16"), operands(case, "bf16"), operands(case, "bf16")
    program = bound(what, given, TritonExecutor(exchange=exchange))
    replay = program.captured
    for one in (given, others, given):
        write(what, program, one)
        replay()
        again = bound(what, one, TritonExecutor(exchange=exchange))
        again.run()
        assert same_bits(program.read("out"), again.read("out"))


def launch_a_round():
    """Return an executor that takes compute-shift rounds one by one, without windows."""
    executor = TritonExecutor()
    executor._windows = lambda memory, run: None
    return executor


def bound(what, given, on):
    return on.bind(what.schedule, cut(what, given))


def cut(what, given):
    pairs = zip(what.inputs, given, strict=True)
    return {name: scatter(one, what.schedule.mesh, pattern).tiles for (name, pattern), one in pairs}


def write(what, program, given):
    for name, tiles in cut(what, given).items():
        program.write(name, tiles)


def test_launches_are_recorded(device, size):
    side = size(16, 3)
    a, b = (torch.randn(64 * side if device == "cuda" else side, side * 4, device=device).bfloat16() for _ in "ab")
    _, one = mesh_gemm(a, b.T.contiguous(), mesh=side, executor=launch_a_round(), record=True)
    _, other = mesh_gemm(a, b.T.contiguous(), mesh=side, backend="triton", exchange="elided", record=True)
    assert one.launches and other.launches and one.launches != other.launches


# --- a whole wafer ---


@exchanges
@pytest.mark.parametrize(("op", "side"), [("gemm", 660), ("gemm", 720), ("gemv", 660), ("gemv", 720)])
def test_wafer_scale(op, side, exchange, device, size):
    side = size(side, 3)
    extent = 2 * side
    a, b = (torch.randint(-2, 3, one, device=device).bfloat16() for one in ((extent, extent), (extent, extent)))
    a = a[:1] if op == "gemv" else a
    what = recipe(op, Mesh(side, side), "bf16", (tuple(a.shape), tuple(b.shape)), ())
    got = run(what, (a, b), TritonExecutor(exchange=exchange)).gather()
    assert torch.equal(got, (a.float() @ b.float()).bfloat16())


# --- errors ---


@pytest.mark.gpu_alone
def test_slots_that_do_not_fit_the_bound_are_several_windows():
    what = recipe("gemm", Mesh(660, 660), "bf16", ((1320,) * 2,) * 2, ())
    tiles = {name: torch.zeros(*what.schedule.mesh.shape, 4).bfloat16() for name, _ in what.inputs}
    program = TritonExecutor().bind(what.schedule, tiles)
    assert "5 x compute-shift, 132 rounds in a launch" in program.launches


@pytest.mark.gpu_alone
def test_a_mesh_beyond_the_gpus_memory_is_refused_with_the_bytes():
    _, total = torch.cuda.mem_get_info()
    words = 2 * total // (720 * 720 * 2)  # bf16 words of a tile, all tiles together twice the memory
    device = replace(PRESETS["wse2"], name="huge", sram_bytes=2**40)
    what = recipe("gemv", Mesh(720, 720, device), "bf16", ((1, 720), (720, 720 * words)), ())
    tiles = {"x": torch.zeros(720, 720, 1, 1), "w": torch.zeros(1).expand(720, 720, 1, words)}
    with pytest.raises(BackendError, match=r"take [\d,]+ B of memory, cuda has [\d,]+ B free"):
        TritonExecutor().bind(what.schedule, tiles)


def test_gradients_and_their_recording_where_torch_runs_backward_on_a_thread_of_its_own(device, size):
    side = size(16, 2)
    a, b = (torch.randn(2 * side + 1, 3 * side, device=device).requires_grad_() for _ in range(2))
    wanted = torch.autograd.grad((a @ b.mT).square().sum(), (a, b))
    found = []
    for exchange in ("explicit", "elided"):
        with recording() as forward:
            loss = mesh_gemm_t(a, b, mesh=side, exchange=exchange, backend="triton").square().sum()
        with recording() as backward:
            found.append(torch.autograd.grad(loss, (a, b)))
        assert backward.macs == 2 * forward.macs > 0
    assert all(map(same_bits, *found))
    for got, exact in zip(found[0], wanted, strict=True):
        torch.testing.assert_close(got, exact, rtol=1e-4, atol=1e-4 * float(exact.abs().max()))
