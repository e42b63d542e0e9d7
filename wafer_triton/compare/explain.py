"""Explanations of an estimate: shares of its time, and the effect of each number of the device.

A share is by how much the time grows, relatively, if the constants of that part grow a little; where compute and a
transfer overlap, the longer of the two has the time. An effect is the estimate anew, with a number halved or doubled
and all choices made again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from wafer_triton.compare.sweep import KINDS, LEGEND, asked
from wafer_triton.cost.constants import Constants, constants
from wafer_triton.cost.results import Capacity
from wafer_triton.device import Device, DeviceLike
from wafer_triton.device import device as find_device
from wafer_triton.errors import DeviceError, WaferError
from wafer_triton.text.progress import Progress, reported, silent
from wafer_triton.text.quantity import Legend, digits, quantity, unit
from wafer_triton.text.table import Result, Table

FIGURES = ("tokens_per_second", "shift_tokens", "seconds")  # of which an estimate is explained by its first
TIME, SRAM = "time", "SRAM of a core"  # of which an estimate has shares
# Parts of the time, by constants of the cost model.
BOUNDS = {
    "compute": (
        "gemm_group_cycles", "gemv_group_cycles", "decode_mac_cycles", "mac_cycles_fp32", "element_cycles",
        "k_step_cycles", "row_cycles",
    ),
    "SRAM": ("sram_bytes_per_cycle",),
    "links": ("word_cycles",),
    "hops": ("hop_cycles",),
    "stages": ("stage_cycles", "decode_stage_cycles"),
    "waiting": ("round_cycles", "packed_cycles"),  # a core sets the exchange of a tile up, and waits for it
    "set-up": (
        "collective_cycles", "kernel_cycles", "decode_step_cycles", "decode_work_cycles", "control_cycles",
    ),
}  # fmt: skip
STEP = 2.0**-20  # by which constants grow, relatively
# Numbers of a device that are halved and doubled.
VARIED = (
    "clock_hz", "hop_cycles", "stage_cycles", "link_bytes_per_cycle", "macs_per_cycle_fp16", "macs_per_cycle_fp32",
    "sram_bytes", "routes", "rows", "cols",
)  # fmt: skip
WHOLE = ("sram_bytes", "routes", "rows", "cols")  # of them, the numbers that are whole


@dataclass(frozen=True)
class _Slower(Device):
    """A device on which a part of `BOUNDS` takes `1 + STEP` times as long."""

    part: str = ""


@constants.register
def _(of: _Slower) -> Constants:
    plain = constants.dispatch(Device)(of)
    factor = 1 / (1 + STEP) if of.part == "SRAM" else 1 + STEP  # its constant is a rate
    return replace(plain, **{name: getattr(plain, name) * factor for name in BOUNDS[of.part]})


@dataclass(frozen=True)
class Bounds:
    """The shares of an estimate's time by `BOUNDS`; of a cache, which takes no time, of the SRAM of a core."""

    figure: str
    shares: Mapping[str, float]
    whole: str = TIME

    def __str__(self) -> str:
        order = sorted(self.shares, key=lambda name: -self.shares[name])
        said = ", ".join(f"{name} {digits(100 * self.shares[name])} %" for name in order if self.shares[name] >= 0.005)
        if self.whole == SRAM:
            return f"bound by the {SRAM}: {said}; no rate of the device changes it"
        return f"bound by {said}"


@dataclass(frozen=True)
class Effect:
    """The speed with a number of the device halved and doubled, over the present one; None where it does not fit."""

    halved: float | None
    doubled: float | None
    reason: str | None = None


@dataclass(frozen=True, repr=False)
class Explanation(Result):
    """An estimate explained. `value` is its figure in `unit`; `shares` are of `whole`, the time or the SRAM of a core.

    `sram_share` is the share of a core's SRAM in use, None where the estimate has no peak. `effects` are factors of
    speed, also where the figure is a time.
    """

    title: str
    figure: str
    label: str
    unit: str
    value: float
    shares: Mapping[str, float]
    sram_share: float | None
    effects: Mapping[str, Effect]
    whole: str = TIME
    head_groups: int | None = None  # of a decoder

    def table(self, *_: str) -> Table:
        """Return the speed with each number of the device halved and doubled, over the present one."""
        rows = ({"number": name, "halved": each.halved, "doubled": each.doubled} for name, each in self.effects.items())
        bound = Bounds(self.figure, self.shares, self.whole)
        title = f"{self.title}: {self.label} {quantity(self.value, self.unit)}, {bound}; speed by number"
        return Table(rows, Legend(dict.fromkeys(("halved", "doubled"), unit("x"))), title=title)


def bounds(kind: str, *, device: DeviceLike = "wse2", **arguments: Any) -> Bounds:
    """Return the bounds of an estimate of a kind of `sweep.KINDS`; raises as the estimate.

    Raises DeviceError for another kind.
    """
    if kind not in KINDS:
        raise DeviceError(f"explain {kind!r}: choose one of {', '.join(KINDS)}")
    chip = find_device(device)
    base = KINDS[kind](device=chip, **arguments)
    figure = next(name for name in FIGURES if hasattr(base, name))
    if isinstance(base, Capacity):
        sizes = {"weights": base.weight_bytes, "cache": base.concat_tokens * base.entry_bytes}
        sizes["buffers and rest"] = chip.sram_bytes - sum(sizes.values())
        return Bounds(figure, {name: size / chip.sram_bytes for name, size in sizes.items()}, SRAM)
    numbers = {each.name: getattr(chip, each.name) for each in fields(Device)}
    shares = {}
    for part in BOUNDS:
        slower = KINDS[kind](device=_Slower(**numbers, part=part), **arguments)
        shares[part] = (_speed(figure, base) / _speed(figure, slower) - 1) / STEP
    return Bounds(figure, shares)


def _speed(figure: str, estimated: Any) -> float:
    value: float = getattr(estimated, figure)
    return 1 / value if figure == "seconds" else value


def explain(kind: str, *, device: DeviceLike = "wse2", progress: Progress = silent, **arguments: Any) -> Explanation:
    """Return the explanation of an estimate of a kind, whose arguments and errors are its own.

    Effects are of all numbers of `VARIED`. Reports "estimates" to `progress`. Raises DeviceError for another kind.
    """
    chip = find_device(device)
    found = bounds(kind, device=chip, **arguments)
    figure, base = found.figure, KINDS[kind](device=chip, **arguments)

    def speed(of: Device) -> float:
        return _speed(figure, KINDS[kind](device=of, **arguments)) / _speed(figure, base)

    varied = [name for name in VARIED if getattr(chip, name)]
    effects = {name: _effect(chip, name, speed) for name in reported("estimates", varied, progress)}
    return Explanation(
        title=f"{kind} on {chip.name}: {asked({n: each for n, each in arguments.items() if n != 'program'})}",
        figure=figure,
        label=LEGEND.label(figure),
        unit=LEGEND.unit(figure),
        value=getattr(base, figure),
        shares=found.shares,
        sram_share=(peak / chip.sram_bytes) if (peak := getattr(base, "sram_peak_bytes", 0)) else None,
        effects=effects,
        whole=found.whole,
        head_groups=getattr(base, "head_groups", None),
    )


def _effect(chip: Device, name: str, speed: Callable[[Device], float]) -> Effect:
    """Return the effect of a number; a reason where the estimate does not fit, or the number leaves its range."""
    speeds: list[float | None] = []
    reasons = []
    for factor in (0.5, 2):
        value = getattr(chip, name) * factor
        value = max(1, int(value)) if name in WHOLE else value
        try:
            speeds.append(speed(chip.changed(name=chip.name, **{name: value})))
        except WaferError as error:
            speeds.append(None)
            reasons.append(str(error))
    return Effect(speeds[0], speeds[1], reasons[0] if reasons else None)
