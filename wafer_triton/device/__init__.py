"""Devices as PLMR numbers: Parallelism, Latency, Memory, Routing (WaferLLM, OSDI'25, section 3).

A device of one's own takes three lines:

    >>> from dataclasses import replace
    >>> from wafer_triton.device import device
    >>> mine = replace(device("wse2"), name="mine", sram_bytes=64 * 1024)

It stays like a WSE-2: the constants of the cost model that were fitted on that are its own, each in proportion to the
number that it stands for (`SCALES` in `wafer_triton.cost.constants`). The numbers of the presets are in the files
beside this one, each with its source (see `wafer_triton.device.spec`).

A number here is a limit of the hardware, and shares of a peak are of it. A constant was measured on programs, which are
priced by it, and judged by it in the L of PLMR. So a WSE-2 has 1 multiply-add in fp32 a cycle by its data
sheet, and 2.71 cycles for one by a measured product; a routing stage is 16 cycles as it was characterised, and 10.4 as
fitted on kernels. A constant that nothing measured follows from the number.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, replace
from numbers import Number
from typing import Any

from wafer_triton.device.spec import NAMES, Sourced, read
from wafer_triton.errors import DeviceError
from wafer_triton.text.quantity import named, unit

UNBOUNDED_BYTES = 2**40  # a core of `Device.unbounded`: more than any operand takes on one core
MEASURED = ("wse2", "wse3")  # devices that the cost model's constants are fitted on

# The most that each number of a device can be, far beyond what is built: what lies above is a slip of the pen.
MOST = {
    "rows": 10_000,
    "cols": 10_000,
    "hop_cycles": 1e6,
    "stage_cycles": 1e6,
    "sram_bytes": UNBOUNDED_BYTES,
    "routes": 1_000_000,
    "clock_hz": 1e12,
    "link_bytes_per_cycle": 1e6,
    "macs_per_cycle_fp16": 1e6,
    "macs_per_cycle_fp32": 1e6,
    "power_watts": 1e9,
}
NUMBERS = tuple(MOST)  # the fields of a device that are numbers


@dataclass(frozen=True)
class Device:
    """A mesh of small cores; every number is a physical one and says its unit.

    `like` names the measured device whose fitted constants a prediction rests on, in proportion to the numbers here;
    with None constants follow from these numbers alone. Raises DeviceError at birth when a number makes no sense, or
    `like` names no measured device.
    """

    name: str
    rows: int = field(metadata=unit("cores"))  # P: cores down the largest compute rectangle
    cols: int = field(metadata=unit("cores"))  # P: cores across it
    # L, alpha: one router forwards one word along a pre-set route
    hop_cycles: float = field(metadata=unit("cycles", "hop"))
    # L, beta: one software routing stage (receive, rewrite, send)
    stage_cycles: float = field(metadata=unit("cycles", "routing stage"))
    sram_bytes: int = field(metadata=unit("B", "core's SRAM"))  # M: per core
    # R: routes (colours) that one router can hold for programs; None where packets are routed
    routes: int | None = field(metadata=unit("routes"))
    clock_hz: float = field(metadata=unit("Hz", "clock"))
    link_bytes_per_cycle: float = field(metadata=unit("B/cycle", "link"))  # one link, one direction
    macs_per_cycle_fp16: float = field(metadata=unit("multiply-adds/cycle", "a core in fp16"))  # one core
    macs_per_cycle_fp32: float = field(metadata=unit("multiply-adds/cycle", "a core in fp32"))
    power_watts: float = field(metadata=unit("W", "power"))  # the whole device
    like: str | None = field(default=None, metadata=named("constants fitted on"))

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise DeviceError(f"device {self.name!r} has no name; give a text of one character or more")
        for number, most in MOST.items():
            value: Any = getattr(self, number)
            if number == "routes" and value is None:
                continue
            if isinstance(value, Number) and hasattr(value, "item"):  # of numpy, whose text is no number
                value = value.item()
                object.__setattr__(self, number, value)
            least = 0 if number in ("hop_cycles", "stage_cycles") else 1e-9
            if not isinstance(value, int | float) or isinstance(value, bool) or not value >= least:
                wanted = "0 or more" if least == 0 else "positive"
                raise DeviceError(f"device {self.name!r}: {number} = {value!r} must be {wanted}, an int or a float")
            if value > most:
                raise DeviceError(f"device {self.name!r}: {number} = {value!r} must be at most {most:,.0f}")
            if number in ("rows", "cols", "sram_bytes", "routes") and value != int(value):
                raise DeviceError(f"device {self.name!r}: {number} = {value!r} must be a whole number")
        if self.like is not None and self.like not in MEASURED:
            known = ", ".join(map(repr, MEASURED))
            raise DeviceError(
                f"device {self.name!r}: like = {self.like!r} must be one of {known}, on which constants are fitted, or "
                f"None, to derive them from the device's own numbers"
            )

    @property
    def cores(self) -> int:
        """Cores on the whole device."""
        return self.rows * self.cols

    @property
    def wafer_cores(self) -> int:
        """Cores of the whole wafer by its data sheet, in proportion; of another device those of its rectangle.

        The paper counts these. A program has the rectangle of `rows` and `cols` alone, by which all else is judged.
        """
        if self.like is None:
            return self.cores
        return round(read(self.like).numbers["wafer_cores"].value * self.cores / PRESETS[self.like].cores)

    def unbounded(self) -> Device:
        """Return the same device with SRAM for anything, for tests and counts: what overflows is then no error.

        Its name says so, so that no count of it passes for one of the device.
        """
        return replace(self, name=f"{self.name} (unbounded SRAM)", sram_bytes=UNBOUNDED_BYTES)


def _preset(name: str) -> Device:
    spec = read(name)
    return Device(name, like=spec.like, **{number: spec.numbers[number].value for number in NUMBERS})


PRESETS: dict[str, Device] = {name: _preset(name) for name in NAMES}
# a device as large as any, whose counts are those of every device
ANY = replace(PRESETS["wse2"].unbounded(), name="any", rows=int(MOST["rows"]), cols=int(MOST["cols"]))


def sources(of: Device) -> dict[str, Sourced]:
    """Return each number of a device with its source, which a preset of its name, or that it is like, may have."""
    base = of.name if of.name in PRESETS else of.like
    held = {} if base is None else read(base).numbers
    found = {}
    for number in NUMBERS:
        value = getattr(of, number)
        same = number in held and held[number].value == value
        found[number] = held[number] if same else Sourced(value, "own", "given by the user")
    rule = "rows times cols" + f", in proportion to {of.like}" * (of.like is not None)
    found["wafer_cores"] = Sourced(of.wafer_cores, "derived", rule)
    if "wafer_cores" in held and held["wafer_cores"].value == of.wafer_cores:
        found["wafer_cores"] = held["wafer_cores"]
    return found


def device(name: str | Device) -> Device:
    """Return the preset `name` (a Device passes through); DeviceError with the nearest names if there is none."""
    if isinstance(name, Device):
        return name
    if not isinstance(name, str) or name not in PRESETS:
        near = difflib.get_close_matches(str(name).lower(), PRESETS, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise DeviceError(f"unknown device {name!r}{hint} (presets: {', '.join(PRESETS)})")
    return PRESETS[name]
