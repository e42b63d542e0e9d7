"""Estimates over a grid of parameters: numbers of a device, devices, models, and all arguments of an estimate.

Every point has a row: its figures, or the reason why there are none, such as a model that does not fit. Counts are kept
between points, as they depend on no number of a device; so a sweep over rates prices the same schedules anew.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from inspect import Parameter, signature
from itertools import islice
from math import inf, prod
from numbers import Real
from pathlib import Path
from typing import Any

from wafer_triton import estimate
from wafer_triton.compare.grid import MOST_POINTS, REASON, Over, Point, Row, points, size
from wafer_triton.cost.cap import Routed
from wafer_triton.cost.price import Cost, Prediction, price
from wafer_triton.cost.results import ARGUMENTS, Capacity, Energy, Kernel, Layered, RequestCost, Trained
from wafer_triton.device import Device, DeviceLike
from wafer_triton.device import device as find_device
from wafer_triton.device.dtype import DtypeLike
from wafer_triton.device.keys import KEYS
from wafer_triton.device.mesh import MeshLike
from wafer_triton.errors import (
    DeviceError,
    ShapeError,
    WaferError,
    check_counts,
    nearest,
    shown,
)
from wafer_triton.schedule import sram
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.serve.batch import Batched
from wafer_triton.serve.batch import batch as turn
from wafer_triton.shape.read import Model
from wafer_triton.text.progress import Progress, reported, silent
from wafer_triton.text.quantity import Legend, figures, unit
from wafer_triton.text.table import Result

MOST_WHOLE = 2**53  # up to which a number that is whole is given as a whole number
OVERLAID = ("device", "model")  # that may be swept beside two other parameters
# units and labels of the keys of a device's numbers beside their own, as in `device.keys.UNITS`
KEY_UNITS = {
    "sram_kib": ("KiB", "SRAM of a core"), "sram_mib": ("MiB", "SRAM of a core"), "clock_mhz": ("MHz", "clock"),
    "clock_ghz": ("GHz", "clock"), "link_bits_per_cycle": ("bits/cycle", "link"), "power_kilowatts": ("kW", "power"),
}  # fmt: skip


@dataclass(frozen=True, repr=False)
class OwnCost(Result):
    """A price of a schedule of the user's own; fields are as in `Cost` and `Prediction`."""

    main = ("cycles", "tuned_cycles", "seconds", "compute_cycles", "rounds", "hops", "routes", "sram_peak_bytes")
    units_of = (Cost, Prediction)

    cycles: float
    tuned_cycles: float
    seconds: float
    compute_cycles: float
    communication_cycles: float
    rounds: int
    stages: int
    hops: int
    routes: int
    link_bytes: int
    sram_peak_bytes: int
    relayed: bool


_RESULTS = Legend(OwnCost, Kernel, Trained, Layered, RequestCost, Capacity, Energy, Routed, Batched)
# of the rows of a sweep: the numbers of a device, arguments of estimates, and results; see `estimates`
LEGEND = Legend(
    {f"estimated_{name}": {**entry, "label": ""} for name, entry in _RESULTS.entries.items()},
    Device,
    {key: unit(*said) for key, said in KEY_UNITS.items()},
    ARGUMENTS,
    _RESULTS,
    {REASON: {"label": "reason"}},
)


def decode(
    *, device: DeviceLike = "wse2", model: Model, mesh: MeshLike, context: int | None = None,
    batch: int | None = None, at_once: int | None = None, routing: str | float | Path | None = None,
    groups: int | None = None, program: str = "full", head_groups: int | None = None, dtype: DtypeLike | None = None,
) -> Layered | Batched | Routed | Capacity:  # fmt: skip
    """Return the answer about decode that the options ask for.

    Without `context` it is the tokens that a full cache holds (`estimate.kv`). With `routing` it is MoE-CAP's measures
    of a step of `batch` sequences (`estimate.cap`), with `batch` or `at_once` a turn of a batch (`serve.batch`), and
    else one token (`estimate.decode`). Raises ShapeError for options that the answer does not have.
    """
    answer: Callable[..., Any]
    has: tuple[str, ...]
    asked = {"context": context, "batch": batch, "at_once": at_once, "routing": routing, "groups": groups}
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    fixed: dict[str, Any] = {"device": device, "model": model, "mesh": mesh, "head_groups": head_groups, "dtype": dtype}
    if context is None:
        answer, has, what = partial(estimate.kv, program=program), (), "a full cache; give context, or"
    elif routing is not None:
        answer, has, what = estimate.cap, ("context", "batch", "routing"), "a routing;"
    elif batch is not None or at_once is not None:
        answer, has, what = turn, ("context", "batch", "at_once"), "a batch;"
    else:
        answer, has, what = partial(estimate.decode, program=program), ("context", "groups"), ""
    if extra := ", ".join(name for name in given if name not in has):
        raise ShapeError(f"decode: {extra} beside {what} leave {extra} out")
    found: Layered | Batched | Routed | Capacity = answer(**fixed, **given)
    return found


KINDS: dict[str, Callable[..., Any]] = {
    "product": estimate.product,
    "gemm": estimate.gemm,
    "gemv": estimate.gemv,
    "decode": decode,
    "prefill": estimate.prefill,
    "request": estimate.request,
    "training": estimate.training,
}


def own(function: Callable[..., Schedule]) -> Callable[..., OwnCost]:
    """Return an estimate of the schedule that a function returns, with its parameters and `device`.

    The schedule is placed on `device` (None: its own) and priced there. Raises SramError where a core does not hold its
    buffers, MeshError where its mesh leaves the device.
    """

    def run(*, device: DeviceLike | None = None, **arguments: Any) -> OwnCost:
        schedule = function(**arguments)
        if device is not None:
            schedule = replace(schedule, mesh=replace(schedule.mesh, device=find_device(device)))
        sram.check(schedule)
        cost = price(schedule)
        return OwnCost(**figures(OwnCost, Prediction.of(cost, schedule.mesh.device), cost))

    try:
        own_signature = signature(function)
    except ValueError:  # of a type of Python's own
        raise ShapeError(f"own: {shown(function)} has no parameters that Python shows; give a plain function") from None
    kept = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    named = [one for one in own_signature.parameters.values() if one.name != "device" and one.kind in kept]
    run.__signature__ = own_signature.replace(  # type: ignore[attr-defined]
        parameters=[*named, Parameter("device", Parameter.KEYWORD_ONLY, default=None)]
    )
    return run


def sweep(kind: str | Callable[..., Any], over: Over, progress: Progress = silent, **fixed: Any) -> list[Row]:
    """Return a row for each point of a grid: `over` has the values of each parameter, `fixed` the other arguments.

    `kind` is one of `KINDS`, or an estimate such as `own` makes. A parameter is a number of a device, "device", or an
    argument of the estimate; numbers have the keys of a device's file, such as `sram_kib`, and power follows cores and
    clock as there. At most two are swept beside "device" and "model". A point that raises a WaferError has
    its message in the column "reason"; if all do, the error of one is raised, with changes that would fit. Warns of a
    parameter with which no figure changes. Raises DeviceError for an unknown kind or parameter, ShapeError for a value
    of the wrong type and for more than `MOST_POINTS` points.
    """
    rows = list(estimates(kind, over, progress, **fixed))
    if note := unmoved(rows, over):
        warnings.warn(f"sweep: {note}", stacklevel=2)
    return rows


def estimates(
    kind: str | Callable[..., Any], over: Over, progress: Progress = silent, **fixed: Any
) -> Iterator[Row]:  # fmt: skip
    """Yield the rows of `sweep` one by one, and raise as it does.

    A figure of a parameter's name, such as `routes`, is renamed `estimated_routes`. Reports "points" to `progress`.
    """
    run = _estimate(kind)
    arguments = {name: one for name, one in signature(run).parameters.items() if name != "device"}
    _check_names(kind if isinstance(kind, str) else "an own schedule", arguments, over, fixed)
    over = {
        name: list(islice(given, MOST_POINTS + 1)) if isinstance(given, Iterator) else given
        for name, given in over.items()
    }
    check_size(over)
    values = {name: [_value(name, value, arguments) for value in given] for name, given in over.items()}
    fixed = {name: value if name == "device" else _value(name, value, arguments) for name, value in fixed.items()}
    base = fixed.pop("device", "wse2" if isinstance(kind, str) else None)
    keys = KEYS.keys() - arguments.keys()
    set_ = {name: fixed.pop(name) for name in list(fixed) if name in keys}

    def figures(point: Point) -> Row:
        on = point.get("device", base)
        numbers = set_ | {name: value for name, value in point.items() if name in keys}
        if numbers:
            chip = find_device("wse2" if on is None else on)
            on = chip.changed(name=chip.name, **numbers)
        given = {name: value for name, value in point.items() if name in arguments}
        found = run(device=on, **fixed | given)
        return {name: each for name, each in asdict(found).items() if isinstance(each, int | float)}

    every, none, reason = points(values), True, WaferError()
    middle = every[len(every) // 2]
    for point in reported("points", every, progress):
        named = point | {name: str(getattr(point[name], "name", point[name])) for name in OVERLAID if name in over}
        try:
            found = figures(point)
        except WaferError as error:
            if point is middle:
                reason = error
            yield named | {REASON: str(error)}
        else:
            none = False
            yield named | {f"estimated_{name}" if name in point else name: each for name, each in found.items()}
    if none:
        prefix = f"none of {size(over)} has figures; at {asked(middle)}: " if len(every) > 1 else ""
        raise type(reason)(f"{prefix}{reason}") from None


def unmoved(rows: Iterable[Row], over: Iterable[str]) -> str:
    """Return a line about the swept parameters with which no figure changes, as other numbers bound them; "" if none.

    Whether a point has figures at all is one, too.
    """
    every, swept = list(rows), list(over)
    still = []
    for name in swept:
        groups: dict[str, list[Row]] = {}
        for row in every:
            rest = repr([row[other] for other in swept if other != name])
            groups.setdefault(rest, []).append({key: each for key, each in row.items() if key not in swept})
        if len(every) > len(groups) and all(row == group[0] for group in groups.values() for row in group):
            still.append(name)
    return f"no figure changes with {' or '.join(still)}: other numbers decide them all" if still else ""


def asked(arguments: Mapping[str, Any]) -> str:
    """Return the arguments of an estimate in words; absent and false ones are left out."""
    return ", ".join(
        LEGEND.label(name) + (value is not True) * f" {LEGEND.asked(name, getattr(value, 'name', value))}"
        for name, value in arguments.items()
        if value is not None and value is not False
    )


def check_size(over: Over) -> None:
    """Raise ShapeError for a grid of more than `MOST_POINTS` points, with its size."""
    for name, given in over.items():
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise DeviceError(f"sweep over {name}: values are of type {type(given).__name__}; give a list of values")
    if prod(map(len, over.values())) > MOST_POINTS:
        raise ShapeError(f"a sweep of {size(over)}: at most {MOST_POINTS:,} are taken; take larger steps")


def _estimate(kind: str | Callable[..., Any]) -> Callable[..., Any]:
    if callable(kind):
        if "device" not in signature(kind).parameters:
            raise DeviceError(
                f"sweep over {shown(kind)}: an estimate takes a device; give own({getattr(kind, '__name__', 'f')})"
            )
        return kind
    if kind not in KINDS:
        raise DeviceError(f"sweep over {shown(kind)}: choose one of {', '.join(KINDS)}")
    return KINDS[kind]


def _check_names(kind: str, arguments: dict[str, Parameter], over: Over, fixed: dict[str, Any]) -> None:
    """Raise DeviceError for parameters that an estimate lacks or needs, or that are given twice, or too many."""
    if not over:
        raise DeviceError(f"sweep over {kind}: no parameter is swept; give one or two, each with its values")
    known = (*arguments, "device", *(name for name in KEYS if name not in arguments))
    for name in over:
        if name not in known:
            raise DeviceError(f"cannot sweep {name!r}{nearest(name, known)}; parameters: {', '.join(known)}")
        if name in fixed and name != "device":
            raise DeviceError(f"sweep over {kind}: {name} is swept and given; leave one out")
    grown = [name for name in over if name not in OVERLAID]
    if len(grown) > 2:
        raise DeviceError(
            f"a sweep over {', '.join(grown)}: at most two parameters beside {' and '.join(OVERLAID)}; fix some"
        )
    unknown = sorted(set(fixed) - set(known))
    missing = [name for name, one in arguments.items() if one.default is one.empty and name not in (*fixed, *over)]
    if unknown or missing:
        wrong = f"unknown option {', '.join(unknown)}" if unknown else f"{', '.join(missing)} missing"
        raise DeviceError(f"sweep over {kind}: {wrong}; options: {', '.join(arguments)}")


def _value(name: str, value: Any, arguments: dict[str, Parameter]) -> Any:
    """Return a value of a parameter, a whole float as a whole number; ShapeError for one of the wrong type."""
    if isinstance(value, Real) and not isinstance(value, bool):
        if value != value or abs(value) == inf:  # a whole number may be too large for `isfinite`
            raise ShapeError(f"{name} = {value!r} must be a finite number")
        number: Any = value
        value = int(number) if abs(number) < MOST_WHOLE and float(number).is_integer() else number
    elif name in KEYS and name not in arguments:
        raise ShapeError(f"{name} = {value!r} must be a finite number")
    if name in arguments and arguments[name].annotation == "int":
        check_counts(**{name: value})
    return value
