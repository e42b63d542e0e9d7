"""Kernels against the torch definitions of local operations: on the CPU by Triton's interpreter.

With `TRITON_INTERPRET=0` on a machine with CUDA the same tests judge the compiled kernels. Memory outside of a
kernel's arguments is NaN throughout: if read, it shows in a result; if written, it changes.
"""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

from collections.abc import Sequence

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from local_cases import DTYPES, EXACT, GEMMS, ROUNDED, Case, draw, matmul
from pairs import in_turn
from tiles import CORES, DEVICE, memory, same_bits, table, tiles
from wafer_triton import local
from wafer_triton.errors import ScheduleError
from wafer_triton.kernels import KERNELS, Copies, Operand, find
from wafer_triton.kernels.compute_shift import products
from wafer_triton.kernels.elementwise import elementwise, same_value
from wafer_triton.kernels.exchange import exchange

RUNNING = [3, 0, 4]  # a subset, in no order
dtypes = pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(dtype, id=name, marks=[pytest.mark.slow] if name == "fp16" else [])
        for name, dtype in DTYPES.items()
    ],
)


def in_every_dtype(cases: Sequence[Case]) -> pytest.MarkDecorator:
    """Give a test the cases of each operation in one dtype after the other, and at least the last case in each."""
    by_op = {op: [case for case in cases if case.op == op] for op in dict.fromkeys(case.op for case in cases)}
    turns = [
        (case, DTYPES[dtype])
        for each in by_op.values()
        for case, dtype in in_turn(each + [each[-1]] * max(0, len(DTYPES) - len(each)), tuple(DTYPES))
    ]
    return pytest.mark.parametrize(("case", "dtype"), turns, ids=str)


def run(case: Case, ins: list[Tensor], outs: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Return outputs of the kernel and of the definition on the running cores; assert that nothing else is written."""
    want = [out[RUNNING].float() for out in outs]
    local.find(case.op).run(*want, *(x[RUNNING].float() for x in ins), **case.params)
    want = [value.to(out.dtype) for value, out in zip(want, outs, strict=True)]

    out_operands = tuple(memory(out) for out in outs)
    in_operands = tuple(memory(x, [(i + shift) % CORES for i in range(CORES)]) for shift, x in enumerate(ins))
    expected = [operand.tensor.cpu().clone() for operand in out_operands]
    find(case.op)(out_operands, in_operands, table(RUNNING), **case.params)

    got = [tiles(operand, out.shape[1])[RUNNING] for operand, out in zip(out_operands, outs, strict=True)]
    for whole, operand, value in zip(expected, out_operands, got, strict=True):
        rows = torch.tensor(RUNNING)[:, None] * operand.stride
        whole[operand.offset + rows + torch.arange(value.shape[1])] = value
        assert same_bits(whole, operand.tensor.cpu()), "written outside the running cores' tiles"
    return got, want


def assert_rounds_alike(got: list[Tensor], want: list[Tensor]) -> None:
    """Equal up to one rounding of the output dtype, and to the order of fp32 sums."""
    for g, w in zip(got, want, strict=True):
        slack = 2e-6 * w.float().abs().max().item()
        torch.testing.assert_close(g.float(), w.float(), rtol=torch.finfo(w.dtype).eps, atol=slack)


def test_every_local_operation_has_a_kernel():
    assert local.LOCAL_OPS.keys() <= KERNELS.keys()


@pytest.mark.slow
@in_every_dtype([*GEMMS, *EXACT])
def test_integers_are_exact(case, dtype):
    got, want = run(case, *draw(case, dtype, integers=True))
    for g, w in zip(got, want, strict=True):
        assert torch.equal(g, w)


@in_every_dtype([*ROUNDED, GEMMS[1], GEMMS[5], GEMMS[10], GEMMS[13], GEMMS[19], GEMMS[25]])
def test_agrees_with_definition(case, dtype):
    assert_rounds_alike(*run(case, *draw(case, dtype, integers=False)))


@pytest.mark.parametrize("case", [matmul("gemm", 1, 36, 20, add=True), matmul("gemm_t", 6, 20, 7, add=True)], ids=str)
def test_operands_may_differ_in_dtype(case):
    (a, b), (c,) = draw(case, torch.float32, integers=False)
    assert_rounds_alike(*run(case, [a.half(), b.bfloat16()], [c]))
    assert_rounds_alike(*run(case, [a, b.bfloat16()], [c.half()]))


@dtypes
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_rounds_to_nearest_even(dtype):
    ties = 1 + torch.arange(40) * torch.finfo(dtype).eps / 4
    odd = torch.tensor([0.0, -0.0, 1e-30, -3e38, float("inf"), float("-inf"), float("nan"), -float("nan")])
    x = torch.cat([ties, -ties, odd]).expand(CORES, -1).contiguous()
    got, want = run(Case("copy", (88,), (88,), {"size": 88}), [x], [torch.zeros(CORES, 88, dtype=dtype)])
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def test_addresses_are_64_bit():
    stride = 2**30 + 1024  # core 4's tile is past 2**32, the negative offset brings it back into the memory
    far, near = torch.arange(35.0, device=DEVICE), memory(torch.zeros(CORES, 35))
    find("copy")((near,), (Operand(far, -4 * stride, stride),), table([4]), size=35)
    assert torch.equal(tiles(near, 35)[4], far.cpu())


@pytest.mark.parametrize("op", ["maximum", "row_max"])
def test_nan_is_kept(op):
    x = torch.zeros(CORES, 35)
    x[:, 7] = float("nan")
    params = {"size": 35} if op == "maximum" else {"heads": 1, "m": 1, "n": 35, "scale": 1.0}
    numel = 35 if op == "maximum" else 1
    got, want = run(Case(op, (numel,), (35, 35), params), [x, torch.zeros(CORES, 35)], [torch.zeros(CORES, numel)])
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def test_masked_rows_give_zeros():
    case = Case("exp_sum", (4 * 35, 4), (4 * 35, 2 * 35, 4), {"heads": 2, "m": 2, "n": 35, "scale": 0.5})
    (s, bias, top), outs = draw(case, torch.float32, integers=False)
    bias[:, 3:35] = float("-inf")
    bias[:, 35:] = float("-inf")
    top[:, [1, 3]] = float("-inf")
    got, want = run(case, [s, bias, top], outs)
    assert_rounds_alike(got, want)
    assert got[1][:, [1, 3]].eq(0).all()
    maxima = Case("row_max", (4,), (4 * 35, 2 * 35), case.params)
    got, want = run(maxima, [s, bias], [torch.zeros(CORES, 4)])
    assert torch.equal(got[0], want[0])


@triton.jit
def _clip(x, low, high):
    return tl.minimum(tl.maximum(x, low), high)


@dtypes
def test_users_own_operation(dtype, monkeypatch):
    def clip_torch(out, x, low, high, *, size):
        out.copy_(torch.minimum(torch.maximum(x, low), high))

    clip = local.LocalOp("clip", clip_torch, lambda *, size: ((size,),) * 4, lambda *, size: (0, size))
    monkeypatch.setitem(local.LOCAL_OPS, "clip", clip)
    monkeypatch.setitem(KERNELS, "clip", elementwise(_clip))
    case = Case("clip", (35,), (35, 35, 35), {"size": 35})
    got, want = run(case, *draw(case, dtype, integers=False))
    assert torch.equal(got[0], want[0])


@dtypes
@pytest.mark.parametrize("numel", [1, 35, 5000])
def test_exchange_copies_bits(dtype, numel):
    bits = torch.randint(-(2**15), 2**15, (CORES, numel * dtype.itemsize // 2), dtype=torch.int16).view(dtype)
    moves, expected = [], []
    for size, ends in ((numel, ((2, 4), (0, 1), (3, 0))), (7, ((1, 1), (4, 0)))):
        src, dst = memory(bits), memory(torch.full((CORES, numel), float("nan"), dtype=dtype))
        expected.append(dst.tensor.cpu().clone())
        for recv, send in ends:
            start = dst.offset + recv * dst.stride
            expected[-1][start : start + min(size, numel)] = bits[send, :size]
        recv, send = ([*column, -1][:3] for column in zip(*ends, strict=True))
        tables = table([[0, 0, 1, 0]]), table([[0]]), table([[send, recv]])
        moves.append(Copies((src, dst), *tables, 1, 3, 1, 0, 1))
    exchange(moves, (numel, min(7, numel)))
    for one, want in zip(moves, expected, strict=True):
        assert same_bits(one.operands[1].tensor.cpu(), want)


@dtypes
@pytest.mark.parametrize("numel", [1, 35, 5000])
def test_steps_of_an_exchange_follow_each_other(dtype, numel):
    """Five steps round a ring of the cores, on one of two lines the other way: to and fro between slots of memory."""
    bits = torch.randint(-(2**15), 2**15, (2 * CORES, numel * dtype.itemsize // 2), dtype=torch.int16).view(dtype)
    first = memory(bits)
    slots = Operand(torch.full((2 * CORES * 3 * numel,), float("nan"), dtype=dtype, device=DEVICE), 0, 3 * numel)
    places = [[0, 0, 1, 2], [1, 2, 1, 0], [1, 0, 1, 1], [1, 1, 1, 0], [1, 0, 0, 0]]
    at = torch.arange(CORES)
    rows = torch.stack([torch.stack([at, at.roll(-1)]), torch.stack([at, at.roll(1)])]).tolist()
    moves = Copies((first, slots), table(places), table([[0, 1]] * 5), table(rows), 5, CORES, 2, CORES, 1)
    exchange([moves], [numel])
    lines = tiles(first, numel, 2 * CORES).unflatten(0, (2, CORES))
    wanted = bits.unflatten(0, (2, CORES))
    for line, way in enumerate((5, -5)):
        assert same_bits(lines[line], wanted[line].roll(way, 0))


def mesh_gemm(order: Sequence[int], a: Tensor, b: Tensor, side: int, m: int, k: int, n: int, **params) -> Tensor:
    """Products of slots that hold what compute-shift carries there, a and b [side, side, slots, numel]: c."""
    held = [Operand(x.flatten().to(DEVICE), 0, x[0, 0].numel()) for x in (a, b)]
    c, out = (memory(torch.full((side * side, m * n), float("nan"))) for _ in "co")
    products(c, out, *held, table(order), rounds=side, m=m, k=k, n=n, **params)
    assert tiles(c, m * n, side * side).isnan().all(), "sums stay in registers"
    return tiles(out, m * n, side * side)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("m", "k", "n", "accumulate", "dtype"),
    [(1, 5, 7, "fp32", torch.float16), (33, 40, 3, "fp32", torch.bfloat16), (9, 5, 3, "fp32", torch.float32),
     (3, 4, 5, "fp16", torch.float16)],
)  # fmt: skip
def test_products_of_a_window_make_a_mesh_gemm(dtype, m, k, n, accumulate):
    torch.manual_seed(0)
    side = 3
    a, b = (torch.randint(-3, 4, (side, side, x)).to(dtype) for x in (m * k, k * n))
    # core (i, j) gets a[i, i + j - t] and b[i + j - t, j] in round t
    i, j, t = torch.meshgrid(*[torch.arange(side)] * 3, indexing="ij")
    skewed = a[i, (i + j - t) % side], b[(i + j - t) % side, j]
    orders = ([0, 1, 2, 3, 4, 5, 6, 7, 8], [5, 2, 8, 0, 7, 1, 4, 6, 3])
    one, other = (mesh_gemm(order, *skewed, side, m, k, n, accumulate=accumulate) for order in orders)
    assert same_bits(one, other)
    whole = torch.einsum("ipmk,pjkn->ijmn", a.unflatten(-1, (m, k)).float(), b.unflatten(-1, (k, n)).float())
    assert torch.equal(one.view(side, side, m, n), whole)


def test_a_parameter_that_an_elementwise_kernel_lacks_is_named():
    x = Operand(torch.zeros(4), 0, 4)
    with pytest.raises(ScheduleError, match=r"same_value gets slope beside size.*@each\(lambda size, slope: size\)"):
        elementwise(same_value).fused((x,), (x,), size=4, slope=0.1)
