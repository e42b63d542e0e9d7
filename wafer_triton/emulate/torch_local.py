"""Fast forms of local operations on a CPU, which the torch executor plans in place of a definition.

A form takes the operands and parameters of the definition in `wafer_triton.local` and returns a step, with every view
made in advance. It gives the same values but for the order of fp32 sums, and is judged by that definition. An operation
without a form runs as defined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from wafer_triton import local
from wafer_triton.emulate.plan import Step
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
    """The plan of a local operation: `plan(*outs, *ins, **params)` is a step on these fp32 tensors.

    `narrow(params)` says that 16-bit tiles of one dtype may be given: torch then rounds where a core does. A form that
    only `moves` elements takes tiles of any dtypes. Inputs may be `repeated` views, of one tile for many cores, where
    no bit depends on strides: sums and products take another routine for memory that is not contiguous.
    """

    plan: Callable[..., Step]
    narrow: Callable[[Params], bool] = _never
    moves: bool = False
    repeated: bool = False


# By definition, not by name: an operation that is registered anew runs as it is defined by then.
FORMS: dict[Callable[..., None], Form] = {
    local.lookup_torch: Form(partial(partial, local.lookup_torch), _always, moves=True),
    local.normalize_torch: Form(partial(partial, local.normalize_torch), repeated=True),
}


def form(op: LocalOp) -> Form:
    """The fast form of an operation, else its definition."""
    return FORMS.get(op.run) or Form(partial(partial, op.run))


def _fast(
    definition: Callable[..., None], narrow: Callable[[Params], bool] = _never, *, moves: bool = False,
    repeated: bool = False,
) -> Callable[[Callable[..., Step]], Callable[..., Step]]:  # fmt: skip
    """Register the decorated function as the form of a definition."""

    def register(plan: Callable[..., Step]) -> Callable[..., Step]:
        FORMS[definition] = Form(plan, narrow, moves, repeated)
        return plan

    return register


@_fast(local.copy_torch, _always, moves=True, repeated=True)
def copy(out: Tensor, a: Tensor, *, size: int) -> Step:
    """One copy."""
    return partial(out[..., :size].copy_, a[..., :size])


@_fast(local.add_torch, _always, repeated=True)
def add(out: Tensor, a: Tensor, b: Tensor, *, size: int) -> Step:
    """In place."""
    return partial(torch.add, a, b, out=out)


@_fast(local.maximum_torch, _always, repeated=True)
def maximum(out: Tensor, a: Tensor, b: Tensor, *, size: int) -> Step:
    """In place."""
    return partial(torch.maximum, a, b, out=out)


@_fast(local.rms_scale_torch, repeated=True)
def rms_scale(
    out: Tensor, x: Tensor, s: Tensor, weight: Tensor, *, m: int, n: int, width: int, eps: float, groups: int = 1,
    kept: int = 0, first: int = 0,
) -> Step:  # fmt: skip
    """By the reciprocal root, unless some groups of a row are `kept` as they are."""
    if kept:
        params = {"m": m, "n": n, "width": width, "eps": eps, "groups": groups, "kept": kept, "first": first}
        return partial(local.rms_scale_torch, out, x, s, weight, **params)
    target, values = cut(out, m, groups, n), cut(x, m, groups, n)
    sums, weights = cut(s, m, groups, 1), cut(weight, 1, groups, n)

    def step() -> None:
        target.copy_((values * (sums / width).add_(eps).rsqrt_()).mul_(weights))

    return step


@_fast(local.silu_mul_torch, repeated=True)
def silu_mul(out: Tensor, gate_up: Tensor, *, m: int, n: int) -> Step:
    """By exp, whose bits are the same for all strides; torch's sigmoid has other bits at the end of a tensor."""
    (gate, up), target = cut(gate_up, m, 2, n).unbind(-2), cut(out, m, n)

    def step() -> None:
        target.copy_((gate / gate.neg().exp_().add_(1)).mul_(up))

    return step


# For one token and few key-value columns, the product with all heads, of which each keeps its own, is the quickest.
_FEW = 64
# A product narrower than this is computed transposed, which is several times as fast.
_NARROW = 8


@_fast(local.gemm_torch, _in_fp16)
def gemm(
    c: Tensor, a: Tensor, b: Tensor, *, m: int, k: int, n: int, heads: int = 1, kv_heads: int = 1, add: bool = False,
    accumulate: str = "fp32",
) -> Step:  # fmt: skip
    """Batched products of contiguous matrices."""
    if heads == kv_heads == 1:
        return _product(cut(c, m, n), cut(a, m, k), cut(b, k, n), add, accumulate)
    group = heads // kv_heads
    if accumulate == "fp32" and m == 1 and kv_heads * n <= _FEW:
        return _own_heads(c, cut(a, heads, k), cut(b, k, kv_heads * n), (kv_heads, group, kv_heads, n), -2, add)
    if accumulate == "fp32":
        queries, columns = cut(a, kv_heads, group * m, k), cut(b, k, kv_heads, n).movedim(-3, -1)  # [kv_heads, n, k]
        out = cut(c, m, heads, n)

        def step() -> None:
            left, right = queries.reshape(-1, group * m, k), columns.reshape(-1, n, k)
            product = right.bmm(left.mT).mT.contiguous() if n < _NARROW else left.bmm(right.mT)
            _put(out, _turned(product.view(*c.shape[:-1], heads, m, n)), add)

        return step
    c = cut(c, m, kv_heads, group, n).movedim(-4, -2)  # [kv_heads, group, m, n]
    b = cut(b, k, kv_heads, n).movedim(-3, -2)  # [kv_heads, k, n]
    return _product(c, cut(a, kv_heads, group, m, k), b.unsqueeze(-3), add, accumulate)


@_fast(local.gemm_t_torch, _in_fp16)
def gemm_t(
    c: Tensor, a: Tensor, b: Tensor, *, m: int, k: int, n: int, heads: int = 1, kv_heads: int = 1, add: bool = False,
    accumulate: str = "fp32",
) -> Step:  # fmt: skip
    """Batched products of contiguous matrices."""
    if heads == kv_heads == 1:
        return _product(cut(c, m, n), cut(a, m, k), cut(b, n, k).mT, add, accumulate)
    group = heads // kv_heads
    if accumulate == "fp32" and m == 1 and kv_heads * n <= _FEW:
        return _own_heads(c, cut(a, heads, k), cut(b, n * kv_heads, k).mT, (kv_heads, group, n, kv_heads), -1, add)
    queries, keys, out = cut(a, m, heads, k), cut(b, n, kv_heads, k).movedim(-3, -1), cut(c, kv_heads, group * m, n)

    def step() -> None:
        left = cut(_turned(queries).flatten(-3), kv_heads, group * m, k)
        _product(out, left, keys.contiguous(), add, accumulate)()  # keys [kv_heads, k, n]

    return step


@_fast(local.rope_torch, repeated=True)
def rope(
    q: Tensor, k: Tensor, v: Tensor, qkv: Tensor, cos: Tensor, sin: Tensor, *, m: int, heads: int, kv_heads: int,
    n: int,
) -> Step:  # fmt: skip
    """Queries and keys together."""
    every = cut(qkv, m, heads + 2 * kv_heads, n)
    both, values = every[..., : heads + kv_heads, :], every[..., heads + kv_heads :, :]
    low, high = both[..., : n // 2], both[..., n // 2 :]
    cos, sin = cut(cos, m, 1, n // 2), cut(sin, m, 1, n // 2)
    to_q, to_k, to_v = cut(q, m, heads, n), cut(k, m, kv_heads, n), cut(v, m, kv_heads, n)

    def step() -> None:
        turned = torch.cat([(low * cos).sub_(high * sin), (high * cos).add_(low * sin)], -1)
        to_q.copy_(turned[..., :heads, :])
        to_k.copy_(turned[..., heads:, :])
        to_v.copy_(values)

    return step


@_fast(local.row_max_torch, repeated=True)
def row_max(top: Tensor, s: Tensor, bias: Tensor, *, heads: int, m: int, n: int, scale: float) -> Step:
    """With one temporary tensor."""
    target, scores, masks = cut(top, heads, m), cut(s, heads, m, n), cut(bias, 1, m, n)

    def step() -> None:
        target.copy_((scores * scale).add_(masks).amax(-1))

    return step


@_fast(local.exp_sum_torch, repeated=True)
def exp_sum(
    p: Tensor, z: Tensor, s: Tensor, bias: Tensor, top: Tensor, *, heads: int, m: int, n: int, scale: float
) -> Step:
    """In place in p."""
    powers, sums, scores = cut(p, heads, m, n), cut(z, heads, m), cut(s, heads, m, n)
    masks, tops = cut(bias, 1, m, n), cut(top, heads, m, 1)

    def step() -> None:
        powers.copy_(scores).mul_(scale).add_(masks)
        powers.sub_(tops.clamp_min(LOWEST)).exp_()
        sums.copy_(powers.sum(-1))

    return step


def _own_heads(c: Tensor, a: Tensor, b: Tensor, pairs: tuple[int, ...], at: int, add: bool) -> Step:
    """The product a @ b of all heads with all key-value heads, seen as `pairs`, of which each head keeps its own."""
    kv_heads, group = pairs[:2]
    out, shape = cut(c, kv_heads, group, pairs[2] * pairs[3] // kv_heads), (*c.shape[:-1], *pairs)

    def step() -> None:
        every = a.reshape(-1, *a.shape[-2:]).bmm(b.reshape(-1, *b.shape[-2:])).view(shape)
        _put(out, every.diagonal(dim1=-4, dim2=at).movedim(-1, -3), add)

    return step


def _product(out: Tensor, a: Tensor, b: Tensor, add: bool, accumulate: str) -> Step:
    """The step out (+)= a @ b for a [..., m, k], b [..., k, n]; fp16 accumulation rounds after every k."""
    if accumulate == "fp32":
        left, right = (_viewed(x, -1, *x.shape[-2:]) for x in (a, b))
        if out.is_contiguous() and left is not None and right is not None:
            return partial(out.view(-1, *out.shape[-2:]).baddbmm_, left, right, beta=int(add))

        def through() -> None:
            held = out.contiguous()  # always by the same routine, or the last bit depends on strides
            left, right = a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:])
            held.view(-1, *out.shape[-2:]).baddbmm_(left, right, beta=int(add))
            if held is not out:
                out.copy_(held)

        return through
    steps = [(a[..., :, k, None], b[..., k, None, :]) for k in range(a.shape[-1])]
    alike = out.dtype == a.dtype == b.dtype and out.itemsize == 2  # torch computes each in fp32 and rounds it once

    def step() -> None:
        if alike:
            if not add:
                out.zero_()
            for column, row in steps:
                out.addcmul_(column, row)
            return
        total = out.clone() if add else out.new_zeros(out.shape)
        for column, row in steps:
            total = (total + column * row).half().to(out.dtype)
        out.copy_(total)

    return step


def _viewed(x: Tensor, *shape: int) -> Tensor | None:
    """A view of a shape; None if strides do not allow it."""
    try:
        return x.view(shape)
    except RuntimeError:
        return None


def _turned(x: Tensor) -> Tensor:
    """x [..., b, a, n] from x [..., a, b, n]; rows of 16 bytes move as one element each, which is far quicker."""
    units = [*x.stride()[:-1], x.storage_offset()]
    if x.shape[-1] * x.itemsize == 16 and x.stride(-1) == 1 and not any(unit % x.shape[-1] for unit in units):
        return x.view(torch.complex128).transpose(-3, -2).contiguous().view(x.dtype)
    return x.transpose(-3, -2).contiguous()


def _put(out: Tensor, values: Tensor, add: bool) -> None:
    out.add_(values) if add else out.copy_(values)
