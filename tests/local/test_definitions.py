"""The definitions of local operations against torch's own functions, computed another way."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from wafer_triton import local
from wafer_triton.errors import ScheduleError
from wafer_triton.ops.testing import assert_close

CORES = (2, 3)  # leading dimensions, which a definition does not depend on


def tile(*dims: int) -> Tensor:
    return torch.randn(*CORES, *dims, dtype=torch.float64)


def run(name: str, outs: tuple[int, ...], *ins: Tensor, **params) -> list[Tensor]:
    """Return outputs [..., numel] of `outs` elements each; a number that is not written stays NaN."""
    results = [torch.full((*CORES, numel), float("nan"), dtype=torch.float64) for numel in outs]
    local.find(name).run(*results, *(x.flatten(len(CORES)) for x in ins), **params)
    return results


def close(got: Tensor, wanted: Tensor) -> None:
    assert_close(got.view(wanted.shape).float(), wanted, "fp32")


@pytest.mark.parametrize(("m", "k", "n", "heads", "kv_heads"), [(1, 1, 1, 1, 1), (3, 4, 5, 1, 1), (2, 5, 3, 6, 2)])
def test_products(m, k, n, heads, kv_heads):
    sizes = {"m": m, "k": k, "n": n, "heads": heads, "kv_heads": kv_heads}
    group = torch.arange(heads) // (heads // kv_heads)
    a, b = tile(heads, m, k), tile(k, kv_heads, n)
    wanted = torch.einsum("...hmk,...khn->...mhn", a, b[..., group, :])
    close(run("gemm", (m * heads * n,), a, b, **sizes)[0], wanted)
    a, b = tile(m, heads, k), tile(n, kv_heads, k)
    wanted = torch.einsum("...mhk,...nhk->...hmn", a, b[..., group, :])
    close(run("gemm_t", (heads * m * n,), a, b, **sizes)[0], wanted)
    c = tile(heads, m, n)
    total = c.flatten(2).clone()
    local.find("gemm_t").run(total, a.flatten(2), b.flatten(2), add=True, **sizes)
    close(total, c + wanted)


def test_a_product_of_the_transpose():
    a, b = tile(4, 3), tile(4, 5)
    close(run("gemm_tn", (15,), a, b, m=3, k=4, n=5)[0], a.mT @ b)


def test_fp16_sums_round_after_every_product():
    a, b = torch.randn(7).half(), torch.randn(7).half()
    total = np.float16(0)
    for x, y in zip(a.numpy(), b.numpy(), strict=True):
        total = np.float16(np.float32(total) + np.float32(x) * np.float32(y))
    got = torch.zeros(1)
    local.find("gemm").run(got, a.float(), b.float(), m=1, k=7, n=1, accumulate="fp16")
    assert got.item() == total != (a.float() @ b.float()).half().item()


@pytest.mark.parametrize("kept", [0, 2])
def test_rms_norm(kept):
    m, groups, n, eps = 3, 5, 4, 0.1
    x, weight = tile(m, groups, n), tile(groups - kept, n)
    (squares,) = run("sum_squares", (m * groups,), x, m=m * groups, n=n)
    sizes = {"m": m, "n": n, "width": n, "eps": eps, "groups": groups, "kept": kept}
    (got,) = run("rms_scale", (x[0, 0].numel(),), x, squares, weight, **sizes)
    wanted = x.clone()
    wanted[..., : groups - kept, :] = F.rms_norm(x, (n,), eps=eps)[..., : groups - kept, :] * weight[..., None, :, :]
    close(got, wanted)


def test_softmax():
    heads, m, n, scale = 2, 3, 5, 0.7
    scores, bias = tile(heads, m, n), tile(m, n)
    bias[..., 1, :] = bias[..., 2, 3:] = float("-inf")
    sizes = {"heads": heads, "m": m, "n": n, "scale": scale}
    (top,) = run("row_max", (heads * m,), scores, bias, **sizes)
    masked = scale * scores + bias[..., None, :, :]
    assert torch.equal(top.view(*CORES, heads, m), masked.amax(-1))
    powers, sums = run("exp_sum", (heads * m * n, heads * m), scores, bias, top, **sizes)
    powers, sums = powers.view(*CORES, heads, m, n), sums.view(*CORES, heads, m)
    assert powers[..., 1, :].eq(0).all() and sums[..., 1].eq(0).all(), "a row that is masked everywhere"
    (got,) = run("normalize", (m * heads * n,), powers.transpose(-3, -2), sums, m=m, heads=heads, n=n)
    rows = [0, 2]
    wanted = masked.softmax(-1).transpose(-3, -2)[..., rows, :, :]
    close(got.view(*CORES, m, heads, n)[..., rows, :, :], wanted)


def test_lookup():
    table, ids = tile(4, 6), torch.tensor([15.0, 9.0, 10.0, 16.0, 12.0]).expand(*CORES, 5)
    first = torch.tensor([10.0]).expand(*CORES, 1)
    (got,) = run("lookup", (20,), table, ids, first, m=5, d=4, v=6)
    rows = got.view(*CORES, 5, 4)
    assert torch.equal(rows[..., [0, 2, 4], :], table.view(*CORES, 4, 6)[..., [5, 0, 2]].mT)
    assert rows[..., [1, 3], :].eq(0).all(), "an id that is another core's"


def test_rope():
    m, heads, kv_heads, n = 3, 4, 2, 6
    qkv, angle = tile(m, heads + 2 * kv_heads, n), tile(m, n // 2)
    outs = (m * heads * n, m * kv_heads * n, m * kv_heads * n)
    sizes = {"m": m, "heads": heads, "kv_heads": kv_heads, "n": n}
    got = run("rope", outs, qkv, angle.cos(), angle.sin(), **sizes)
    pairs = (
        torch.complex(qkv[..., : n // 2], qkv[..., n // 2 :])
        * torch.polar(torch.ones(()).double(), angle)[..., None, :]
    )
    turned = torch.cat([pairs.real, pairs.imag], -1)
    turned[..., heads + kv_heads :, :] = qkv[..., heads + kv_heads :, :]
    for part, wanted in zip(got, turned.split((heads, kv_heads, kv_heads), -2), strict=True):
        close(part, wanted.contiguous())


def test_elements():
    a, b = tile(12), tile(12)
    assert torch.equal(run("add", (12,), a, b, size=12)[0], a + b)
    assert torch.equal(run("maximum", (12,), a, b, size=12)[0], torch.where(a > b, a, b))
    close(
        run("silu_mul", (6,), a, m=2, n=3)[0],
        (F.silu(a.view(*CORES, 2, 2, 3)[..., 0, :]) * a.view(*CORES, 2, 2, 3)[..., 1, :]),
    )
    (part,) = run("copy", (12,), a[..., :9], size=7)
    assert torch.equal(part[..., :7], a[..., :7]) and part[..., 7:].isnan().all()


def test_an_unknown_operation_lists_the_known():
    with pytest.raises(ScheduleError, match="'conv' is not registered; known: .*add, .*clip, combine, copy, "):
        local.find("conv")
