"""Explanations of an estimate: shares of its time, roofs by PLMR, slopes, and the changes that pay most.

Shares are of the binding constants: where compute and a transfer overlap, the longer of the two has the time. So a
share is also the per cent that a per cent of these constants is worth (see `tracing`). Effects are estimates anew, with
a number halved or doubled and all choices made again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from wafer_triton.compare.best import less_is_better
from wafer_triton.compare.roofs import BOUNDS, roofs
from wafer_triton.compare.sweep import KINDS, LEGEND, asked
from wafer_triton.compare.tracing import elasticities, traced
from wafer_triton.device import Device, DeviceLike
from wafer_triton.device import device as find_device
from wafer_triton.device.mesh import as_mesh
from wafer_triton.errors import DeviceError, WaferError
from wafer_triton.place.fitting import without_hints
from wafer_triton.text.progress import Progress, silent
from wafer_triton.text.quantity import digits

# The figure that is explained, by the kind of the estimate.
FIGURES = {
    "gemm": "seconds", "gemv": "seconds", "decode": "tokens_per_second", "prefill": "tokens_per_second",
    "request": "tokens_per_second", "batch": "tokens_per_second", "cap": "tokens_per_second", "kv": "shift_tokens",
}  # fmt: skip
TIME, SRAM = "time", "SRAM of a core"  # of which an estimate has shares
# Numbers of a device that are halved and doubled.
VARIED = (
    "clock_hz", "hop_cycles", "stage_cycles", "link_bytes_per_cycle", "macs_per_cycle_fp16", "macs_per_cycle_fp32",
    "sram_bytes", "routes", "rows", "cols",
)  # fmt: skip
WHOLE = ("sram_bytes", "routes", "rows", "cols")  # of them, the numbers that are whole
MESHES = (0.5, 0.75, 0.9, 1.1, 1.25, 1.5, 2.0)  # times the sides of a mesh, tried as changes
SIDES = ("mesh", "prefill_mesh", "decode_mesh")
BEST = 3  # changes that pay most
PAYS = 1.005  # times the speed from which on a change pays


@dataclass(frozen=True)
class Bounds:
    """The shares of an estimate's time by `BOUNDS`, and per cent of its figure per per cent of each number.

    Of a cache, which takes no time, the shares are of the SRAM of a core.
    """

    figure: str
    shares: Mapping[str, float]
    elasticities: Mapping[str, float]
    whole: str = TIME

    def __str__(self) -> str:
        order = sorted(self.shares, key=lambda name: -self.shares[name])
        said = ", ".join(f"{name} {digits(100 * self.shares[name])} %" for name in order if self.shares[name] >= 0.005)
        if self.whole == SRAM:
            return f"bound by the {SRAM}: {said}; no rate of the device changes it"
        slopes = {name: slope for name, slope in self.elasticities.items() if abs(slope) >= 0.005}
        strong = sorted(slopes, key=lambda name: -abs(slopes[name]))
        each = ", ".join(f"{name} {slopes[name]:+.2f}" for name in strong)
        return f"bound by {said}; per cent of {LEGEND.label(self.figure)} per per cent: {each}"


@dataclass(frozen=True)
class Effect:
    """The speed with a number of the device halved and doubled, over the present one; None where it does not fit."""

    halved: float | None
    doubled: float | None
    reason: str | None = None

    @property
    def matters(self) -> bool:
        """Whether the speed changes, or the estimate does not fit."""
        return any(ratio is None or abs(ratio - 1) >= PAYS - 1 for ratio in (self.halved, self.doubled))


@dataclass(frozen=True)
class Change:
    """A change, and the speed with it over the present one."""

    what: str
    ratio: float


@dataclass(frozen=True)
class Explanation:
    """An estimate explained. `value` is its figure in `unit`; `roofs` are by letters of PLMR, speeds in that unit.

    `shares` are of `whole`, the time or the SRAM of a core. A roof is the figure if one resource alone took time, see
    `compare.roofs`; an estimate without time has none. `sram_share` is the share of a core's SRAM in use, None where
    the estimate has no peak. `effects` are factors of speed, `elasticities` slopes of the figure, which may be a time.
    """

    title: str
    figure: str
    label: str
    unit: str
    value: float
    shares: Mapping[str, float]
    elasticities: Mapping[str, float]
    roofs: Mapping[str, float]
    sram_share: float | None
    effects: Mapping[str, Effect]
    best: tuple[Change, ...]
    whole: str = TIME
    head_groups: int | None = None  # of a decoder

    def as_json(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        return asdict(self)


def bounds(kind: str, *, device: DeviceLike = "wse2", **arguments: Any) -> Bounds:
    """Return the bounds of an estimate of a kind of `sweep.KINDS`; raises as the estimate."""
    if kind not in FIGURES:
        raise DeviceError(f"explain {kind!r}: choose one of {', '.join(FIGURES)}")
    chip = find_device(device)
    if kind == "kv":
        held = KINDS[kind](device=chip, **arguments)
        sizes = {"weights": held.weight_bytes, "cache": held.concat_tokens * held.entry_bytes}
        sizes["buffers and rest"] = chip.sram_bytes - sum(sizes.values())
        return Bounds(FIGURES[kind], {name: size / chip.sram_bytes for name, size in sizes.items()}, {}, SRAM)
    found = KINDS[kind](device=traced(chip), **arguments)
    figure = FIGURES[kind]
    value = getattr(found, figure)
    sign = 1.0 if less_is_better(figure) else -1.0
    slopes = {name: sign * slope / value for name, slope in value.slopes.items()}
    slopes["sram_bytes_per_cycle"] = -slopes.get("sram_bytes_per_cycle", 0.0)
    shares = {name: sum(slopes.get(each, 0.0) for each in own) for name, own in BOUNDS.items()}
    assert abs(sum(shares.values()) - 1) < 1e-6, "a time is homogeneous in the constants"
    slopes_of = elasticities(value, chip)
    return Bounds(figure, shares, {name: slope for name, slope in slopes_of.items() if name != "power_watts"})


def explain(kind: str, *, device: DeviceLike = "wse2", progress: Progress = silent, **arguments: Any) -> Explanation:
    """Return the explanation of an estimate of a kind, whose arguments and errors are its own.

    Effects are of all numbers of `VARIED`; changes are these, and meshes of other sizes. Reports "estimates" to
    `progress`. Raises DeviceError for another kind.
    """
    chip = find_device(device)
    found = bounds(kind, device=chip, **arguments)
    figure = found.figure
    base = KINDS[kind](device=chip, **arguments)
    value, least = getattr(base, figure), less_is_better(figure)

    def of_device(alone: Device) -> Any:
        return getattr(KINDS[kind](device=alone, **arguments), figure)

    def ratio(**changed: Any) -> float | str:
        """Return the speed of an estimate over the present one, or the reason why it has none."""
        try:
            with without_hints():
                other = getattr(KINDS[kind](**{"device": chip} | arguments | changed), figure)
        except WaferError as error:
            return str(error)
        return value / other if least else other / value

    meshes = [(name, factor) for name in SIDES if name in arguments for factor in MESHES]
    varied = [name for name in VARIED if getattr(chip, name)]
    total, done = 2 * len(varied) + len(meshes), 0
    effects, changes = {}, list[Change]()
    for name in varied:
        speeds: list[float | str] = []
        for factor, word in ((0.5, "halved"), (2, "doubled")):
            speeds.append(_of_number(chip, name, factor, ratio))
            if isinstance(speeds[-1], float):
                changes.append(Change(f"{name} {word}", speeds[-1]))
            done += 1
            progress("estimates", done, total)
        halved, doubled = (speed if isinstance(speed, float) else None for speed in speeds)
        reasons = [speed for speed in speeds if isinstance(speed, str)]
        effects[name] = Effect(halved, doubled, reasons[0] if reasons else None)
    for name, factor in meshes:
        mesh = as_mesh(arguments[name], chip)
        sides = round(mesh.rows * factor), round(mesh.cols * factor)
        speed = ratio(**{name: sides}) if min(sides) and sides != (mesh.rows, mesh.cols) else ""
        if isinstance(speed, float):
            changes.append(Change(f"{name.replace('_', ' ')} {sides[0]}x{sides[1]}", speed))
        done += 1
        progress("estimates", done, total)
    pays = sorted((change for change in changes if change.ratio >= PAYS), key=lambda change: -change.ratio)
    return Explanation(
        title=f"{kind} on {chip.name}: {asked({n: each for n, each in arguments.items() if n != 'program'})}",
        figure=figure,
        label=LEGEND.label(figure),
        unit=LEGEND.unit(figure),
        value=value,
        shares=found.shares,
        elasticities=found.elasticities,
        roofs=roofs(of_device, chip, least) if found.whole == TIME else {},
        sram_share=(peak / chip.sram_bytes) if (peak := getattr(base, "sram_peak_bytes", 0)) else None,
        effects=effects,
        best=_distinct(pays),
        whole=found.whole,
        head_groups=getattr(base, "head_groups", None),
    )


def _of_number(chip: Device, name: str, factor: float, ratio: Callable[..., float | str]) -> float | str:
    number = getattr(chip, name) * factor
    number = max(1, int(number)) if name in WHOLE else number
    try:
        return ratio(device=chip.changed(name=chip.name, **{name: number}))
    except WaferError as error:  # a number beyond its range
        return str(error)


def _distinct(changes: list[Change]) -> tuple[Change, ...]:
    """Return the best changes, one of each number or mesh."""
    kept: dict[str, Change] = {}
    for change in changes:
        kept.setdefault(change.what.rpartition(" ")[0], change)
    return tuple(kept.values())[:BEST]
