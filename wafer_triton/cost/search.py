"""Searching: the best meshes and groups for a request."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import TypeVar

from wafer_triton import estimate
from wafer_triton.cost import inference
from wafer_triton.cost.cap import Cap, sparse
from wafer_triton.cost.constants import Constants, constants
from wafer_triton.cost.layers import is_paper_benchmark
from wafer_triton.cost.placement import Placement, checked
from wafer_triton.cost.price import best_groups
from wafer_triton.cost.results import Layered, RequestCost
from wafer_triton.device import DeviceLike
from wafer_triton.device import device as find_device
from wafer_triton.errors import MeshError, ShapeError, WaferError, check_counts
from wafer_triton.mesh import Mesh
from wafer_triton.schedule.heads import HeadGroups
from wafer_triton.shape.decoder import DecoderShape
from wafer_triton.shape.read import Model, shape_of
from wafer_triton.text.progress import Progress, silent
from wafer_triton.text.quantity import as_in, unit

T = TypeVar("T")
MOST = 3  # pairs of meshes that are placed and priced for each plan to find, those of the least bound
FASTEST = 2  # meshes on which the experts of a mixture are tried in regions too, which takes seconds for each


@dataclass(frozen=True)
class Plan:
    """A choice of square meshes, by their sides, and of groups for a request, with what they are predicted to give.

    `groups` are those of the K-trees' first level, `head_groups` those of the heads on the columns in decode.
    `constants`, `error_band` and `outside` are those of the request (see `wafer_triton.cost.results`). Of a mixture of
    experts, `experts` says where they live in prefill (in decode each lies over the whole mesh); `s_mbu` is that of
    decode for one sequence, and `s_mbu_in_regions` the most that it could be with every expert in a region of its own.
    """

    prefill_mesh: int = field(metadata=unit("side"))
    decode_mesh: int = field(metadata=unit("side"))
    groups: int = field(metadata=unit("groups"))
    head_groups: int = field(metadata=as_in(Layered, "head_groups"))
    regions: int = field(metadata=as_in(Layered, "regions"))
    tokens_per_second: float = field(metadata=as_in(RequestCost, "tokens_per_second"))
    prefill_seconds: float = field(metadata=as_in(RequestCost, "prefill_seconds"))
    decode_seconds: float = field(metadata=as_in(RequestCost, "decode_seconds"))
    kv_tokens: int = field(metadata=unit("tokens", "KV cache"))
    constants: str
    error_band: float | None = field(metadata=as_in(Layered, "error_band"))
    outside: str | None = field(metadata=as_in(Layered, "outside"))
    experts: str | None = field(default=None, metadata=as_in(Layered, "experts"))
    s_mbu: float | None = field(default=None, metadata=as_in(Cap, "s_mbu"))
    s_mbu_in_regions: float | None = field(default=None, metadata=unit("%", "at most, in regions"))
    layout: str | None = None


@contextmanager
def without_collection() -> Iterator[None]:
    """Leave reference cycles be: their collector walks all that pricing keeps, and a plan makes some thousand of them.

    It takes two fifths of a plan's time otherwise.
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


@without_collection()
def plan(
    *, model: Model, device: DeviceLike = "wse2", input: int, output: int, step: int = 20, best: int = 5,
    sides: Sequence[int] | None = None, program: str = "full", head_groups: int | None = None,
    experts: Placement = None, dtype: str | None = None, progress: Progress = silent,
) -> list[Plan]:  # fmt: skip
    """The `best` fastest plans for a request, best first, over square meshes of `sides` (None: multiples of `step`).

    They are the fastest of `MOST` times as many pairs of meshes, those of which the phases alone take the least time.

    A plan holds the embedding, all layers, the head and the whole cache in the SRAM of the device's regions. It has
    `head_groups`, or the best (None). The experts of a mixture live where `experts` says in prefill; None compares both
    ways on the meshes that are the fastest with each expert over the whole mesh. `dtype` is as of `estimate.decode`.
    Reports "meshes of prefill" and
    "meshes of decode" to `progress`.
    Raises SramError or MeshError, with the last mesh's reason, when there is no plan, ShapeError for a size that is not
    a positive whole number.
    """
    target, shape = find_device(device), shape_of(model, dtype)
    c = constants(target)
    check_counts(input=input, output=output, step=step, best=best)
    if sides is not None and len(sides) == 0:
        raise ShapeError("sides is empty; give a side at least, or leave it out for all multiples of step")
    sides = range(step, min(target.rows, target.cols) + 1, step) if sides is None else sides
    if head_groups is not None and sides:
        priced = shape.paper_benchmark() if is_paper_benchmark(program) else shape
        HeadGroups(priced, max(sides), head_groups)  # raises for too many

    def square(side: int) -> Mesh:
        return Mesh(side, side, target)

    def prefilled(side: int, way: Placement) -> estimate.Layered:
        return inference.prefill_on(square(side), shape, input, c, program, head_groups, experts=way)

    checked(experts, shape)
    both = shape.experts is not None and experts is None
    prefills, reason = _estimates(
        sides, partial(prefilled, way="spread" if both else experts), partial(progress, "meshes of prefill")
    )
    ways: dict[int, Placement] = dict.fromkeys(prefills, "spread" if both else experts)
    for side in sorted(prefills, key=lambda side: prefills[side].seconds)[: FASTEST if both else 0]:
        with suppress(WaferError):
            other = prefilled(side, "regions")
            if other.seconds < prefills[side].seconds:
                prefills[side], ways[side] = other, "regions"
    ends, why = _estimates(
        sides,
        lambda side: _first_and_last(square(side), shape, input, output, c, program, head_groups),
        partial(progress, "meshes of decode"),
    )
    decodes, fast = ({side: pick(each, key=lambda layer: layer.seconds) for side, each in ends.items()}
                     for pick in (max, min))  # fmt: skip
    if not prefills or not decodes:
        last = reason or why
        if last is None:
            raise MeshError(
                f"no mesh of {target.name} was tried: its sides have no multiple of {step}; give another step"
            )
        phase = "decode" if prefills else "prefill"
        raise type(last)(f"no mesh that was tried on {target.name} holds {phase}; of the last: {last}")

    def requested(first: int, side: int) -> estimate.RequestCost:
        place = inference.request_placed(
            square(first), square(side), shape, input, output, c, None, program, head_groups, ways[first]
        )
        return inference.request_on(place, input, output, c, program)

    def least(first: int, side: int) -> float:
        """Seconds that a request takes at least, as no token of its answer is faster than the first or the last."""
        return prefills[first].seconds + turning[first] + output * fast[side].seconds

    fastest = [sorted(found, key=lambda side: found[side].seconds)[: 2 * best] for found in (prefills, decodes)]
    turning = {}
    for side in fastest[0]:
        own, _ = inference.prefill_placed(square(side), shape, input, c, program, head_groups, False, ways[side])
        turning[side] = inference.turning_cycles(own, c) / target.clock_hz
    pairs = sorted(product(*fastest), key=lambda pair: least(*pair))
    candidates: list[tuple[int, int, inference.RequestCost]] = []
    for first, side in pairs[: MOST * best]:
        if sum(request.seconds <= least(first, side) for _, _, request in candidates) >= best:
            break
        try:
            candidates.append((first, side, requested(first, side)))
        except WaferError as error:  # each phase fits by itself
            reason = error
    if not candidates:
        raise MeshError(f"no two meshes that were tried on {target.name} hold both phases; of the last: {reason}")
    candidates.sort(key=lambda candidate: -candidate[2].tokens_per_second)
    decoding = c.of("decode")
    return [
        Plan(
            first,
            side,
            (best_groups(side, decoding) or (1,))[0],
            request.head_groups,
            request.decode_regions,
            request.tokens_per_second,
            request.prefill_seconds,
            request.decode_seconds,
            _capacity(square(side), shape, program, request.head_groups),
            request.constants,
            request.error_band,
            request.outside,
            request.experts,
            *sparse(shape, target, decodes[side].seconds, input + output),
            request.layout,
        )
        for first, side, request in candidates[:best]
    ]


def _first_and_last(
    mesh: Mesh, shape: DecoderShape, input: int, output: int, c: Constants, program: str, head_groups: int | None
) -> tuple[estimate.Layered, estimate.Layered]:
    """Return the first and the last token of an answer, with the head groups that are best for the last."""
    last = inference.decode_on(mesh, shape, input + output, c, None, program, head_groups)
    first = inference.decode_on(mesh, shape, input + 1, c, program=program, head_groups=last.head_groups)
    return first, last


def _estimates(
    sides: Sequence[int], estimated: Callable[[int], T], progress: Callable[[int, int], None]
) -> tuple[dict[int, T], WaferError | None]:
    """Return estimates by side, and the last error if no side has one."""
    estimates, reason = {}, None
    for number, side in enumerate(sides):
        try:
            estimates[side] = estimated(side)
        except WaferError as error:
            reason = error
        progress(number + 1, len(sides))
    return estimates, None if estimates else reason


def _capacity(mesh: Mesh, shape: DecoderShape, program: str, head_groups: int) -> int:
    return estimate.kv(
        device=mesh.device, model=shape, mesh=mesh, program=program, head_groups=head_groups
    ).shift_tokens
