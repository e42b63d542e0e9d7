"""The data sheet of a device: each number and constant with its source, its followers, and the range of the fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wafer_triton.cost.bands import FAMILIES, bands, basis
from wafer_triton.cost.constants import SCALES, described
from wafer_triton.device import LAW, PRESETS, Device, base_of, power_by_law, sources
from wafer_triton.device.spec import Sourced

# Followers of each number beside the constants of `SCALES`. The price of a round takes the time of SRAM as unchanged.
FOLLOWERS: Mapping[str, str] = {
    "rows": "power_watts, wafer_cores; room for regions",
    "cols": "power_watts, wafer_cores; room for regions",
    "sram_bytes": "what fits; no time (assumed: a larger SRAM is as fast)",
    "routes": "which schedules are relayed core by core",
    "clock_hz": "power_watts; seconds = cycles / clock_hz",
    "macs_per_cycle_fp16": "shares of the peak; not sram_bytes_per_cycle",
    "macs_per_cycle_fp32": "shares of the peak",
    "power_watts": "energies = power_watts x seconds",
}


@dataclass(frozen=True)
class Follower:
    """A number of a device beside the same number of the base, and the predictions that follow it.

    `fitted_at` is the base's number, at which the constants were measured; None where no constant follows it.
    """

    value: Any
    base: Any
    followers: str
    fitted_at: Any


def origin(of: Device, entry: Sourced) -> str:
    """Return where an entry of a device is from: "own", "scaled", "derived", or the preset that has it."""
    if entry.kind in ("own", "scaled", "derived"):
        return entry.kind
    base = base_of(of)
    return "" if base is None or of.name in PRESETS else f"inherited: {base.name}"


def followers(of: Device) -> dict[str, Follower]:
    """Return each number of a device with all that follows it, see `SCALES` and `FOLLOWERS`."""
    base, found = base_of(of), {}
    for number in sources(of):
        if number == "wafer_cores":
            continue
        direct = [name for name, (by, _) in SCALES.items() if by == number]
        law = "constants in proportion: " if all(SCALES[name][1] > 0 for name in direct) else "constants inversely: "
        value, at = getattr(of, number), None if base is None else getattr(base, number)
        texts = [law + ", ".join(direct)] * bool(direct) + [FOLLOWERS.get(number, "")]
        fitted = (direct or number == "clock_hz") and of.like is not None
        found[number] = Follower(
            value, at, "; ".join(filter(None, texts)), getattr(PRESETS[of.like], number) if fitted else None
        )
    return found


def fits(of: Device) -> dict[str, Any]:
    """Return the families of measurements that estimates on a device rest on, each with its range and its error band.

    The band of a kind of estimate is the band on this device, wider for each number outside of the range of the fit.
    """
    if of.like is None:
        return {}
    found = {}
    for (like, kind), (names, _) in FAMILIES.items():
        if like == of.like:
            rests_on = basis(of, kind, {})
            ranges = {name: {"rows": bands()[name]["rows"], "sizes": bands()[name]["sizes"]} for name in names}
            found[kind] = {"families": ranges, "error_band": rests_on.error_band, "outside": list(rests_on.outside)}
    return found


def energy_note(of: Device) -> str:
    """Return the assumption of energies on a device whose numbers are own; empty where they are a preset's."""
    base = base_of(of)
    if base is None or of.name in PRESETS:
        return ""
    law = power_by_law(of, base)
    apart = [name for name in ("macs_per_cycle_fp16", "macs_per_cycle_fp32", "link_bytes_per_cycle", "sram_bytes")
             if getattr(of, name) != getattr(base, name)]  # fmt: skip
    texts = []
    if of.power_watts == law != base.power_watts:
        texts.append(f"energy at {of.power_watts:,.0f} W: {base.power_watts:,.0f} W of {base.name}, {LAW}")
    elif of.power_watts != law:
        texts.append(f"energy at {of.power_watts:,.0f} W as given; cores and clock alone would make it {law:,.0f} W")
    if apart and of.power_watts == law:
        texts.append(f"power_watts does not follow {', '.join(apart)}; give it where they take more")
    return "; ".join(texts)


def sheet(of: Device) -> dict[str, Any]:
    """Return the whole sheet as plain values, for `wafer-triton devices --show --json`."""
    parts = {"numbers": sources(of), "constants": described(of)}
    return {
        "name": of.name,
        "like": of.like,
        **{
            part: {name: {**entry.as_json(), "origin": origin(of, entry)} for name, entry in held.items()}
            for part, held in parts.items()
        },
        "followers": {name: vars(entry) for name, entry in followers(of).items()},
        "fits": fits(of),
    }
