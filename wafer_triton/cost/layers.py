"""Layers of a decoder as WaferLLM lays them on the mesh (OSDI'25, section 4), priced step by step.

As in the programs that were measured: one head as wide as the model, K and V as wide as Q (also for models that group
their heads), sizes padded to multiples of the mesh, 16-bit tiles. Sizes of tiles: d of the model's width, a of the
attention's, f of the feed-forward's, s of the sequence; behind it the mesh axis that cuts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from wafer_triton.cost.constants import Constants
from wafer_triton.cost.model_presets import ModelSizes
from wafer_triton.cost.phases import Phase
from wafer_triton.cost.price import Cost, price
from wafer_triton.cost.programs import tiles
from wafer_triton.cost.steps import (
    Groups,
    aligned,
    best_groups,
    gemm_routes,
    multiplied,
    product,
    reduce_routes,
    reduced,
    total,
    work,
)
from wafer_triton.mesh import Mesh
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.norm import rms_norm, softmax_parts

DTYPE = "fp16"
DECODE_REDUCES = 10


@dataclass(frozen=True)
class Step:
    """One step of a layer: its local work, then its all-reduce, if any."""

    name: str
    local: Cost
    reduce: Cost = field(default_factory=Cost)

    @property
    def cost(self) -> Cost:
        """Of the whole step."""
        return self.local + self.reduce


class _Layer:
    """Collects the steps of one layer on one mesh."""

    def __init__(self, mesh: Mesh, c: Constants, groups: Groups) -> None:
        self.mesh, self.c, self.steps = mesh, c, []  # type: Mesh, Constants, list[Step]
        self.groups: dict[str, Groups] = {
            axis: best_groups(mesh.length(axis), c) if groups is None else groups for axis in "xy"
        }
        held = mesh.device.routes
        self.routes = reduce_routes(mesh, self.groups)
        self.relayed = held is not None and held < self.routes

    def add(self, name: str, build: Callable[[Builder], None], axis: str = "", elements: int = 0) -> None:
        """A step with the local work of `build` on a core, and an all-reduce of `elements` along `axis`."""
        local = total((replace(one, fold=self.fold) for one in work(build, self.mesh.device)), self.c)
        self.steps.append(Step(name, local, self.reduce(axis, elements) if axis else Cost()))

    def reduce(self, axis: str, elements: int) -> Cost:
        return total(reduced(self.mesh, axis, elements, self.groups[axis], DTYPE), self.c, self.relayed)

    @property
    def fold(self) -> int:
        return self.mesh.fold[0] * self.mesh.fold[1]

    def norm(self, axis: str, m: int, n: int) -> None:
        def build(b: Builder) -> None:
            for name, tile in (("x", (m, n)), ("w", (n,)), ("h", (m, n))):
                b.buffer(name, tile, DTYPE, "input")
            rms_norm(b, "x", "w", "h", "x", width=n, eps=1e-5, sums=DTYPE)

        self.add("rms norm", build, axis, m)

    def softmax(self, axis: str, m: int, n: int) -> None:
        def build(b: Builder) -> None:
            for name in "sp":
                b.buffer(name, (1, m, n), DTYPE, "input")
            b.buffer("bias", (m, n), DTYPE, "input")
            softmax_parts(b, "s", "bias", "p", "x", scale=1.0, sums=DTYPE)

        self.add("softmax", build, axis, m)
        self.steps.append(Step("softmax sum", Cost(), self.reduce(axis, m)))

    def elementwise(self, name: str, op: str, reads: Iterable[tuple[int, ...]], writes: int, **params: Any) -> None:
        def build(b: Builder) -> None:
            ins = [b.buffer(f"in{number}", tile, DTYPE, "input") for number, tile in enumerate(reads)]
            b.round(b.local(op, b.buffer("out", (writes,), DTYPE, "output"), ins, **params))

        self.add(name, build)


@lru_cache(maxsize=4096)
def decode_layer(model: ModelSizes, mesh: Mesh, context: int, c: Constants, groups: Groups = None) -> tuple[Step, ...]:
    """One token through one layer, `context` tokens in the cache: ten all-reduces, seven along y and three along x."""
    rows, cols = mesh.shape
    (dy, sy), (ax, fx) = tiles(rows, model.dim, context), tiles(cols, model.width, model.ffn)
    at = _Layer(mesh, c.in_decode(), groups)

    def gemv(name: str, axis: str, k: int, n: int) -> None:
        at.steps.append(Step(name, total(product(mesh, k, n, DTYPE), at.c), at.reduce(axis, n)))

    at.norm("y", 1, dy)
    gemv("qkv", "y", dy, 3 * ax)
    gemv("scores", "x", ax, sy)
    at.softmax("y", 1, sy)
    gemv("attention", "y", sy, ax)
    at.elementwise("normalise", "normalize", [(ax,), (1,)], ax, m=1, heads=1, n=ax)
    gemv("output projection", "x", ax, dy)
    at.elementwise("residual", "add", [(dy,), (dy,)], dy, size=dy)
    at.norm("y", 1, dy)
    gemv("gate and up", "y", dy, 2 * fx)
    at.elementwise("silu", "silu_mul", [(2 * fx,)], fx, m=1, n=fx)
    gemv("down", "x", fx, dy)
    at.elementwise("residual", "add", [(dy,), (dy,)], dy, size=dy)
    extra = Cost(cycles=c.decode_step_cycles + c.decode_work_cycles, compute_cycles=c.decode_work_cycles)
    return (*at.steps, Step("set-up of the steps", Cost(routes=at.routes), extra * DECODE_REDUCES))


@lru_cache(maxsize=256)
def prefill_layer(model: ModelSizes, mesh: Mesh, tokens: int, c: Constants) -> tuple[Step, ...]:
    """A prompt through one layer: eight MeshGEMMs, of which five align their activation, and one GEMM-T."""
    square = mesh.square()
    d, a, f, t = tiles(square.shape[0], model.dim, model.width, model.ffn, tokens)
    at = _Layer(square, c, None)
    held, at.routes = mesh.device.routes, at.routes + gemm_routes()
    at.relayed = held is not None and held < at.routes

    def gemm(name: str, m: int, k: int, *widths: int, align: bool = True) -> None:
        parts = aligned(square, m * k, DTYPE) if align else []
        for n in widths:
            parts += multiplied(square, m, k, n, DTYPE)
        at.steps.append(Step(name, total(parts, c, at.relayed)))

    at.norm("x", t, d)
    gemm("q, k, v", t, d, a, a, a)
    at.steps.append(Step("scores", _scores(at, t, a, c)))
    at.softmax("x", t, t)
    gemm("attention", t, t, a)
    at.elementwise("normalise", "normalize", [(t * a,), (t,)], t * a, m=t, heads=1, n=a)
    gemm("output projection", t, a, d)
    at.elementwise("residual", "add", [(t * d,), (t * d,)], t * d, size=t * d)
    at.norm("x", t, d)
    gemm("gate, up", t, d, f, f)
    at.elementwise("silu", "silu_mul", [(t * 2 * f,)], t * f, m=t, n=f)
    gemm("down", t, f, d)
    at.elementwise("residual", "add", [(t * d,), (t * d,)], t * d, size=t * d)
    return tuple(at.steps)


def _scores(at: _Layer, t: int, a: int, c: Constants) -> Cost:
    """GEMM-T: the partial sums of a round stream over the links beside the product of the next one.

    Assumed, as the schedule reduces each round before the next: it has one buffer of partial sums, and a second one
    lets them overlap. The links of a row then bound a round from below, and the last reduction shows at the end.
    """
    stream, _ = reduced(at.mesh, "x", t * t, at.groups["x"], DTYPE) if at.mesh.shape[1] > 1 else (Phase("stream"),) * 2
    parts: list[Phase] = [
        replace(one, busiest_words=max(one.busiest_words, stream.busiest_words), packed=min(one.packed, 1))
        for one in multiplied(at.mesh, t, a, t, DTYPE)
    ]
    return total(parts, c, at.relayed) + price(stream, c, at.relayed)


def layer_cost(steps: tuple[Step, ...]) -> Cost:
    """The cost of a layer."""
    return sum((step.cost for step in steps), Cost())


def weights(model: ModelSizes, mesh: Mesh) -> dict[str, int]:
    """Bytes per core of one layer's 16-bit weights, by buffer; K and V as the model groups them."""
    rows, cols = mesh.shape
    (d_in,), (q, kv, f) = tiles(rows, model.dim), tiles(cols, model.width, model.kv_width, model.ffn)
    elements: dict[str, Any] = {"wq": d_in * q, "wkv": 2 * d_in * kv, "wo": q * d_in, "wgu": 2 * d_in * f}
    return {name: 2 * size for name, size in (elements | {"wdown": f * d_in}).items()}


def kv_entry(model: ModelSizes, mesh: Mesh) -> int:
    """Bytes per core of one token's keys and values in one layer."""
    (kv,) = tiles(mesh.shape[1], model.kv_width)
    return 2 * 2 * kv
