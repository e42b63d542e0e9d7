"""Fast forms of local operations for the torch executor.

A form takes the operands and parameters of the definition in `wafer_triton.local` and returns a step, with every view
made in advance. It gives the same values but for the order of fp32 sums; tests compare it with the definition. An
operation without a form runs as defined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from wafer_triton import local
from wafer_triton.emulate.parts import Call
from wafer_triton.local import LocalOp, cut

Params = Mapping[str, Any]
# A product with fewer columns than this is computed transposed, which is several times as fast.
_NARROW = 8


@dataclass(frozen=True)
class Form:
    """A local operation for torch: `plan(*outs, *ins, **params)` returns a step on these fp32 tensors.

    If `takes_16_bits(params)`, operands may also all have one 16-bit dtype: torch then rounds where a core does. A form
    that `only_moves` elements takes operands of any dtypes.
    """

    plan: Callable[..., Call]
    takes_16_bits: Callable[[Params], bool] = lambda _: False
    only_moves: bool = False


def gemm(
    c: Tensor, a: Tensor, b: Tensor, *, m: int, k: int, n: int, heads: int = 1, kv_heads: int = 1, add: bool = False,
    accumulate: str = "fp32", transposed: str = "",
) -> Call:  # fmt: skip
    """Plan `local.gemm`, `local.gemm_t` with b `transposed` or `local.gemm_tn` with a, as batched products."""
    if heads == kv_heads == 1:
        left = cut(a, k, m).mT if transposed == "a" else cut(a, m, k)
        return _product(cut(c, m, n), left, cut(b, n, k).mT if transposed == "b" else cut(b, k, n), add, accumulate)
    group = heads // kv_heads
    if transposed:
        queries, keys = cut(a, m, heads, k), cut(b, n, kv_heads, k).movedim(-3, -1)
        scores = cut(c, kv_heads, group * m, n)

        def score() -> None:
            left = cut(queries.transpose(-3, -2).flatten(-3), kv_heads, group * m, k)
            _product(scores, left, keys.contiguous(), add, accumulate)()  # keys [kv_heads, k, n]

        return score
    if accumulate == "fp32":
        queries, columns = cut(a, kv_heads, group * m, k), cut(b, k, kv_heads, n).movedim(-3, -1)  # [kv_heads, n, k]
        out = cut(c, m, heads, n)

        def step() -> None:
            left, right = queries.reshape(-1, group * m, k), columns.reshape(-1, n, k)
            product = right.bmm(left.mT).mT.contiguous() if n < _NARROW else left.bmm(right.mT)
            values = product.view(*c.shape[:-1], heads, m, n).transpose(-3, -2)
            out.add_(values) if add else out.copy_(values)

        return step
    c = cut(c, m, kv_heads, group, n).movedim(-4, -2)  # [kv_heads, group, m, n]
    b = cut(b, k, kv_heads, n).movedim(-3, -2)  # [kv_heads, k, n]
    return _product(c, cut(a, kv_heads, group, m, k), b.unsqueeze(-3), add, accumulate)


def _product(out: Tensor, a: Tensor, b: Tensor, add: bool, accumulate: str) -> Call:
    """Return the step out (+)= a @ b for a [..., m, k], b [..., k, n]; fp16 accumulation rounds after every k."""
    if accumulate == "fp32" and out.is_contiguous() and a.is_contiguous() and b.is_contiguous():
        left, right = (x.view(-1, *x.shape[-2:]) for x in (a, b))
        return partial(out.view(-1, *out.shape[-2:]).baddbmm_, left, right, beta=int(add))
    if accumulate == "fp32":

        def by_copy() -> None:
            dense = out.contiguous()  # so that BLAS takes the same routine for any strides, with the same bits
            left, right = _batch(a), _batch(b)
            dense.view(-1, *out.shape[-2:]).baddbmm_(left, right, beta=int(add))
            if dense is not out:
                out.copy_(dense)

        return by_copy
    steps = [(a[..., :, k, None], b[..., k, None, :]) for k in range(a.shape[-1])]
    same_dtype = out.dtype == a.dtype == b.dtype and out.itemsize == 2  # torch computes each in fp32 and rounds it once

    def step() -> None:
        if same_dtype:
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


def _batch(x: Tensor) -> Tensor:
    """Return matrices [..., m, n] as [batch, m, n], in row- or column-major order as before: BLAS sums by it."""
    return x.reshape(-1, *x.shape[-2:]) if x.stride(-1) == 1 else x.mT.reshape(-1, *x.mT.shape[-2:]).mT


def _in_fp16(params: Params) -> bool:
    return bool(params.get("accumulate") == "fp16")


# By definition, not by name: an operation that is registered anew runs its new definition.
FORMS: Mapping[Callable[..., None], Form] = {
    local.copy_torch: Form(lambda out, a, *, size: partial(out[..., :size].copy_, a[..., :size]), only_moves=True),
    local.lookup_torch: Form(partial(partial, local.lookup_torch), only_moves=True),
    local.add_torch: Form(lambda out, a, b, *, size: partial(torch.add, a, b, out=out), lambda _: True),
    local.maximum_torch: Form(lambda out, a, b, *, size: partial(torch.maximum, a, b, out=out), lambda _: True),
    local.gemm_torch: Form(gemm, _in_fp16),
    local.gemm_t_torch: Form(partial(gemm, transposed="b"), _in_fp16),
    local.gemm_tn_torch: Form(partial(gemm, transposed="a"), _in_fp16),
}


def form(op: LocalOp) -> Form:
    """Return the fast form of an operation, or one that runs its definition."""
    return FORMS.get(op.run) or Form(partial(partial, op.run))
