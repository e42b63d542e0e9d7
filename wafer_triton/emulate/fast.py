"""Fast forms of local operations on a CPU: what the torch executor runs in place of a definition.

A form takes the operands and parameters of the definition in `wafer_triton.local` that it stands for, gives the same
values but for the order of fp32 sums, and is judged by that definition. An operation without a form runs as defined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wafer_triton import local
from wafer_triton.local import LocalOp, cut
from wafer_triton.local.softmax import LOWEST

Params = Mapping[str, Any]


def _never(_: Params) -> bool:
    return False


def _always(_: Params) -> bool:
    return True


def _in_fp16(params: Params) -> bool:
    return bool(params.get("accumulate") == "fp16")


@dataclass(frozen=True)
class Form:
    """What computes a local operation, with its operands in fp32.

    `narrow(params)` tells whether 16-bit tiles of one dtype may be given as they are: torch rounds then just where a
    core does. What only `moves` elements takes tiles of any dtypes. Inputs may be `repeated` views, of one tile for
    many cores, where no bit depends on strides: sums and products go another way through memory that is not contiguous.
    """

    run: Callable[..., None]
    narrow: Callable[[Params], bool] = _never
    moves: bool = False
    repeated: bool = False


# By definition, not by name: an operation that is registered anew runs as it is defined by then.
FORMS: dict[Callable[..., None], Form] = {
    local.copy_torch: Form(local.copy_torch, _always, moves=True, repeated=True),
    local.lookup_torch: Form(local.lookup_torch, _always, moves=True),
    local.maximum_torch: Form(local.maximum_torch, _always, repeated=True),
    local.normalize_torch: Form(local.normalize_torch, repeated=True),
}


def form(op: LocalOp) -> Form:
    """The fast form of an operation, else its definition."""
    return FORMS.get(op.run) or Form(op.run)


def _fast(
    definition: Callable[..., None], narrow: Callable[[Params], bool] = _never, repeated: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register the decorated function as the form of a definition."""

    def register(run: Callable[..., None]) -> Callable[..., None]:
        FORMS[definition] = Form(run, narrow, repeated=repeated)
        return run

    return register


@_fast(local.add_torch, _always, repeated=True)
def add(out: Tensor, a: Tensor, b: Tensor, *, size: int) -> None:
    """In place where a is the output itself."""
    out.add_(b) if _same(out, a) else out.copy_(a + b)


@_fast(local.rms_scale_torch, repeated=True)
def rms_scale(
    out: Tensor,
    x: Tensor,
    s: Tensor,
    weight: Tensor,
    *,
    m: int,
    n: int,
    width: int,
    eps: float,
    groups: int = 1,
    kept: int = 0,
    first: int = 0,
) -> None:
    """With nothing cut off where nothing is kept."""
    if kept:
        local.rms_scale_torch(out, x, s, weight, m=m, n=n, width=width, eps=eps, groups=groups, kept=kept, first=first)
        return
    scale = (cut(s, m, groups, 1) / width).add_(eps).rsqrt_()
    cut(out, m, groups, n).copy_((cut(x, m, groups, n) * scale).mul_(cut(weight, 1, groups, n)))


@_fast(local.silu_mul_torch, repeated=True)
def silu_mul(out: Tensor, gate_up: Tensor, *, m: int, n: int) -> None:
    """By exp, whose bits are the same wherever the gates lie; those of torch's sigmoid are others at a tensor's end."""
    gate, up = cut(gate_up, m, 2, n).unbind(-2)
    cut(out, m, n).copy_((gate / gate.neg().exp_().add_(1)).mul_(up))


# One token and so few key-value columns: the product with all heads, of which each keeps its own, is the quickest.
_FEW = 64
# A product narrower than this is taken the other way round, which is several times as fast.
_NARROW = 8


@_fast(local.gemm_torch, _in_fp16)
def gemm(
    c: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    m: int,
    k: int,
    n: int,
    heads: int = 1,
    kv_heads: int = 1,
    add: bool = False,
    accumulate: str = "fp32",
) -> None:
    """As batched products of contiguous matrices."""
    if heads == kv_heads == 1:
        _product(cut(c, m, n), cut(a, m, k), cut(b, k, n), add, accumulate)
        return
    group = heads // kv_heads
    if accumulate == "fp32" and m == 1 and kv_heads * n <= _FEW:
        pairs = cut(a, heads, k).reshape(-1, heads, k).bmm(cut(b, k, kv_heads * n).reshape(-1, k, kv_heads * n))
        own = pairs.view(*c.shape[:-1], kv_heads, group, kv_heads, n).diagonal(dim1=-4, dim2=-2)
        _put(cut(c, kv_heads, group, n), own.movedim(-1, -3), add)
        return
    if accumulate == "fp32":
        a = cut(a, kv_heads, group * m, k).reshape(-1, group * m, k)
        b = cut(b, k, kv_heads, n).movedim(-3, -1).reshape(-1, n, k)  # [kv_heads, n, k]
        product = b.bmm(a.mT).mT.contiguous() if n < _NARROW else a.bmm(b.mT)
        _put(cut(c, m, heads, n), _turned(product.view(*c.shape[:-1], heads, m, n)), add)
        return
    c = cut(c, m, kv_heads, group, n).movedim(-4, -2)  # [kv_heads, group, m, n]
    a = cut(a, kv_heads, group * m, k)
    b = cut(b, k, kv_heads, n).movedim(-3, -2)  # [kv_heads, k, n]
    _product(c, a.unflatten(-2, (group, m)), b.unsqueeze(-3), add, accumulate)


@_fast(local.gemm_t_torch, _in_fp16)
def gemm_t(
    c: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    m: int,
    k: int,
    n: int,
    heads: int = 1,
    kv_heads: int = 1,
    add: bool = False,
    accumulate: str = "fp32",
) -> None:
    """As batched products of contiguous matrices."""
    if heads == kv_heads == 1:
        _product(cut(c, m, n), cut(a, m, k), cut(b, n, k).mT, add, accumulate)
        return
    group = heads // kv_heads
    if accumulate == "fp32" and m == 1 and kv_heads * n <= _FEW:
        pairs = cut(a, heads, k).reshape(-1, heads, k).bmm(cut(b, n * kv_heads, k).reshape(-1, n * kv_heads, k).mT)
        own = pairs.view(*c.shape[:-1], kv_heads, group, n, kv_heads).diagonal(dim1=-4, dim2=-1)
        _put(cut(c, kv_heads, group, n), own.movedim(-1, -3), add)
        return
    c = cut(c, kv_heads, group * m, n)
    a = cut(_turned(cut(a, m, heads, k)).flatten(-3), kv_heads, group * m, k)
    b = cut(b, n, kv_heads, k).movedim(-3, -1).contiguous()  # [kv_heads, k, n]
    _product(c, a, b, add, accumulate)


@_fast(local.rope_torch, repeated=True)
def rope(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    m: int,
    heads: int,
    kv_heads: int,
    n: int,
) -> None:
    """Queries and keys together."""
    qkv = cut(qkv, m, heads + 2 * kv_heads, n)
    both = qkv[..., : heads + kv_heads, :]
    low, high = both[..., : n // 2], both[..., n // 2 :]
    cos, sin = cut(cos, m, 1, n // 2), cut(sin, m, 1, n // 2)
    turned = both.new_empty(both.shape)
    turned[..., : n // 2] = (low * cos).sub_(high * sin)
    turned[..., n // 2 :] = (high * cos).add_(low * sin)
    cut(q, m, heads, n).copy_(turned[..., :heads, :])
    cut(k, m, kv_heads, n).copy_(turned[..., heads:, :])
    cut(v, m, kv_heads, n).copy_(qkv[..., heads + kv_heads :, :])


@_fast(local.row_max_torch, repeated=True)
def row_max(top: Tensor, s: Tensor, bias: Tensor, *, heads: int, m: int, n: int, scale: float) -> None:
    """With one temporary tensor."""
    cut(top, heads, m).copy_((cut(s, heads, m, n) * scale).add_(cut(bias, 1, m, n)).amax(-1))


@_fast(local.exp_sum_torch, repeated=True)
def exp_sum(
    p: Tensor, z: Tensor, s: Tensor, bias: Tensor, top: Tensor, *, heads: int, m: int, n: int, scale: float
) -> None:
    """In place in p."""
    p = cut(p, heads, m, n)
    p.copy_(cut(s, heads, m, n)).mul_(scale).add_(cut(bias, 1, m, n))
    p.sub_(cut(top, heads, m, 1).clamp_min(LOWEST)).exp_()
    cut(z, heads, m).copy_(p.sum(-1))


def _product(out: Tensor, a: Tensor, b: Tensor, add: bool, accumulate: str) -> None:
    """out (+)= a @ b for a [..., m, k], b [..., k, n]; fp16 accumulation rounds after every k."""
    if accumulate == "fp32":
        (m, n), k = out.shape[-2:], a.shape[-1]
        whole = out.contiguous()  # always by the same routine, or the last bit depends on where tiles lie
        whole.view(-1, m, n).baddbmm_(a.reshape(-1, m, k), b.reshape(-1, k, n), beta=int(add))
        if whole is not out:
            out.copy_(whole)
        return
    if out.dtype == a.dtype == b.dtype and out.itemsize == 2:  # torch computes each step in fp32 and rounds it once
        if not add:
            out.zero_()
        for k in range(a.shape[-1]):
            out.addcmul_(a[..., :, k, None], b[..., k, None, :])
        return
    total = out.clone() if add else out.new_zeros(out.shape)
    for k in range(a.shape[-1]):
        total = (total + a[..., :, k, None] * b[..., k, None, :]).half().to(out.dtype)
    out.copy_(total)


def _turned(x: Tensor) -> Tensor:
    """x [..., b, a, n] from x [..., a, b, n]; rows of 16 bytes move as one element each, which is far quicker."""
    units = [*x.stride()[:-1], x.storage_offset()]
    if x.shape[-1] * x.itemsize == 16 and x.stride(-1) == 1 and not any(unit % x.shape[-1] for unit in units):
        return x.view(torch.complex128).transpose(-3, -2).contiguous().view(x.dtype)
    return x.transpose(-3, -2).contiguous()


def _put(out: Tensor, values: Tensor, add: bool) -> None:
    out.add_(values) if add else out.copy_(values)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.stride() == b.stride()
