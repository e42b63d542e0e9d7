"""Estimates over the values of one parameter: a number of a device, or an argument of the estimate."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from inspect import signature
from math import isfinite
from numbers import Real
from pathlib import Path
from typing import Any

from wafer_triton import estimate
from wafer_triton.cost.cap import Routed
from wafer_triton.cost.results import ARGUMENTS, Capacity, Energy, Kernel, Layered, Request
from wafer_triton.device import NUMBERS, Device
from wafer_triton.device import device as find_device
from wafer_triton.errors import DeviceError, ShapeError, WaferError, check_counts, writing
from wafer_triton.text.quantity import Legend

MOST_WHOLE = 2**53  # beyond which a number is told as it was written
WORDS = ("str", "str | None", "str | DecoderShape", "bool", "Placement")  # the types of parameters without numbers
KINDS: dict[str, Callable[..., Any]] = {
    "gemm": estimate.gemm,
    "gemv": estimate.gemv,
    "decode": estimate.decode,
    "prefill": estimate.prefill,
    "request": estimate.request,
    "kv": estimate.kv,
}


_RESULTS = Legend(Kernel, Layered, Request, Capacity, Energy, Routed)
# of the rows of a sweep: the numbers of a device, arguments of estimates, and results; see `estimates`
LEGEND = Legend(
    {f"estimated_{name}": {**entry, "label": ""} for name, entry in _RESULTS.entries.items()},
    Device,
    ARGUMENTS,
    _RESULTS,
)


def sweep(kind: str, parameter: str, values: Sequence[float], **fixed: Any) -> list[dict[str, Any]]:
    """Return one estimate for each value of a parameter, which is a field of Device or an argument of the estimate.

    Values that raise a WaferError are left out; if all do, the last error is raised. Raises DeviceError for an unknown
    kind or parameter, ShapeError for a count that is not a positive whole number.
    """
    return list(estimates(kind, parameter, values, **fixed))


def estimates(
    kind: str, parameter: str, values: Sequence[float], *, left_out: dict[str, list[float]] | None = None, **fixed: Any
) -> Iterator[dict[str, Any]]:
    """Yield the rows of `sweep` as they come; `left_out` takes, by the reason, the values that have none."""
    if kind not in KINDS:
        raise DeviceError(f"sweep over {kind!r}: choose one of {', '.join(KINDS)}")
    target, run = find_device(fixed.pop("device", "wse2")), KINDS[kind]
    own = {name: argument for name, argument in signature(run).parameters.items() if name != "device"}
    numbers = (*(name for name, argument in own.items() if argument.annotation not in WORDS), *NUMBERS)
    if parameter not in numbers:
        raise DeviceError(f"cannot sweep {parameter!r}; parameters: {', '.join(numbers)}")
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
