"""Searching: the best meshes and groups for a request, and sweeps over one parameter of a device or an estimate."""

from __future__ import annotations

import csv
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from inspect import signature
from itertools import product
from math import isfinite
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar

from wafer_triton import estimate
from wafer_triton.cost import inference
from wafer_triton.cost.cap import sparse
from wafer_triton.cost.constants import Constants, constants
from wafer_triton.cost.layers import is_measured
from wafer_triton.cost.placement import Placement, checked
from wafer_triton.cost.trees import best_groups
from wafer_triton.device import NUMBERS, Device
from wafer_triton.device import device as find_device
from wafer_triton.errors import DeviceError, MeshError, ShapeError, WaferError, check_counts, writing
from wafer_triton.mesh import Mesh
from wafer_triton.report import Progress, silent
from wafer_triton.schedule.heads import HeadGroups
from wafer_triton.shapes import DecoderShape, shape_of

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

    prefill_mesh: int
    decode_mesh: int
    groups: int
    head_groups: int
    regions: int
    tokens_per_second: float
    prefill_seconds: float
    decode_seconds: float
    kv_tokens: int
    constants: str
    error_band: float | None
    outside: str | None
    experts: str | None = None
    s_mbu: float | None = None
    s_mbu_in_regions: float | None = None
    layout: str | None = None


@contextmanager
def _without_collection() -> Iterator[None]:
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


@_without_collection()
def plan(
    *, model: str | DecoderShape, device: str | Device = "wse2", input: int, output: int, step: int = 20, best: int = 5,
    sides: Sequence[int] | None = None, program: str = "true", head_groups: int | None = None,
    experts: Placement = None, progress: Progress = silent,
) -> list[Plan]:  # fmt: skip
    """The `best` fastest plans for a request, best first, over square meshes of `sides` (None: multiples of `step`).

    They are the fastest of `MOST` times as many pairs of meshes, those of which the phases alone take the least time.

    A plan holds the embedding, all layers, the head and the whole cache in the SRAM of the device's regions. It has
    `head_groups`, or the best (None). The experts of a mixture live where `experts` says in prefill; None compares both
    ways on the meshes that are the fastest with each expert over the whole mesh. Reports "meshes of prefill" and
    "meshes of decode" to `progress`.
    Raises SramError or MeshError, with the last mesh's reason, when there is no plan, ShapeError for a size that is not
    a positive whole number.
    """
    target, shape = find_device(device), shape_of(model)
    c = constants(target)
    check_counts(input=input, output=output, step=step, best=best)
    if sides is not None and len(sides) == 0:
        raise ShapeError("sides is empty; give a side at least, or leave it out for all multiples of step")
    sides = range(step, min(target.rows, target.cols) + 1, step) if sides is None else sides
    if head_groups is not None and sides:
        HeadGroups(shape.measured() if is_measured(program) else shape, max(sides), head_groups)  # raises for too many

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

    def requested(first: int, side: int) -> estimate.Request:
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
    candidates: list[tuple[int, int, inference.Request]] = []
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
    """The first and the last token of an answer, with the head groups that are best for the last."""
    last = inference.decode_on(mesh, shape, input + output, c, None, program, head_groups)
    first = inference.decode_on(mesh, shape, input + 1, c, program=program, head_groups=last.head_groups)
    return first, last


def _estimates(
    sides: Sequence[int], estimated: Callable[[int], T], progress: Callable[[int, int], None]
) -> tuple[dict[int, T], WaferError | None]:
    """Estimates by side, and the last error if no side has one."""
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


MOST_WHOLE = 2**53  # beyond which a number is told as it was written
KINDS: dict[str, Callable[..., Any]] = {
    "gemm": estimate.gemm,
    "gemv": estimate.gemv,
    "decode": estimate.decode,
    "prefill": estimate.prefill,
    "request": estimate.request,
    "kv": estimate.kv,
}


def sweep(kind: str, parameter: str, values: Sequence[float], **fixed: Any) -> list[dict[str, Any]]:
    """One estimate for each value of a parameter, which is a field of Device or an argument of the estimate.

    Values that raise a WaferError are left out; if all do, the last error is raised. Raises DeviceError for an unknown
    kind or parameter, ShapeError for a count that is not a positive whole number.
    """
    return list(estimates(kind, parameter, values, **fixed))


def estimates(
    kind: str, parameter: str, values: Sequence[float], *, left_out: dict[str, list[float]] | None = None, **fixed: Any
) -> Iterator[dict[str, Any]]:
    """The rows of `sweep` as they come; `left_out` takes, by the reason, the values that have none."""
    if kind not in KINDS:
        raise DeviceError(f"sweep over {kind!r}: choose one of {', '.join(KINDS)}")
    target, run = find_device(fixed.pop("device", "wse2")), KINDS[kind]
    own = {name: argument for name, argument in signature(run).parameters.items() if name != "device"}
    if parameter not in (*own, *NUMBERS):
        raise DeviceError(f"cannot sweep {parameter!r}; parameters: {', '.join((*own, *NUMBERS))}")
    unknown = sorted(set(fixed) - set(own))
    missing = [
        name for name, argument in own.items() if argument.default is argument.empty and name not in (*fixed, parameter)
    ]
    if unknown or missing:
        wrong = f"unknown option {', '.join(unknown)}" if unknown else f"{', '.join(missing)} missing"
        raise DeviceError(f"sweep over {kind}: {wrong}; options: {', '.join(own)}")
    counts = [name for name, argument in own.items() if argument.annotation == "int"]
    for name in counts:
        if name in fixed:
            check_counts(**{name: fixed[name]})
    if not isinstance(values, Sequence) or not all(isinstance(value, Real) and isfinite(value) for value in values):
        raise ShapeError(f"sweep over {parameter}: values = {values!r} must be a list of finite numbers")
    reason: WaferError | None = None
    rows = 0
    for value in values:
        number = int(value) if float(value).is_integer() and abs(value) < MOST_WHOLE else value
        if parameter in counts:
            check_counts(**{parameter: number})
        try:
            changed: dict[str, Any] = {parameter: number}
            estimated = (
                run(device=target, **fixed | changed)
                if parameter in own
                else run(device=replace(target, **changed), **fixed)
            )
        except WaferError as error:
            reason = error
            if left_out is not None:
                left_out.setdefault(str(error), []).append(value)
            continue
        plain = {  # a result of the parameter's name, such as routes, is not the value that was asked for
            f"estimated_{name}" if name == parameter else name: figure
            for name, figure in asdict(estimated).items()
            if isinstance(figure, int | float)
        }
        rows += 1
        yield {parameter: number} | plain
    if not rows and reason is not None:
        raise reason


def write_csv(table: Sequence[dict[str, Any]], path: Path) -> None:
    """Write a sweep as CSV."""
    with writing(path), path.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.DictWriter(lines, list(table[0]))
        writer.writeheader()
        writer.writerows(table)
