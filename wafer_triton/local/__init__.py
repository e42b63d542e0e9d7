"""Local operations: what one core computes between exchanges, defined in torch.

Each operation here is the definition that its Triton kernel (`wafer_triton.kernels`) is judged by. A tile is flat
memory; an operation's parameters say how it is cut into dimensions. Operands carry any leading core dimensions
(`...`), so one call computes a whole batch of cores. All arithmetic is fp32: the executor widens what it reads and
rounds what it writes to the buffer's dtype, as a core does. With `accumulate="fp16"` every multiply-add rounds to
fp16 as well, as WSE-2 software does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wafer_triton.errors import ScheduleError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class LocalOp:
    """One local operation: its torch definition `run(*outs, *ins, **params)` (writes `outs` in place) and its work.

    `work(**params)` gives (multiply-adds, vector elements) of one core; `outs` is the number of outputs. An
    `elementwise` operation may write the slot that it reads; `once` means a single operation on each element.
    """

    name: str
    run: Callable[..., None]
    work: Callable[..., tuple[int, int]]
    outs: int = 1
    elementwise: bool = False
    once: bool = False

    def narrow(self, params: Mapping[str, Any]) -> bool:
        """Whether 16-bit tiles of one dtype may be given as they are: torch rounds then just where a core does."""
        return self.once or params.get("accumulate") == "fp16"

    def updates(self, params: Mapping[str, Any]) -> bool:
        """Whether the outputs are also read, as accumulators."""
        return bool(params.get("add", False))


LOCAL_OPS: dict[str, LocalOp] = {}


def local_op(
    *,
    work: Callable[..., tuple[int, int]],
    outs: int = 1,
    elementwise: bool = False,
    once: bool = False,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register the decorated torch function as the local operation of its name (without the suffix `_torch`)."""

    def register(run: Callable[..., None]) -> Callable[..., None]:
        name = run.__name__.removesuffix("_torch")
        LOCAL_OPS[name] = LocalOp(name, run, work, outs, elementwise, once)
        return run

    return register


def find(name: str) -> LocalOp:
    """The registered local operation `name`; ScheduleError with the known names otherwise."""
    if name not in LOCAL_OPS:
        raise ScheduleError(f"local operation {name!r} is not registered; known: {', '.join(sorted(LOCAL_OPS))}")
    return LOCAL_OPS[name]


# one token and so few key-value columns: the product with all heads, of which each keeps its own, is the quickest
_FEW = 64


def _matmul_work(*, m: int, k: int, n: int, heads: int = 1, **_: Any) -> tuple[int, int]:
    return heads * m * k * n, 0


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


@local_op(work=_matmul_work)
def gemm_torch(
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
    """c [m, heads, n] (+)= a [heads, m, k] @ b [k, kv_heads, n]; heads share b in groups of heads / kv_heads."""
    if heads == kv_heads == 1:
        _product(_cut(c, m, n), _cut(a, m, k), _cut(b, k, n), add, accumulate)
        return
    group = heads // kv_heads
    if accumulate == "fp32" and m == 1 and kv_heads * n <= _FEW:
        pairs = _cut(a, heads, k).reshape(-1, heads, k).bmm(_cut(b, k, kv_heads * n).reshape(-1, k, kv_heads * n))
        own = pairs.view(*c.shape[:-1], kv_heads, group, kv_heads, n).diagonal(dim1=-4, dim2=-2)
        _put(_cut(c, kv_heads, group, n), own.movedim(-1, -3), add)
        return
    if accumulate == "fp32":
        a = _cut(a, kv_heads, group * m, k).reshape(-1, group * m, k)
        b = _cut(b, k, kv_heads, n).movedim(-3, -1).reshape(-1, n, k)  # [kv_heads, n, k]
        # a product this narrow is taken the other way round, which is several times as fast
        product = b.bmm(a.mT).mT.contiguous() if n < 8 else a.bmm(b.mT)
        _put(_cut(c, m, heads, n), _turned(product.view(*c.shape[:-1], heads, m, n)), add)
        return
    c = _cut(c, m, kv_heads, group, n).movedim(-4, -2)  # [kv_heads, group, m, n]
    a = _cut(a, kv_heads, group * m, k)
    b = _cut(b, k, kv_heads, n).movedim(-3, -2)  # [kv_heads, k, n]
    _product(c, a.unflatten(-2, (group, m)), b.unsqueeze(-3), add, accumulate)


@local_op(work=_matmul_work)
def gemm_t_torch(
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
    """c [heads, m, n] (+)= a [m, heads, k] @ b [n, kv_heads, k]^T; heads share b in groups of heads / kv_heads."""
    if heads == kv_heads == 1:
        _product(_cut(c, m, n), _cut(a, m, k), _cut(b, n, k).mT, add, accumulate)
        return
    group = heads // kv_heads
    if accumulate == "fp32" and m == 1 and kv_heads * n <= _FEW:
        pairs = _cut(a, heads, k).reshape(-1, heads, k).bmm(_cut(b, n * kv_heads, k).reshape(-1, n * kv_heads, k).mT)
        own = pairs.view(*c.shape[:-1], kv_heads, group, n, kv_heads).diagonal(dim1=-4, dim2=-1)
        _put(_cut(c, kv_heads, group, n), own.movedim(-1, -3), add)
        return
    c = _cut(c, kv_heads, group * m, n)
    a = _cut(_turned(_cut(a, m, heads, k)).flatten(-3), kv_heads, group * m, k)
    b = _cut(b, n, kv_heads, k).movedim(-3, -1).contiguous()  # [kv_heads, k, n]
    _product(c, a, b, add, accumulate)


@local_op(work=lambda *, size: (0, size), elementwise=True, once=True)
def add_torch(out: Tensor, a: Tensor, b: Tensor, *, size: int) -> None:
    """out [size] = a + b."""
    out.add_(b) if _same(out, a) else out.copy_(a + b)


@local_op(work=lambda *, size: (0, size), elementwise=True, once=True)
def maximum_torch(out: Tensor, a: Tensor, b: Tensor, *, size: int) -> None:
    """out [size] = max(a, b)."""
    out.copy_(a.maximum(b))


@local_op(work=lambda *, size: (0, size), elementwise=True, once=True)
def copy_torch(out: Tensor, a: Tensor, *, size: int) -> None:
    """The first `size` elements of out = those of a; either may be longer."""
    out[..., :size].copy_(a[..., :size])


@local_op(work=lambda *, m, n: (m * n, 0))
def sum_squares_torch(s: Tensor, x: Tensor, *, m: int, n: int) -> None:
    """s [m] = sum over n of x [m, n] squared."""
    s.copy_(_cut(x, m, n).square().sum(-1))


@local_op(work=lambda *, m, n, width, eps, groups=1, kept=0: (0, 2 * m * groups * n), elementwise=True)
def rms_scale_torch(
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
) -> None:
    """out [m, groups, n] = x / sqrt(s / width + eps) * weight, s [m, groups] the sums of squares of whole rows.

    weight [groups - kept, n]; the last `kept` groups stay as they are (values beside queries and keys).
    """
    scaled = groups - kept
    x, out = _cut(x, m, groups, n), _cut(out, m, groups, n)
    scale = (_cut(s, m, groups)[..., :scaled] / width + eps).rsqrt().unsqueeze(-1)
    out[..., :scaled, :].copy_(x[..., :scaled, :] * scale * _cut(weight, 1, scaled, n))
    if kept:
        out[..., scaled:, :].copy_(x[..., scaled:, :])


@local_op(work=lambda *, m, heads, kv_heads, n: (0, 2 * m * (heads + kv_heads) * n), outs=3)
def rope_torch(
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
    """Split qkv [m, heads + 2 kv_heads, n] and rotate q and k: the core's first n/2 dims pair with its last n/2.

    q [m, heads, n], k and v [m, kv_heads, n]; cos and sin [m, n/2], of the pairs that this core holds.
    """
    qkv = _cut(qkv, m, heads + 2 * kv_heads, n)
    both = qkv[..., : heads + kv_heads, :]
    low, high = both[..., : n // 2], both[..., n // 2 :]
    cos, sin = _cut(cos, m, 1, n // 2), _cut(sin, m, 1, n // 2)
    turned = both.new_empty(both.shape)
    turned[..., : n // 2] = (low * cos).sub_(high * sin)
    turned[..., n // 2 :] = (high * cos).add_(low * sin)
    _cut(q, m, heads, n).copy_(turned[..., :heads, :])
    _cut(k, m, kv_heads, n).copy_(turned[..., heads:, :])
    _cut(v, m, kv_heads, n).copy_(qkv[..., heads + kv_heads :, :])


@local_op(work=lambda *, heads, m, n, scale: (0, 2 * heads * m * n))
def row_max_torch(top: Tensor, s: Tensor, bias: Tensor, *, heads: int, m: int, n: int, scale: float) -> None:
    """top [heads, m] = max over n of scale * s [heads, m, n] + bias [m, n]; a masked entry has bias -inf."""
    _cut(top, heads, m).copy_((_cut(s, heads, m, n) * scale).add_(_cut(bias, 1, m, n)).amax(-1))


@local_op(work=lambda *, heads, m, n, scale: (0, 4 * heads * m * n), outs=2)
def exp_sum_torch(
    p: Tensor, z: Tensor, s: Tensor, bias: Tensor, top: Tensor, *, heads: int, m: int, n: int, scale: float
) -> None:
    """p [heads, m, n] = exp(scale * s + bias - top) and z [heads, m] = its sum over n; top [heads, m].

    A row that is masked everywhere (top = -inf) gives zeros, not NaN.
    """
    p = _cut(p, heads, m, n)
    p.copy_(_cut(s, heads, m, n)).mul_(scale).add_(_cut(bias, 1, m, n))
    p.sub_(_cut(top, heads, m, 1).clamp_min(-3e38)).exp_()
    _cut(z, heads, m).copy_(p.sum(-1))


@local_op(work=lambda *, m, heads, n: (0, m * heads * n), elementwise=True)
def normalize_torch(out: Tensor, o: Tensor, z: Tensor, *, m: int, heads: int, n: int) -> None:
    """out [m, heads, n] = o / z with z [heads, m]."""
    _cut(out, m, heads, n).copy_(_cut(o, m, heads, n) / _cut(z, heads, m).mT.unsqueeze(-1))


@local_op(work=lambda *, m, n: (0, 5 * m * n))
def silu_mul_torch(out: Tensor, gate_up: Tensor, *, m: int, n: int) -> None:
    """out [m, n] = silu(gate) * up, gate_up [m, 2, n]."""
    gate_up = _cut(gate_up, m, 2, n)
    gate = gate_up[..., 0, :]
    _cut(out, m, n).copy_(gate.sigmoid().mul_(gate).mul_(gate_up[..., 1, :]))


def _turned(x: Tensor) -> Tensor:
    """x [..., b, a, n] from x [..., a, b, n]; rows of 16 bytes move as one element each, which is far quicker."""
    import torch  # not before: schedules are priced where there is no torch

    units = [*x.stride()[:-1], x.storage_offset()]
    if x.shape[-1] * x.itemsize == 16 and x.stride(-1) == 1 and not any(unit % x.shape[-1] for unit in units):
        return x.view(torch.complex128).transpose(-3, -2).contiguous().view(x.dtype)
    return x.transpose(-3, -2).contiguous()


def _put(out: Tensor, values: Tensor, add: bool) -> None:
    out.add_(values) if add else out.copy_(values)


def _cut(tile: Tensor, *dims: int) -> Tensor:
    """View a flat tile [..., numel] as [..., *dims]."""
    return tile.unflatten(-1, dims)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.stride() == b.stride()
