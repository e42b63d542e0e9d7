"""Predictions with their slopes: floats that carry how they change with each constant of a device.

An estimate on a `traced` device is computed by the usual code. Its constants, clock and power are `Traced` floats, so a
time is one too. Times are sums, products and maxima of constants, hence homogeneous: the slopes of a time by its
constants, each times the constant, add up to the time (Euler). A maximum has the slopes of its larger argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import log2
from typing import Any

from wafer_triton.cost.constants import Constants, constants
from wafer_triton.device import Device

RATES = ("clock_hz", "power_watts")  # numbers of a device that are no constants, and enter a prediction themselves
NUMBERS = (
    "hop_cycles", "stage_cycles", "link_bytes_per_cycle", "macs_per_cycle_fp16", "macs_per_cycle_fp32",
)  # fmt: skip


class Traced(float):
    """A float and its slopes: by the name of each constant, the change for a relative change of the constant."""

    slopes: Mapping[str, float]

    def __new__(cls, value: float, slopes: Mapping[str, float]) -> Traced:
        """Return a float with slopes."""
        self = super().__new__(cls, value)
        self.slopes = slopes
        return self

    def _with(self, value: float, own: float, other: Any = 0.0, by: float = 0.0) -> Traced:
        """Return a value whose slopes are `own` times this one's and `by` times another's."""
        slopes = {name: own * slope for name, slope in self.slopes.items()}
        for name, slope in getattr(other, "slopes", {}).items():
            slopes[name] = slopes.get(name, 0.0) + by * slope
        return Traced(value, slopes)

    def __add__(self, other: float) -> Traced:
        return self._with(float(self) + float(other), 1.0, other, 1.0)

    def __sub__(self, other: float) -> Traced:
        return self._with(float(self) - float(other), 1.0, other, -1.0)

    def __rsub__(self, other: float) -> Traced:
        return self._with(float(other) - float(self), -1.0)

    def __mul__(self, other: float) -> Traced:
        return self._with(float(self) * float(other), float(other), other, float(self))

    def __truediv__(self, other: float) -> Traced:
        below = float(other)
        return self._with(float(self) / below, 1 / below, other, -float(self) / below**2)

    def __rtruediv__(self, other: float) -> Traced:
        return self._with(float(other) / float(self), -float(other) / float(self) ** 2)

    def __neg__(self) -> Traced:
        return self._with(-float(self), -1.0)

    def __deepcopy__(self, memo: Any) -> Traced:
        return self

    __radd__, __rmul__ = __add__, __mul__


@dataclass(frozen=True)
class _Device(Device):
    """A device whose constants are traced; unequal to a plain one, so that caches keep the two apart."""


@dataclass(frozen=True)
class _Constants(Constants):
    """Constants that are traced, likewise."""


def traced(of: Device) -> Device:
    """Return a device on which predictions are `Traced`, by its constants and by `RATES`."""
    values = {each.name: getattr(of, each.name) for each in fields(Device)}
    return _Device(**values | {name: _leaf(name, values[name]) for name in RATES})


@constants.register
def _(of: _Device) -> Constants:
    plain = constants(Device(**{each.name: getattr(of, each.name) for each in fields(Device)}))
    values: dict[str, Any] = {each.name: getattr(plain, each.name) for each in fields(Constants)}
    return _Constants(**values | {name: _leaf(name, value) for name, value in values.items() if "lanes" not in name})


def _leaf(name: str, value: float) -> Traced:
    return Traced(float(value), {name: float(value)})


def elasticities(value: Any, of: Device) -> dict[str, float]:
    """Return per cent of a traced value per per cent of each number of a device that it depends on.

    A constant is a power of the number that it follows; its exponent is read from the constants with that number
    doubled, or halved at the upper end of its range.
    """
    slopes = getattr(value, "slopes", {})
    shares = {name: slope / float(value) for name, slope in slopes.items()} if value else {}
    found = {}
    for number in NUMBERS:
        exponents = exponents_of(of, number)
        found[number] = sum(shares.get(name, 0.0) * exponent for name, exponent in exponents.items())
    return found | {name: shares.get(name, 0.0) for name in RATES}


def exponents_of(of: Device, number: str) -> dict[str, float]:
    """Return the exponent by which each constant that follows a number follows it."""
    if not getattr(of, number):
        return {}
    factor = 0.5 if number.startswith("macs") else 2.0
    here = constants(of)
    there = constants(of.changed(power_watts=of.power_watts, **{number: getattr(of, number) * factor}))
    pairs = {each.name: (getattr(here, each.name), getattr(there, each.name)) for each in fields(Constants)}
    return {name: log2(b / a) / log2(factor) for name, (a, b) in pairs.items() if a and b and a != b}
