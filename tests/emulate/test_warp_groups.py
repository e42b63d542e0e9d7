"""Elided MeshGEMM by warp groups equals the plain kernel bit for bit in any order of partitions; its conditions."""

from types import SimpleNamespace

import pytest
import torch
import triton

from gluon_machine import At, Machine, Matrix
from tiles import ring_labels
from wafer_triton.kernels import Operand, _common, warp_groups
from wafer_triton.kernels import elided as elided_
from wafer_triton.kernels.elided import elided
from wafer_triton.kernels.gemm import plan
from wafer_triton.kernels.warp_groups import choose_blocks

CASES = {  # cores a side, tile, cores a program, whether one table of labels serves all positions
    "2 x 4 cores": (8, (64, 64, 64), (2, 4), True),
    "2 x 2 cores, two blocks of k": (4, (64, 128, 64), (2, 2), True),
    "1 x 2 cores": (4, (128, 64, 128), (1, 2), True),
    "a core": (3, (128, 64, 256), (1, 1), True),
    "blocks of a core, tiles askew": (3, (256, 64, 384), (1, 1), False),
}


@pytest.fixture
def machine(monkeypatch):
    """Return a function (order, resident programs, cores a program) after whose call warp groups run on a machine."""

    kernel = warp_groups._groups_kernel

    def start(order: int, stay: int, group: tuple[int, int]) -> None:
        class Kernel:
            def __getitem__(self, grid):
                def launch(out, a, b, rows, cols, a_labels, b_labels, side, programs, sizes, num_warps):
                    assert grid == (programs,) and num_warps == 4, "all at once where there is no GPU to ask"
                    known = SimpleNamespace(**{name: one.value for name, one in sizes._asdict().items()})
                    assert group == (known.GROUP_M, known.GROUP_N)
                    matrices = [Matrix(one.base[: one.shape[0] * one.shape[1]].view(one.shape)) for one in (out, a, b)]
                    labels = [one._replace(first=At(one.first), table=At(one.table)) for one in (a_labels, b_labels)]
                    Machine(kernel, order).run(stay, *matrices, At(rows), At(cols), *labels, side, programs, known)

                return launch

        monkeypatch.setattr(warp_groups, "_groups_kernel", Kernel())
        monkeypatch.setattr(elided_, "on_hopper", lambda: True)
        monkeypatch.setattr(warp_groups, "MIN_PROGRAMS", 64 if group == (2, 2) else 1)

    return start


def operands(side: int, m: int, k: int, n: int, shared: bool, infinite: bool = False):
    """Return tiles whose sums depend on the order, but not within a block of k, and the arguments of `elided`.

    Of products of 2^24 and of 1, some of the large ones cancel: how many small ones are left depends on when. With
    `infinite` row 3 of A's tiles and column 2 of B's have an infinity.
    """
    a, b = (torch.randint(0, 2, (side * side, *size)) * 2 - 1 for size in ((m, k), (k, n)))
    a = torch.where(torch.rand(a.shape) < 0.5, a, a * 2**24) * (torch.arange(k) % _common.BOX == 5)
    a, b = a.float(), b.float()
    if infinite:
        b[:, 5] = b[:, 5].abs()
        a[:, 3, 5] = b[:, 5, 2] = float("inf")
    given = [Operand(one.bfloat16().flatten(), 0, one[0].numel()) for one in (a, b)]
    return given, ring_labels(side, shared)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_bits_equal_the_plain_kernel_s(case, machine):
    side, (m, k, n), group, shared = CASES[case]
    given, where = operands(side, m, k, n, shared)
    c = Operand(torch.zeros(side * side * m * n), 0, m * n)
    found = [Operand(torch.full((side * side * m * n,), float("nan")).bfloat16(), 0, m * n) for _ in range(3)]
    elided(c, found[0], *given, *where, m=m, k=k, n=n)
    for out, (order, stay) in zip(found[1:], ((1, 1), (2, 3)), strict=True):
        machine(order, stay, group)
        elided(c, out, *given, *where, m=m, k=k, n=n)
        assert torch.equal(out.tensor.view(torch.int16), found[0].tensor.view(torch.int16))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_an_infinity_stays_in_its_row_and_column(case, machine):
    side, (m, k, n), group, shared = CASES[case]
    given, where = operands(side, m, k, n, shared, infinite=True)
    c, out, want = (Operand(torch.zeros(side * side * m * n), 0, m * n) for _ in range(3))
    out, want = (one._replace(tensor=one.tensor.bfloat16()) for one in (out, want))
    elided(c, want, *given, *where, m=m, k=k, n=n)
    machine(1, 1, group)
    elided(c, out, *given, *where, m=m, k=k, n=n)
    assert 0 < (~want.tensor.isfinite()).sum() <= side * side * (m + n)
    assert torch.equal(out.tensor.isnan(), want.tensor.isnan())
    assert torch.equal(out.tensor.nan_to_num(), want.tensor.nan_to_num())


def test_how_a_product_is_cut():
    def found(m=64, k=64, n=64, side=64, shared=True, dtype=torch.bfloat16, out=None) -> tuple[int, ...] | None:
        a, b, c = (Operand(torch.empty(64, dtype=dtype), 0, numel) for numel in (m * k, k * n, m * n))
        blocks = choose_blocks(out or c, a, b, side, shared, plan(a, b, m=m, k=k, n=n)[0])
        return blocks and tuple(blocks[name] for name in ("GROUP_M", "GROUP_N", "BLOCK_N", "DEPTH", "PROGRAMS"))

    assert found() == (2, 4, 256, 4, 512), "cores a program, columns, slots in 192 KiB"
    assert found(side=16) == (2, 2, 128, 6, 64), "32 programs would be few"
    assert found(128, 128, 128) == (1, 2, 256, 4, 2048)
    assert found(256, 192, 512, side=8, shared=False) == (1, 1, 256, 4, 256)
    assert found(dtype=torch.float16) and found(128, 64, 128, shared=False) == (1, 1, 128, 6, 4096)
    wide = Operand(torch.empty(64), 0, 64 * 64)
    apart = Operand(torch.empty(64, dtype=torch.bfloat16), 0, 2 * 64 * 64)
    for other in (
        {"dtype": torch.float32}, {"out": wide}, {"out": apart}, {"m": 32}, {"k": 96}, {"n": 96}, {"side": 63},
        {"shared": False},
    ):  # fmt: skip
        assert not found(**other), other


@pytest.mark.parametrize(
    ("backend", "arch", "has"),
    [("cuda", 90, True), ("cuda", 80, False), ("cuda", 100, False), ("hip", "gfx942", False)],
)
def test_only_hopper_has_the_instructions_of_warp_groups(backend, arch, has, monkeypatch):
    monkeypatch.setattr(_common, "INTERPRET", False)
    active = SimpleNamespace(get_current_target=lambda: SimpleNamespace(backend=backend, arch=arch))
    monkeypatch.setattr(triton.runtime.driver, "_active", active)
    assert _common.on_hopper() == has
