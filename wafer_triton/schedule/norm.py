"""RMSNorm and softmax over rows that are cut along an axis: local work and all-reduces of one number a row."""

from __future__ import annotations

from typing import Any

from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.reduce import all_reduce


def rms_norm(
    b: Builder,
    x: str,
    weight: str,
    out: str,
    axis: str,
    *,
    width: int,
    eps: float,
    sums: str = "fp32",
    groups: tuple[int, ...] | None = None,
    label: str = "rms norm",
) -> None:
    """out = x / sqrt(mean(x^2) + eps) * weight [n] for tiles x [m, n] of rows `width` long, cut along `axis`."""
    m, n = b.buffers[x].tile
    s = b.buffer(f"{out}.squares", (m,), sums)
    b.round(b.local("sum_squares", s, x, m=m, n=n), label=label)
    all_reduce(b, s, axis, groups=groups, label=label)
    b.round(b.local("rms_scale", out, (x, s, weight), m=m, n=n, width=width, eps=eps), label=label)


def softmax_parts(
    b: Builder,
    s: str,
    bias: str,
    p: str,
    axis: str,
    *,
    scale: float,
    sums: str = "fp32",
    groups: tuple[int, ...] | None = None,
    summed: bool = True,
    label: str = "softmax",
) -> str:
    """p = exp(scale s + bias - row maximum) for tiles s [heads, m, n] and bias [m, n], rows cut along `axis`.

    Returns the buffer of p's row sums [heads, m]: the caller divides where it is cheapest. Unless `summed`, they are
    those of a core alone, for the caller to sum together with something else.
    """
    heads, m, n = b.buffers[s].tile
    top = b.buffer(f"{p}.max", (heads, m), sums)
    z = b.buffer(f"{p}.sum", (heads, m), sums)
    sizes: dict[str, Any] = {"heads": heads, "m": m, "n": n, "scale": scale}
    b.round(b.local("row_max", top, (s, bias), **sizes), label=label)
    all_reduce(b, top, axis, op="maximum", groups=groups, label=label)
    b.round(b.local("exp_sum", (p, z), (s, bias, top), **sizes), label=label)
    if summed:
        all_reduce(b, z, axis, groups=groups, label=label)
    return z
