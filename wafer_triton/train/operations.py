"""Local operations of training: the work of one die beside products, forward and backward, in plain lines of torch.

They are registered when this module is imported. Operations with the suffix `_back` take the gradient of an output and
give the gradients of the inputs. Rows that are padding see no key, have no target and get no gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wafer_triton.local.registry import cut, local_op

if TYPE_CHECKING:
    from torch import Tensor

Shapes = tuple[tuple[int, ...], ...]


@local_op(tiles=lambda *, m, n, **_: ((m, n), (m, n), (n,), (n,)), work=lambda *, m, n, **_: (0, 5 * m * n))
def norm_rows_torch(
    out: Tensor, x: Tensor, weight: Tensor, bias: Tensor, *, m: int, n: int, eps: float, centre: bool
) -> None:
    """out [m, n] = rows of x over their root mean square, times weight [n], plus bias [n]; with `centre` LayerNorm."""
    scaled, _ = _normed(cut(x, m, n), eps, centre)
    cut(out, m, n).copy_(scaled * cut(weight, 1, n) + cut(bias, 1, n))


@local_op(
    tiles=lambda *, m, n, **_: ((m, n), (n,), (n,), (m, n), (m, n), (n,)),
    work=lambda *, m, n, **_: (0, 12 * m * n),
    outs=3,
)
def norm_rows_back_torch(
    dx: Tensor, dweight: Tensor, dbias: Tensor, dy: Tensor, x: Tensor, weight: Tensor,
    *, m: int, n: int, eps: float, centre: bool,
) -> None:  # fmt: skip
    """Return the gradients of `norm_rows`: dx [m, n], dweight [n] and dbias [n]."""
    scaled, scale = _normed(cut(x, m, n), eps, centre)
    dy = cut(dy, m, n)
    g = dy * cut(weight, 1, n)
    inner = g - scaled * (g * scaled).mean(-1, True)
    cut(dx, m, n).copy_(scale * (inner - g.mean(-1, True) if centre else inner))
    dweight.copy_((dy * scaled).sum(-2))
    dbias.copy_(dy.sum(-2))


def _normed(x: Tensor, eps: float, centre: bool) -> tuple[Tensor, Tensor]:
    x = x - x.mean(-1, True) if centre else x
    scale = (x.square().mean(-1, True) + eps).rsqrt()
    return x * scale, scale


@local_op(tiles=lambda *, m, n: ((m, 2, n), (m, 2, n), (m, n)), work=lambda *, m, n: (0, 10 * m * n))
def silu_mul_back_torch(dgate_up: Tensor, gate_up: Tensor, dh: Tensor, *, m: int, n: int) -> None:
    """dgate_up [m, 2, n] of `silu_mul`."""
    (gate, up), out, dh = cut(gate_up, m, 2, n).unbind(-2), cut(dgate_up, m, 2, n), cut(dh, m, n)
    sigmoid = gate.sigmoid()
    out[..., 0, :] = dh * up * sigmoid * (1 + gate * (1 - sigmoid))
    out[..., 1, :] = dh * gate * sigmoid


@local_op(tiles=lambda *, size: ((size,), (size,)), work=lambda *, size: (0, 8 * size))
def gelu_torch(out: Tensor, x: Tensor, *, size: int) -> None:
    """out [size] = x times the normal distribution function of x."""
    out.copy_(x * 0.5 * (1 + (x * 0.5**0.5).erf()))


@local_op(tiles=lambda *, size: ((size,),) * 3, work=lambda *, size: (0, 12 * size))
def gelu_back_torch(dx: Tensor, x: Tensor, dy: Tensor, *, size: int) -> None:
    """dx [size] of `gelu`."""
    density = (x.square() * -0.5).exp() * (2 * 3.141592653589793) ** -0.5
    dx.copy_(dy * (0.5 * (1 + (x * 0.5**0.5).erf()) + x * density))


@local_op(tiles=lambda *, m, n: ((m, n), (m, n), (n,)), work=lambda *, m, n: (0, m * n))
def add_row_torch(out: Tensor, x: Tensor, row: Tensor, *, m: int, n: int) -> None:
    """out [m, n] = every row of x plus row [n]."""
    cut(out, m, n).copy_(cut(x, m, n) + cut(row, 1, n))


@local_op(tiles=lambda *, m, n: ((n,), (m, n)), work=lambda *, m, n: (0, m * n))
def sum_rows_torch(out: Tensor, x: Tensor, *, m: int, n: int) -> None:
    """out [n] = the sum of the rows of x [m, n]."""
    out.copy_(cut(x, m, n).sum(-2))


@local_op(
    tiles=lambda *, m, heads, n, **_: ((m, heads, n), (m, heads, n), (m, n // 2), (m, n // 2)),
    work=lambda *, m, heads, n, **_: (0, 3 * m * heads * n),
)
def rotate_torch(
    out: Tensor, x: Tensor, cos: Tensor, sin: Tensor, *, m: int, heads: int, n: int, back: bool = False
) -> None:
    """out [m, heads, n] = pairs (i, i + n / 2) of x turned by the rows' angles; `back` turns the other way."""
    first, second = cut(x, m, heads, n).split(n // 2, -1)
    cos, sin = cut(cos, m, 1, n // 2), cut(sin, m, 1, n // 2) * (-1 if back else 1)
    out = cut(out, m, heads, n)
    out[..., : n // 2] = first * cos - second * sin
    out[..., n // 2 :] = second * cos + first * sin


def _attention(*, m: int, s: int, heads: int, kv_heads: int, n: int) -> Shapes:
    keys, queries = (s, kv_heads, n), (m, heads, n)
    return queries, (heads, m, s), queries, keys, keys, (m,), (m,), (s,)


def _attention_back(*, m: int, s: int, heads: int, kv_heads: int, n: int) -> Shapes:
    keys, queries = (s, kv_heads, n), (m, heads, n)
    return queries, keys, keys, queries, (heads, m, s), queries, keys, keys


def _macs(times: int) -> Any:
    return lambda *, m, s, heads, n, **_: (times * heads * m * s * n, 5 * heads * m * s)


@local_op(tiles=_attention, work=_macs(2), outs=2)
def attend_torch(
    out: Tensor, p: Tensor, q: Tensor, k: Tensor, v: Tensor, low: Tensor, high: Tensor, at: Tensor,
    *, m: int, s: int, heads: int, kv_heads: int, n: int,
) -> None:  # fmt: skip
    """out [m, heads, n] = attention of rows of q over keys with low <= at <= high; p [heads, m, s] its weights."""
    q, k, v = _heads(q, m, heads, heads, n), _heads(k, s, kv_heads, heads, n), _heads(v, s, kv_heads, heads, n)
    at, seen = cut(at, 1, 1, s), cut(p, heads, m, s)
    visible = (cut(low, 1, m, 1) <= at) & (at <= cut(high, 1, m, 1))
    scores = (q @ k.mT * n**-0.5).masked_fill(~visible, -1e30)
    weights = (scores - scores.amax(-1, True)).exp() * visible
    seen.copy_(weights / weights.sum(-1, True).clamp(min=1e-30))
    cut(out, m, heads, n).copy_((seen @ v).transpose(-3, -2))


@local_op(tiles=_attention_back, work=_macs(4), outs=3)
def attend_back_torch(
    dq: Tensor, dk: Tensor, dv: Tensor, dout: Tensor, p: Tensor, q: Tensor, k: Tensor, v: Tensor,
    *, m: int, s: int, heads: int, kv_heads: int, n: int,
) -> None:  # fmt: skip
    """dq [m, heads, n], dk and dv [s, kv_heads, n] of `attend`, from its weights p."""
    p, each = cut(p, heads, m, s), heads // kv_heads
    q, k, v = _heads(q, m, heads, heads, n), _heads(k, s, kv_heads, heads, n), _heads(v, s, kv_heads, heads, n)
    dout = _heads(dout, m, heads, heads, n)
    dp = dout @ v.mT
    ds = p * (dp - (dp * p).sum(-1, True)) * n**-0.5
    cut(dq, m, heads, n).copy_((ds @ k).transpose(-3, -2))
    cut(dk, s, kv_heads, n).copy_((ds.mT @ q).unflatten(-3, (kv_heads, each)).sum(-3).transpose(-3, -2))
    cut(dv, s, kv_heads, n).copy_((p.mT @ dout).unflatten(-3, (kv_heads, each)).sum(-3).transpose(-3, -2))


def _heads(x: Tensor, rows: int, held: int, heads: int, n: int) -> Tensor:
    """[heads, rows, n] of [rows, held, n]: heads share those held in groups."""
    return cut(x, rows, held, n).transpose(-3, -2).repeat_interleave(heads // held, -3)


@local_op(
    tiles=lambda *, m, n, **_: ((1,), (m, n), (m, n), (m,)), work=lambda *, m, n, **_: (0, 6 * m * n), outs=2,
    dtypes={"targets": ("fp32",)},
)  # fmt: skip
def cross_entropy_torch(
    loss: Tensor, dlogits: Tensor, logits: Tensor, targets: Tensor, *, m: int, n: int, vocab: int, scale: float
) -> None:
    """loss [1] = scale times the cross entropy of logits [m, n] summed over rows; dlogits [m, n] its gradient.

    Columns from `vocab` on are padding, and so are rows whose target is below 0.
    """
    logits, targets = cut(logits, m, n)[..., :vocab], cut(targets, m, 1)
    real, index = (targets >= 0).to(logits.dtype), targets.clamp(min=0).long()
    logs = logits.log_softmax(-1)
    loss.copy_(-(logs.gather(-1, index) * real).sum((-2, -1))[..., None] * scale)
    out = cut(dlogits, m, n)
    out.zero_()
    out[..., :vocab] = logs.exp() * real * scale
    out[..., :vocab].scatter_add_(-1, index, -real * scale)


@local_op(
    tiles=lambda *, m, d, v: ((d, v), (m, d), (m,)), work=lambda *, m, d, v: (0, m * d), dtypes={"ids": ("fp32",)}
)
def lookup_back_torch(dtable: Tensor, dx: Tensor, ids: Tensor, *, m: int, d: int, v: int) -> None:
    """dtable [d, v] of `lookup`: the rows dx [m, d] added to the columns ids [m]; ids outside it add nothing."""
    ids = cut(ids, m, 1)
    inside = (ids >= 0) & (ids < v)
    out = cut(dtable, d, v)
    out.zero_()
    index = ids.where(inside, 0).long().mT.expand(*ids.shape[:-2], d, m)
    out.scatter_add_(-1, index, (cut(dx, m, d) * inside).mT)


@local_op(
    tiles=lambda *, size, **_: (*(((size,),) * 7), (2,)), work=lambda *, size, **_: (0, 12 * size), outs=3
)  # fmt: skip
def adamw_torch(
    weight: Tensor, first: Tensor, second: Tensor, weight_in: Tensor, first_in: Tensor, second_in: Tensor, grad: Tensor,
    corrections: Tensor, *, size: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float,
) -> None:  # fmt: skip
    """Take one step of AdamW: `weight` and its moments [size], from their previous values and `grad`.

    corrections [2] are 1 - beta1^t and 1 - beta2^t.
    """
    first.copy_(beta1 * first_in + (1 - beta1) * grad)
    second.copy_(beta2 * second_in + (1 - beta2) * grad.square())
    one, two = corrections[..., :1], corrections[..., 1:]
    step = (first / one) / ((second / two).sqrt() + eps)
    weight.copy_(weight_in * (1 - lr * weight_decay) - lr * step)
