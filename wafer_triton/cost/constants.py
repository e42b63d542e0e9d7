"""The constants of the cost model: few, each with unit, meaning, standard error and source, in its device's spec.

`wafer-triton validate --fit` writes the fitted ones into the spec (`wafer_triton.device.spec`). A constant that a spec
lacks follows from the device's numbers by one of `RULES`. A device that is `like` another has its constants, scaled by
its own numbers. A device that is like none has all by the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, singledispatch
from typing import Any

from wafer_triton.count.traffic import WORD_BYTES
from wafer_triton.device import NUMBERS, PRESETS, Device, base_of
from wafer_triton.device.spec import Sourced, read
from wafer_triton.errors import ConfigError, shown
from wafer_triton.text.quantity import Legend, unit

# The device's number that a constant is in proportion to, and the exponent. Every other constant depends on a core's
# software or on the width of its instructions, and is not scaled.
SCALES = {
    "hop_cycles": ("hop_cycles", 1),
    "word_cycles": ("link_bytes_per_cycle", -1),
    "stage_cycles": ("stage_cycles", 1),
    "decode_stage_cycles": ("stage_cycles", 1),
    "gemm_group_cycles": ("macs_per_cycle_fp16", -1),
    "gemv_group_cycles": ("macs_per_cycle_fp16", -1),
    "decode_mac_cycles": ("macs_per_cycle_fp16", -1),
    "element_cycles": ("macs_per_cycle_fp16", -1),
    "mac_cycles_fp32": ("macs_per_cycle_fp32", -1),
}

# Values of constants that a spec lacks, as functions of the device's numbers and the lanes of a constant's loop; with
# the kind of each source, and the source.
RULES: dict[str, tuple[Callable[[Device, int], float], str, str]] = {
    "hop_cycles": (lambda of, _: of.hop_cycles, "derived", "hop_cycles"),
    "word_cycles": (lambda of, _: WORD_BYTES / of.link_bytes_per_cycle, "derived", "4 B over link_bytes_per_cycle"),
    "stage_cycles": (lambda of, _: of.stage_cycles, "derived", "stage_cycles"),
    "round_cycles": (lambda of, _: of.stage_cycles, "derived", "stage_cycles: a set-up is taken as one routing stage"),
    **dict.fromkeys(
        ("gemm_group_cycles", "gemv_group_cycles"),
        (lambda of, lanes: lanes / of.macs_per_cycle_fp16, "derived", "lanes over macs_per_cycle_fp16"),
    ),
    "mac_cycles_fp32": (lambda of, _: 1 / of.macs_per_cycle_fp32, "derived", "1 over macs_per_cycle_fp32"),
    "element_cycles": (lambda of, _: 1 / 32, "assumed", "a vector unit takes 32 elements a cycle"),
    "sram_bytes_per_cycle": (lambda of, _: 64, "assumed", "a core reads and writes 64 bytes a cycle"),
    "decode_stage_cycles": (lambda of, _: of.stage_cycles, "derived", "stage_cycles"),
}
HPDC = "Luczynski et al., HPDC'24, on a CS-2: 2 T_R + 1 = 5 on a wse2, T_R = 2; elsewhere in proportion to stage_cycles"
# The constants of tuned code, in the form of `RULES`: collectives as those of HPDC'24, products at the peak. All others
# take no time: a word that arrives is added in its cycle.
TUNED: dict[str, tuple[Callable[[Device, int], float], str, str]] = {
    **dict.fromkeys(
        ("stage_cycles", "round_cycles"),
        (lambda of, _: 5 * of.stage_cycles / PRESETS["wse2"].stage_cycles, "published", HPDC),
    ),
    **{
        name: RULES[name]
        for name in ("hop_cycles", "word_cycles", "gemm_group_cycles", "gemv_group_cycles", "mac_cycles_fp32")
    },
}
# Followers of each number beside the constants of `SCALES`. The price of a round takes the time of SRAM as unchanged.
FOLLOWERS: Mapping[str, str] = {
    "rows": "power_watts, wafer_cores; room for regions",
    "cols": "power_watts, wafer_cores; room for regions",
    "sram_bytes": "whether buffers fit; no time (assumed: a larger SRAM is as fast)",
    "routes": "which schedules are relayed core by core",
    "clock_hz": "power_watts; seconds = cycles / clock_hz",
    "macs_per_cycle_fp16": "shares of the peak; not sram_bytes_per_cycle",
    "macs_per_cycle_fp32": "shares of the peak",
    "power_watts": "energies = power_watts x seconds",
}
NONE = ("assumed", "not measured, left out of the price")  # of a constant without a rule
LANES = ("assumed", "not measured, taken as one")


@dataclass(frozen=True)
class Constants:
    """The constants of a device, each with its unit and meaning as metadata.

    A `decode_...` constant of 0 does not replace its general constant. Raises ConfigError for a negative
    constant.
    """

    hop_cycles: float = field(
        metadata=unit("cycles per hop", "a router forwards a word to the next router along a pre-set route")
    )
    word_cycles: float = field(metadata=unit("cycles per 32-bit word", "a link carries a word"))
    stage_cycles: float = field(
        metadata=unit("cycles per stage", "beta: a core receives, combines and sends on, or sets a circuit up")
    )
    collective_cycles: float = field(
        default=0.0, metadata=unit("cycles per reduction", "a reduction begins: tasks start, routers switch")
    )
    kernel_cycles: float = field(default=0.0, metadata=unit("cycles per program", "a program starts and ends"))
    round_cycles: float = field(
        default=0.0, metadata=unit("cycles per round", "a core sets up the exchange of whole tiles and waits for it")
    )
    packed_cycles: float = field(
        default=0.0, metadata=unit("cycles per tile and round", "more for a 16-bit tile that moves as packed words")
    )
    k_step_cycles: float = field(default=0.0, metadata=unit("cycles per step of k", "loop over k of a local product"))
    row_cycles: float = field(
        default=0.0, metadata=unit("cycles per vector instruction", "one of the n instructions of that loop")
    )
    gemm_lanes: int = field(default=1, metadata=unit("16-bit elements", "in a group of that loop"))
    gemm_group_cycles: float = field(default=0.0, metadata=unit("cycles per group", "multiply-adds of that loop"))
    gemv_lanes: int = field(default=1, metadata=unit("16-bit elements", "in a group of a matrix-vector product"))
    gemv_group_cycles: float = field(
        default=0.0, metadata=unit("cycles per group", "multiply-adds of a matrix-vector product")
    )
    mac_cycles_fp32: float = field(default=0.0, metadata=unit("cycles per multiply-add", "in fp32"))
    element_cycles: float = field(default=0.0, metadata=unit("cycles per element", "of a vector operation"))
    sram_bytes_per_cycle: float = field(
        default=float("inf"), metadata=unit("bytes per cycle", "a core reads and writes")
    )
    decode_stage_cycles: float = field(
        default=0.0, metadata=unit("cycles per stage", "decode layer: beta, a vector operation at every stage")
    )
    decode_step_cycles: float = field(
        default=0.0, metadata=unit("cycles per all-reduce step", "decode layer: control of a step, in its exchange")
    )
    decode_work_cycles: float = field(
        default=0.0,
        metadata=unit("cycles per all-reduce step", "decode layer: control of a step's local work, with timers on"),
    )
    decode_mac_cycles: float = field(
        default=0.0, metadata=unit("cycles per multiply-add", "decode layer: local products, with loads and stores")
    )
    control_cycles: float = 0.0  # per reduction, of its local work: decode_work_cycles in a decode layer

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if not value >= 0:
                raise ConfigError(f"constant {entry.name} = {shown(value)} must be a number of 0 or more")

    def of(self, family: str) -> Constants:
        """Return the constants for schedules of a family, "kernel" or "decode" (see `Schedule`)."""
        return self if family == "kernel" else self._decode

    @cached_property
    def _decode(self) -> Constants:
        own = replace(
            self,
            stage_cycles=self.decode_stage_cycles or self.stage_cycles,
            collective_cycles=self.collective_cycles + self.decode_step_cycles,
            control_cycles=self.decode_work_cycles,
        )
        return replace(own, gemv_lanes=1, gemv_group_cycles=self.decode_mac_cycles) if self.decode_mac_cycles else own


NAMES = tuple(Legend(Constants).entries)  # of all constants that a spec may hold


@singledispatch
def constants(of: Device) -> Constants:
    """Return the constants of a device: by `SCALES` from the device that it is `like`, or by `RULES`.

    The name and the power of a device have no effect. A subclass of `Device` may have a rule of its own.
    """
    if of.like is None:
        return ruled(of)
    base = ruled(PRESETS[of.like], **{name: entry.value for name, entry in read(of.like).constants.items()})
    numbers = scaled(of)
    own = {
        name: getattr(base, name) * (getattr(of, number) / getattr(PRESETS[of.like], number)) ** exponent
        for name, (number, exponent) in SCALES.items()
        if number in numbers
    }
    return replace(base, **own)


def tuned(of: Device) -> Constants:
    """Return the constants of a device by `TUNED`; no bound: a star of one word takes up to a third less (HPDC'24)."""
    values: dict[str, Any] = {name: rule(of, 1) for name, (rule, *_) in TUNED.items()}
    return Constants(**values)


def scaled(of: Device) -> tuple[str, ...]:
    """Return the numbers by which a device scales its constants: all that differ from the device that it is `like`."""
    if of.like is None:
        return ()
    numbers = dict.fromkeys(number for number, _ in SCALES.values())
    return tuple(number for number in numbers if getattr(of, number) != getattr(PRESETS[of.like], number))


def described(of: Device) -> dict[str, Sourced]:
    """Return every constant of a device by name, with its source."""
    held = {} if of.like is None else read(of.like).constants
    own, numbers, found = constants(of), scaled(of), {}
    for name in NAMES:
        value, (number, _) = getattr(own, name), SCALES.get(name, ("", 0))
        if name not in held:
            found[name] = Sourced(value, *(RULES[name][1:] if name in RULES else LANES if "_lanes" in name else NONE))
        elif number in numbers:
            entry = held[name]
            found[name] = Sourced(value, "scaled", f"by {number}; of {of.like}, {entry.kind}: {entry.source}")
        else:
            found[name] = held[name]
    return found


def described_tuned(of: Device) -> dict[str, Sourced]:
    """Return the constants of `tuned` by name, each with its source."""
    return {name: Sourced(rule(of, 1), kind, source) for name, (rule, kind, source) in TUNED.items()}


def ruled(of: Device, **held: Any) -> Constants:
    """Return the constants by `RULES`; `held` ones replace theirs, and a constant without a rule takes no time."""
    lanes = {name: held.get(f"{name[:4]}_lanes", 1) for name in RULES}
    own: dict[str, Any] = {name: rule(of, lanes[name]) for name, (rule, *_) in RULES.items()}
    return Constants(**own | held)


@dataclass(frozen=True)
class Follower:
    """A number of a device beside the same number of the base, and the predictions that follow it.

    `fitted_at` is the base's number, at which the constants were measured; None where no constant follows it.
    """

    value: Any
    base: Any
    followers: str
    fitted_at: Any


def followers(of: Device) -> dict[str, Follower]:
    """Return each number of a device with all that follows it, see `SCALES` and `FOLLOWERS`."""
    base, fitted = base_of(of), None if of.like is None else PRESETS[of.like]
    found = {}
    for number in NUMBERS:
        direct = [name for name, (by, _) in SCALES.items() if by == number]
        law = "constants in proportion: " if all(SCALES[name][1] > 0 for name in direct) else "constants inversely: "
        texts = [law + ", ".join(direct)] * bool(direct) + [FOLLOWERS.get(number, "")]
        at = fitted if direct or number == "clock_hz" else None
        here, there, measured = (None if each is None else getattr(each, number) for each in (of, base, at))
        found[number] = Follower(here, there, "; ".join(filter(None, texts)), measured)
    return found
