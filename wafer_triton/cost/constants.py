"""The constants of the cost model: few, each with unit, meaning, standard error and provenance, one file per device.

`wafer-triton fit` writes the fitted ones; a prior names its source. A device has the constants of the one that it is
`like`, scaled by its own numbers, or, if it is like none, constants that follow from its own numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from wafer_triton.device import PRESETS, Device

FOLDER = Path(__file__).parent / "data"


# Unit and meaning of every constant.
MEANING = {
    "hop_cycles": ("cycles per hop", "a router forwards a word to the next router along a pre-set route"),
    "word_cycles": ("cycles per 32-bit word", "a link carries a word"),
    "stage_cycles": ("cycles per stage", "beta: a core receives, combines and sends on, or sets a circuit up"),
    "collective_cycles": ("cycles per reduction", "a reduction begins: tasks start, routers switch"),
    "kernel_cycles": ("cycles per program", "a program starts and ends"),
    "round_cycles": ("cycles per round", "a core sets up the exchange of whole tiles and waits for it"),
    "packed_cycles": ("cycles per tile and round", "more for a 16-bit tile that moves as packed words"),
    "k_step_cycles": ("cycles per step of k", "loop over k of a local product"),
    "row_cycles": ("cycles per vector instruction", "one of the n instructions of that loop"),
    "gemm_lanes": ("16-bit elements", "in a group of that loop"),
    "gemm_group_cycles": ("cycles per group", "multiply-adds of that loop"),
    "gemv_lanes": ("16-bit elements", "in a group of a matrix-vector product"),
    "gemv_group_cycles": ("cycles per group", "multiply-adds of a matrix-vector product"),
    "mac_cycles_fp32": ("cycles per multiply-add", "in fp32"),
    "element_cycles": ("cycles per element", "of a vector operation"),
    "sram_bytes_per_cycle": ("bytes per cycle", "a core reads and writes"),
    "decode_stage_cycles": ("cycles per stage", "decode layer: beta, a vector operation at every stage"),
    "decode_step_cycles": ("cycles per all-reduce step", "decode layer: control of a step, in its exchange"),
    "decode_work_cycles": (
        "cycles per all-reduce step",
        "decode layer: control of a step's local work, with timers on",
    ),
    "decode_mac_cycles": ("cycles per multiply-add", "decode layer: local products and what goes with them"),
}

# The number of a device that a constant stands for, and the exponent of their proportion. Every other constant stands
# for what a core's software does, or how wide its instructions are, and stays.
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

_CHARACTERISED = "prior: third-party characterisation of WSE-3 silicon"
_STAGE = (16.0, f"{_CHARACTERISED}, a vector operation takes 15 to 17 cycles to set up")
_SIMD = (4 / 2.92, f"{_CHARACTERISED}, 2.92 fp16 multiply-adds per cycle, in groups of 4")
PRIORS: dict[str, dict[str, tuple[float, str]]] = {
    "wse3": {
        "hop_cycles": (2.0, f"{_CHARACTERISED}, 2.000 cycles per hop"),
        "word_cycles": (1.125, f"{_CHARACTERISED}, one word per 1.125 cycles"),
        "gemm_lanes": (4, "prior: SIMD width, Cerebras documentation"),
        "gemm_group_cycles": _SIMD,
        "gemv_lanes": (4, "prior: SIMD width, Cerebras documentation"),
        "gemv_group_cycles": _SIMD,
        "mac_cycles_fp32": (1 / 0.50, f"{_CHARACTERISED}, 0.50 fp32 multiply-adds per cycle"),
        "element_cycles": (1 / 2.92, f"{_CHARACTERISED}, 2.92 fp16 operations per cycle"),
        "sram_bytes_per_cycle": (24, "prior: two 64-bit reads and a 64-bit write per cycle, Cerebras documentation"),
        "decode_stage_cycles": _STAGE,
    },
    "wse2": {
        "hop_cycles": (1.0, "prior: Luczynski et al., HPDC'24"),
        "word_cycles": (1.0, "prior: Luczynski et al., HPDC'24, one word per cycle and direction"),
        "row_cycles": (0.0, "prior: not told apart from gemm_group_cycles by the measurements"),
        "gemm_lanes": (1, "prior: not told apart from gemm_group_cycles by the measurements"),
        "gemv_lanes": (4, "prior: SIMD width, Cerebras documentation"),
        "gemv_group_cycles": (_SIMD[0], f"{_SIMD[1]}; carried over from wse3"),
        "mac_cycles_fp32": (2.71, "prior: CS-2 SGEMM 33,000^3 on 750 x 750 cores, 349.0 TFLOP/s at 850 MHz"),
        "element_cycles": (1 / 2.92, f"{_CHARACTERISED}, 2.92 fp16 operations per cycle; carried over from wse3"),
        "sram_bytes_per_cycle": (24, "prior: two 64-bit reads and a 64-bit write per cycle, Cerebras documentation"),
        "decode_stage_cycles": (_STAGE[0], f"{_STAGE[1]}; carried over from wse3"),
        "decode_work_cycles": (0.0, "prior: measured without timers; control is in decode_step_cycles"),
    },
}


@dataclass(frozen=True)
class Constants:
    """The constants of a device; `MEANING` has their units and what they stand for.

    A `decode_...` constant of 0 leaves the constant in force that it would replace. Raises ValueError for a negative
    constant.
    """

    hop_cycles: float
    word_cycles: float
    stage_cycles: float
    collective_cycles: float = 0.0
    control_cycles: float = 0.0  # per reduction, of its local work: decode_work_cycles in a decode layer
    kernel_cycles: float = 0.0
    round_cycles: float = 0.0
    packed_cycles: float = 0.0
    k_step_cycles: float = 0.0
    row_cycles: float = 0.0
    gemm_lanes: int = 1
    gemm_group_cycles: float = 0.0
    gemv_lanes: int = 1
    gemv_group_cycles: float = 0.0
    mac_cycles_fp32: float = 0.0
    element_cycles: float = 0.0
    sram_bytes_per_cycle: float = float("inf")
    decode_stage_cycles: float = 0.0
    decode_step_cycles: float = 0.0
    decode_work_cycles: float = 0.0
    decode_mac_cycles: float = 0.0

    def __post_init__(self) -> None:
        for entry in fields(self):
            if not getattr(self, entry.name) >= 0:
                raise ValueError(f"constant {entry.name} = {getattr(self, entry.name)} must be 0 or more")

    def of(self, family: str) -> Constants:
        """The constants for schedules of a family, "kernel" or "decode" (see `Schedule`)."""
        return self if family == "kernel" else _of_decode(self)


@lru_cache(maxsize=256)
def _of_decode(c: Constants) -> Constants:
    own = replace(
        c,
        stage_cycles=c.decode_stage_cycles or c.stage_cycles,
        collective_cycles=c.collective_cycles + c.decode_step_cycles,
        control_cycles=c.decode_work_cycles,
    )
    return replace(own, gemv_lanes=1, gemv_group_cycles=c.decode_mac_cycles) if c.decode_mac_cycles else own


def constants(of: Device) -> Constants:
    """The constants of a device: those fitted on what it is `like`, scaled by `SCALES`, or derived from its numbers.

    Its name and its power do not count.
    """
    if of.like is None:
        return _derived(of)
    fitted = Constants(**{name: entry["value"] for name, entry in described(of.like).items()})
    numbers = scaled(of)
    own = {
        name: getattr(fitted, name) * (getattr(of, number) / getattr(PRESETS[of.like], number)) ** exponent
        for name, (number, exponent) in SCALES.items()
        if number in numbers
    }
    return replace(fitted, **own)


def scaled(of: Device) -> tuple[str, ...]:
    """The numbers by which a device scales the constants of what it is `like`: those in which the two differ."""
    if of.like is None:
        return ()
    numbers = dict.fromkeys(number for number, _ in SCALES.values())
    return tuple(number for number in numbers if getattr(of, number) != getattr(PRESETS[of.like], number))


@cache
def described(name: str) -> Mapping[str, Mapping[str, Any]]:
    """The constants file of a device: value, standard_error, unit, meaning and provenance by name."""
    entries: dict[str, Mapping[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return entries


def write(name: str, entries: Mapping[str, Mapping[str, Any]], folder: Path = FOLDER) -> Path:
    """Write a file of `folder`, of a device's constants or of error bands, and return its path."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
    described.cache_clear()
    return path


def _derived(of: Device) -> Constants:
    """What follows from a device's own numbers without measurements; a set-up is taken as one routing stage."""
    return Constants(
        hop_cycles=of.hop_cycles,
        word_cycles=4 / of.link_bytes_per_cycle,
        stage_cycles=of.stage_cycles,
        round_cycles=of.stage_cycles,
        gemm_group_cycles=1 / of.macs_per_cycle_fp16,
        gemv_group_cycles=1 / of.macs_per_cycle_fp16,
        mac_cycles_fp32=1 / of.macs_per_cycle_fp32,
        element_cycles=1 / 32,
        sram_bytes_per_cycle=64,
    )
