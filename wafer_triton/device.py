"""Devices as PLMR numbers: Parallelism, Latency, Memory, Routing (WaferLLM, OSDI'25, section 3).

A device of one's own takes three lines:

    >>> from dataclasses import replace
    >>> from wafer_triton.device import device
    >>> mine = replace(device("wse2"), name="mine", sram_bytes=64 * 1024)

It stays like a WSE-2: the constants of the cost model that were fitted on that are its own, each in proportion to the
number that it stands for (`SCALES` in `wafer_triton.cost.constants`).
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, replace
from numbers import Number
from typing import Any

from wafer_triton.errors import DeviceError
from wafer_triton.text.quantity import named, unit

WAFER_CORES = {"wse2": 850_000, "wse3": 900_000}  # [C] data sheets: cores outside of the rectangle as well
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
        return round(WAFER_CORES[self.like] * self.cores / PRESETS[self.like].cores)

    def unbounded(self) -> Device:
        """The same device with SRAM for anything, for tests and counts: what overflows is then no error.

        Its name says so, so that no count of it passes for one of the device.
        """
        return replace(self, name=f"{self.name} (unbounded SRAM)", sram_bytes=UNBOUNDED_BYTES)


# The sources behind the numbers; each preset's line names one.
#   [C]   Cerebras, WSE-2 and CS-2 data sheets and SDK documentation
#   [W]   He et al., "WaferLLM", OSDI'25 (arXiv 2502.04563v3)
#   [L]   Luczynski et al., "Near-Optimal Wafer-Scale Reduce", HPDC'24
#   [M3]  third-party characterisation of WSE-3 silicon
#   [T]   Tenstorrent, Wormhole and Blackhole documentation
#   [D]   derived here, as the comment says
PRESETS: dict[str, Device] = {
    "wse2": Device(
        name="wse2",
        rows=750,  # [C] largest compute rectangle 750 x 994
        cols=994,
        hop_cycles=1,  # [L]
        stage_cycles=16,  # [M3] 15 to 17 cycles to set up a vector operation, taken for WSE-2 as well
        sram_bytes=48 * 1024,  # [C] 48 KiB
        routes=24,  # [W] 24 colours usable (5-bit code, at most 32)
        clock_hz=1.1e9,  # [W] the paper's; other work on the same machine says 850 MHz
        link_bytes_per_cycle=4,  # [L] one 32-bit word per cycle and direction
        macs_per_cycle_fp16=4,  # [C] four-way SIMD fp16 multiply-add
        macs_per_cycle_fp32=1,  # [C] one fp32 multiply-add
        power_watts=15_000,  # [D] every energy ratio in [W] fits power_wse2 / power_a100 = 37.5, with 400 W for an A100
        like="wse2",
    ),
    "wse3": Device(
        name="wse3",
        rows=750,  # [D] as WSE-2: the compute rectangle in use is not larger than 762 x 1172
        cols=994,
        hop_cycles=2,  # [M3] 2.000
        stage_cycles=16,  # [M3] 15 to 17 cycles to set up a vector operation
        sram_bytes=48 * 1024,  # [M3] 49,152 B
        routes=21,  # [M3] 24 colours, 3 reserved
        clock_hz=1.1e9,  # [W] launchers use 1.1 GHz
        link_bytes_per_cycle=4 / 1.125,  # [M3] one 32-bit word per 1.125 cycles
        macs_per_cycle_fp16=2.92,  # [M3] measured
        macs_per_cycle_fp32=0.50,  # [M3] measured
        power_watts=15_000,  # [D] taken as WSE-2's
        like="wse3",
    ),
    "wormhole": Device(
        name="wormhole",
        rows=8,  # [T] 80 cores on one ASIC
        cols=10,
        hop_cycles=9,  # [T]
        stage_cycles=100,  # [D] a RISC-V core's receive-and-send loop, order of magnitude
        sram_bytes=1464 * 1024,  # [T]
        routes=None,  # [T] packets carry their route, so R does not bind
        clock_hz=1.0e9,  # [T]
        link_bytes_per_cycle=32,  # [T]
        macs_per_cycle_fp16=2048,  # [T] one 8x16 by 16x16 product per cycle
        macs_per_cycle_fp32=512,  # [D] a quarter of the fp16 rate
        power_watts=160,  # [T] n150 board
    ),
    "blackhole": Device(
        name="blackhole",
        rows=10,  # [T] 140 cores
        cols=14,
        hop_cycles=9,  # [D] as Wormhole
        stage_cycles=100,  # [D] as Wormhole
        sram_bytes=1536 * 1024,  # [T]
        routes=None,  # [T]
        clock_hz=1.35e9,  # [T]
        link_bytes_per_cycle=64,  # [T]
        macs_per_cycle_fp16=2048,  # [D] as Wormhole
        macs_per_cycle_fp32=512,  # [D] as Wormhole
        power_watts=300,  # [T] p150 board
    ),
}


def device(name: str | Device) -> Device:
    """The preset `name` (a Device passes through); DeviceError with the nearest names if there is none."""
    if isinstance(name, Device):
        return name
    if not isinstance(name, str) or name not in PRESETS:
        near = difflib.get_close_matches(str(name).lower(), PRESETS, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise DeviceError(f"unknown device {name!r}{hint} (presets: {', '.join(PRESETS)})")
    return PRESETS[name]
