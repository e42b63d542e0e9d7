"""RMSNorm and softmax over rows that are cut along an axis: local work, and all-reduces of one number a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from wafer_triton.algorithms.reduce import all_reduce
from wafer_triton.errors import ScheduleError
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores, Local, Slot


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
    m, n = _tile(b, x, "m n")
    s = b.buffer(f"{out}.squares", (m,), sums)
    b.round(b.local("sum_squares", s, x, m=m, n=n), label=label)
    all_reduce(b, s, axis, groups=groups, label=label)
    b.round(b.local("rms_scale", out, (x, s, weight), m=m, n=n, width=width, eps=eps), label=label)


def rms_norm_dx(
    b: Builder, x: str, weight: str, y: str, dy: str, out: str, axis: str, *, width: int, eps: float,
    label: str = "rms norm dx",
) -> None:  # fmt: skip
    """out [m, n] = the gradient of y = `rms_norm` with respect to x, for dy [m, n]; one all-reduce, as forward has."""
    m, n = _tile(b, x, "m n")
    squares, products = (b.buffer(f"{out}.{name}", (m,), "fp32") for name in ("squares", "products"))
    sums = b.local("sum_squares", squares, x, m=m, n=n), b.local("sum_products", products, (dy, y), m=m, n=n)
    b.round(*sums, label=label)
    all_reduce(b, (squares, products), axis, label=label)
    b.round(b.local("rms_dx", out, (dy, x, weight, squares, products), m=m, n=n, width=width, eps=eps), label=label)


def rms_norm_dw(
    b: Builder, x: str, dy: str, out: str, axis: str, *, width: int, eps: float, label: str = "rms norm dw"
) -> None:
    """out [n] = the gradient of `rms_norm` with respect to the weight: dy x / rms, summed over all rows."""
    m, n = _tile(b, x, "m n")
    squares = b.buffer(f"{out}.squares", (m,), "fp32")
    b.round(b.local("sum_squares", squares, x, m=m, n=n), label=label)
    all_reduce(b, squares, axis, label=label)
    b.round(b.local("rms_dw", out, (dy, x, squares), m=m, n=n, width=width, eps=eps), label=label)
    all_reduce(b, out, "y" if axis == "x" else "x", label=label)


def softmax_dx(b: Builder, y: str, dy: str, out: str, axis: str, *, scale: float, label: str = "softmax dx") -> None:
    """out [m, n] = scale y (dy - sum of dy y), the gradient of y = softmax(scale x) for rows cut along `axis`."""
    m, n = _tile(b, y, "m n")
    products = b.buffer(f"{out}.products", (m,), "fp32")
    b.round(b.local("sum_products", products, (dy, y), m=m, n=n), label=label)
    all_reduce(b, products, axis, label=label)
    b.round(b.local("softmax_dx", out, (y, dy, products), m=m, n=n, scale=scale), label=label)


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
    segment: int | None = None,
    slots: Sequence[Cores | None] = (None,),
    reduce_sums: bool = True,
    label: str = "softmax",
) -> str:
    """Add p = exp(scale s + bias - row maximum) for tiles s [heads, m, n] and bias [m, n], rows cut along `axis`.

    A core may have several tiles of a row, in slots of s, bias and p: `slots` lists the cores that have a tile in each
    (None: all). `groups` and `segment` are as in `reduce`. Returns the buffer of p's row sums [heads, m]: the caller
    divides where it is cheapest. Without `reduce_sums` they are sums over a core's own columns, for the caller to
    all-reduce together with something else.
    """
    heads, m, n = _tile(b, s, "heads m n")
    top = b.buffer(f"{p}.max", (heads, m), sums)
    z = b.buffer(f"{p}.sum", (heads, m), sums)
    sizes: dict[str, Any] = {"heads": heads, "m": m, "n": n, "scale": scale}
    over: dict[str, Any] = {"groups": groups, "segment": segment, "label": label}

    def statistic(total: str, join: str, step: Callable[[str, int, Cores | None], Local]) -> None:
        """Add a round in which a core computes the statistic of each of its slots, and combines them in `total`."""
        steps = [step(total, 0, slots[0])]
        for slot, cores in enumerate(slots[1:], 1):
            more = b.like(f"{total}.slot", total)
            steps += [step(more, slot, cores), b.local(join, total, (total, more), cores, size=heads * m)]
        b.round(*steps, label=label)

    def highest(out: str, slot: int, cores: Cores | None) -> Local:
        return b.local("row_max", out, (Slot(s, slot), Slot(bias, slot)), cores, **sizes)

    def powers(out: str, slot: int, cores: Cores | None) -> Local:
        return b.local("exp_sum", (Slot(p, slot), out), (Slot(s, slot), Slot(bias, slot), top), cores, **sizes)

    statistic(top, "maximum", highest)
    all_reduce(b, top, axis, op="maximum", **over)
    statistic(z, "add", powers)
    if reduce_sums:
        all_reduce(b, z, axis, **over)
    return z


def _tile(b: Builder, name: str, sizes: str) -> tuple[int, ...]:
    """Return the tile of a buffer; ScheduleError unless it has the dimensions `sizes`, such as "m n"."""
    tile = b.buffers[name].tile
    if len(tile) != len(sizes.split()):
        raise ScheduleError(f"{b.name}: buffer {name!r} has tiles {tile}; give tiles [{', '.join(sizes.split())}]")
    return tile
