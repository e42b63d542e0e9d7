"""Devices as PLMR numbers: Parallelism, Latency, Memory, Routing (WaferLLM, OSDI'25, section 3).

An own device is a preset with other numbers, from a text, a file or a call:

    >>> from wafer_triton.device import Device, device
    >>> mine = device("wse2").changed(sram_kib=64)
    >>> mine == device("wse2,sram_kib=64")
    True

It stays like a WSE-2: it has the constants that are fitted on a WSE-2, each in proportion to one number (`SCALES` in
`wafer_triton.cost.constants`). The numbers of the presets are in the files
beside this one, each with its source (see `wafer_triton.device.spec`); `wafer_triton.device.keys` reads own devices.

A number here is a limit of the hardware, and shares of a peak are of it. A constant was measured on programs, which are
priced by it, and judged by it in the L of PLMR. So a WSE-2 has 1 multiply-add in fp32 a cycle by its data
sheet, and 2.71 cycles for one by a measured product; a routing stage is 16 cycles as it was characterised, and 10.4 as
fitted on kernels. A constant that nothing measured follows from the number.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from os import PathLike, path, sep
from typing import Any

from wafer_triton.device import keys
from wafer_triton.device.keys import MOST, UNBOUNDED_BYTES
from wafer_triton.device.spec import NAMES, Sourced, read
from wafer_triton.errors import DeviceError, nearest, shown
from wafer_triton.text.quantity import named, unit

MEASURED = ("wse2", "wse3")  # devices that the cost model's constants are fitted on
LAW = "in proportion to cores and clock (assumed: the dynamic power of CMOS, a C V^2 f, at a constant voltage)"
NUMBERS = tuple(MOST)  # the fields of a device that are numbers


class _Texted:
    """All of a device that is compared, beside its fields: for `Mesh.text`, as one constant to torch.compile."""

    __slots__ = ("text",)
    text: str


@dataclass(frozen=True)
class Device(_Texted):
    """A mesh of small cores; every number is a physical one and says its unit.

    `like` names the measured device whose fitted constants a prediction rests on, in proportion to the numbers here;
    with None constants follow from these numbers alone, and the overheads of software count 0. With `routes` None
    packets carry their route, and no schedule needs too many. The constructor raises DeviceError when a number makes no
    sense, or `like` names no measured device.
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
    base: str | None = field(default=None, compare=False, repr=False)  # the preset of the numbers that are not own

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise DeviceError(f"device {shown(self.name)} has no name; give a text of one character or more")
        if odd := next((letter for letter in self.name if not letter.isprintable()), None):
            raise DeviceError(f"device {self.name!r}: its name has the unprintable character {odd!r}; leave it out")
        for number in MOST:
            value = keys.checked(f"device {self.name!r}", number, getattr(self, number), number)
            object.__setattr__(self, number, value)
        if self.like is not None and (not isinstance(self.like, str) or self.like not in MEASURED):
            known = ", ".join(map(repr, MEASURED))
            raise DeviceError(
                f"device {self.name!r}: like = {shown(self.like)} must be one of {known}, on which constants are "
                f"fitted, or None, to derive them from the device's own numbers"
            )
        object.__setattr__(self, "text", repr([getattr(self, one.name) for one in fields(self) if one.compare]))

    def __reduce__(self) -> tuple[type[Device], tuple[object, ...]]:
        """Copy or pickle by the fields."""
        return Device, tuple(getattr(self, one.name) for one in fields(self))

    @property
    def cores(self) -> int:
        """Return the cores of the whole device."""
        return self.rows * self.cols

    @property
    def wafer_cores(self) -> int:
        """Return the cores of the whole wafer by its data sheet, in proportion; of another device its `cores`.

        The paper counts these. A program has the rectangle of `rows` and `cols` alone, by which all else is judged.
        """
        if self.like is None:
            return self.cores
        return round(read(self.like).numbers["wafer_cores"].value * self.cores / PRESETS[self.like].cores)

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> Device:
        """Return the device of a TOML or JSON file, see `wafer_triton.device.keys`.

        Raises DeviceError for a file that holds no device, OSError for one that cannot be read.
        """
        name, like, numbers = keys.in_file(path)
        return cls(name, **numbers) if like is None else PRESETS[like]._with(numbers, name)

    def changed(self, *, name: str | None = None, **numbers: Any) -> Device:
        """Return the device with other numbers, named by their units as in a file: `sram_kib=128`, `clock_ghz=1.4`.

        Power follows cores and clock unless it is given, see `power_by_law`. Without a `name` the device is named by
        all changes. Raises DeviceError for an unknown number.
        """
        named = ",".join((self.name, *(f"{key}={value}" for key, value in numbers.items())))
        return self._with(keys.converted(f"device {self.name!r}", numbers), named if name is None else name)

    def _with(self, numbers: dict[str, Any], name: str) -> Device:
        base = self.name if self.name in PRESETS else self.base
        made = replace(self, name=name, base=base, **numbers)
        return made if "power_watts" in numbers else replace(made, power_watts=power_by_law(made, self))

    def macs_per_cycle(self, dtype: str) -> float:
        """Return the multiply-adds a cycle of one core for tiles of a dtype."""
        return self.macs_per_cycle_fp32 if dtype == "fp32" else self.macs_per_cycle_fp16

    def unbounded(self) -> Device:
        """Return the same device with SRAM for anything, for tests and counts: no buffer overflows it.

        Its name says so, so that no count of it passes for one of the device.
        """
        return replace(self, name=f"{self.name} (unbounded SRAM)", sram_bytes=UNBOUNDED_BYTES)


def _preset(name: str) -> Device:
    spec = read(name)
    return Device(name, like=spec.like, **{number: spec.numbers[number].value for number in NUMBERS})


PRESETS: dict[str, Device] = {name: _preset(name) for name in NAMES}
# a device as large as any, whose counts every device has
ANY = replace(PRESETS["wse2"].unbounded(), name="any", rows=int(MOST["rows"]), cols=int(MOST["cols"]))
DeviceLike = str | PathLike[str] | Device  # a preset, a text such as "wse2,sram_kib=96", a TOML or JSON file, a Device


def sources(of: DeviceLike) -> dict[str, Sourced]:
    """Return each number of a device with its source, which a preset of its name, or that it is like, may have.

    Raises DeviceError as `device`.
    """
    of = device(of)
    base = base_of(of)
    held = {} if base is None else read(base.name).numbers
    found = {}
    for number in NUMBERS:
        value = getattr(of, number)
        same = number in held and held[number].value == value
        found[number] = held[number] if same else Sourced(value, "own", "given by the user")
    if base is not None and of.power_watts == power_by_law(of, base) != base.power_watts:
        found["power_watts"] = Sourced(of.power_watts, "scaled", f"{base.power_watts:,} W of {base.name}, {LAW}")
    rule = "rows times cols" + f", in proportion to {of.like}" * (of.like is not None)
    found["wafer_cores"] = Sourced(of.wafer_cores, "derived", rule)
    if "wafer_cores" in held and held["wafer_cores"].value == of.wafer_cores:
        found["wafer_cores"] = held["wafer_cores"]
    return found


def power_by_law(of: Device, base: Device) -> float:
    """Return the power of a device in watts by `LAW`, from the power of a base with as much on each core."""
    if (of.cores, of.clock_hz) == (base.cores, base.clock_hz):
        return base.power_watts
    return base.power_watts * (of.cores / base.cores) * (of.clock_hz / base.clock_hz)


def base_of(of: Device) -> Device | None:
    """Return the preset that a device has its numbers from, as far as they are not its own; None if there is none."""
    name = of.name if of.name in PRESETS else of.base or of.like
    return None if name is None else PRESETS[name]


def origin(of: Device, entry: Sourced) -> str:
    """Return where an entry of a device is from: "own", "scaled", "derived", or the preset that has it."""
    if entry.kind in ("own", "scaled", "derived"):
        return entry.kind
    base = base_of(of)
    return "" if base is None or of.name in PRESETS else f"inherited: {base.name}"


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
        texts.append(f"power_watts does not follow {', '.join(apart)}; give it if the change takes more power")
    return "; ".join(texts)


def device(spec: DeviceLike) -> Device:
    """Return the device of a preset's name, of a text such as "wse2,sram_kib=96", or of a TOML or JSON file.

    A Device passes through. Raises DeviceError, with the nearest name for one that is unknown.
    """
    if isinstance(spec, Device):
        return spec
    if isinstance(spec, str) and spec in PRESETS:
        return PRESETS[spec]
    if isinstance(spec, PathLike):
        return Device.from_file(spec)
    known = f"(presets: {', '.join(PRESETS)})"
    if not isinstance(spec, str):
        raise DeviceError(f"unknown device {shown(spec)}; give a preset, a file or a Device {known}")
    first, numbers = keys.in_text(spec)
    if first in PRESETS:
        base = PRESETS[first]
    elif sep in first or path.splitext(first)[1][1:].isalpha() or path.isfile(first):
        base = Device.from_file(first)
    else:
        near = nearest(first, PRESETS) or "; give a preset, or a file that ends in .toml or .json"
        raise DeviceError(f"unknown device {shown(spec)}{near} {known}")
    return base.changed(**numbers) if numbers else base
