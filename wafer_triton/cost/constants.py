"""The constants of the cost model: few, each with unit, meaning, standard error and provenance, one file per device.

`wafer-triton fit` writes the fitted ones; a prior names its source. A device without a file gets constants that follow
from its own numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from wafer_triton.device import PRESETS, Device

FOLDER = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Constants:
    """Cycles unless the name says otherwise. Raises ValueError for a negative one."""

    hop_cycles: float  # a router forwards a word to the next router
    word_cycles: float  # a link carries a 32-bit word
    stage_cycles: float  # beta: a core receives, combines and sends on; or sets a circuit up
    collective_cycles: float = 0.0  # a reduction begins: tasks start, routers switch
    control_cycles: float = 0.0  # a reduction's local control, see decode_work_cycles; no file has it
    kernel_cycles: float = 0.0  # a program starts and ends
    round_cycles: float = 0.0  # a core sets up the exchange of whole tiles and waits for it
    packed_cycles: float = 0.0  # more for a 16-bit tile that moves as packed words, per tile and round
    k_step_cycles: float = 0.0  # a local product in a loop: per step of k
    row_cycles: float = 0.0  # per vector instruction of that loop
    gemm_lanes: int = 1  # 16-bit elements that a group of that loop holds
    gemm_group_cycles: float = 0.0  # per group
    gemv_lanes: int = 1  # 16-bit elements of a group in a matrix-vector product, one instruction over the whole tile
    gemv_group_cycles: float = 0.0
    mac_cycles_fp32: float = 0.0  # per fp32 multiply-add
    element_cycles: float = 0.0  # per element of a vector operation
    sram_bytes_per_cycle: float = float("inf")  # a core reads and writes
    decode_stage_cycles: float = 0.0  # decode: in place of stage_cycles; 0: the same
    decode_step_cycles: float = 0.0  # decode: more for each all-reduce step of a layer, in its exchange
    decode_work_cycles: float = 0.0  # decode: more for each of those steps, in its local work
    decode_mac_cycles: float = 0.0  # decode: per multiply-add of the local products; 0: as gemv_group_cycles says
    cores: int = 0  # on the whole device, by its data sheet; 0: those of the compute rectangle

    def __post_init__(self) -> None:
        for one in fields(self):
            if not getattr(self, one.name) >= 0:
                raise ValueError(f"constant {one.name} = {getattr(self, one.name)} must be 0 or more")

    def of(self, family: str) -> Constants:
        """The constants for schedules of a family, "kernel" or "decode" (see `Schedule`)."""
        if family == "kernel":
            return self
        own = replace(
            self,
            stage_cycles=self.decode_stage_cycles or self.stage_cycles,
            collective_cycles=self.collective_cycles + self.decode_step_cycles,
            control_cycles=self.decode_work_cycles,
        )
        return replace(own, gemv_lanes=1, gemv_group_cycles=self.decode_mac_cycles) if self.decode_mac_cycles else own


def constants(of: Device) -> Constants:
    """The constants of a device.

    Those of its file; of a device that a user made from a preset by changing some numbers, the preset's, changed in
    proportion; of any other device, what follows from its own numbers.
    """
    base = _base(of)
    if base is None:
        return _derived(of)
    held = Constants(**{name: entry["value"] for name, entry in described(base.name).items()})
    scales = {
        "hop_cycles": of.hop_cycles / base.hop_cycles,
        "stage_cycles": of.stage_cycles / base.stage_cycles,
        "decode_stage_cycles": of.stage_cycles / base.stage_cycles,
        "word_cycles": base.link_bytes_per_cycle / of.link_bytes_per_cycle,
        "mac_cycles_fp32": base.macs_per_cycle_fp32 / of.macs_per_cycle_fp32,
        "cores": of.cores / base.cores,
    }
    for name in ("gemm_group_cycles", "gemv_group_cycles", "decode_mac_cycles", "element_cycles"):
        scales[name] = base.macs_per_cycle_fp16 / of.macs_per_cycle_fp16
    changed = {name: getattr(held, name) * scale for name, scale in scales.items() if scale != 1}
    return replace(held, **changed)


def _base(of: Device) -> Device | None:
    """The preset with a constants file that shares most numbers with the device, if it shares the better part."""
    numbers = [one.name for one in fields(Device) if one.name != "name"]
    shared = {
        preset: sum(getattr(preset, name) == getattr(of, name) for name in numbers)
        for preset in PRESETS.values()
        if (FOLDER / f"{preset.name}.json").is_file()
    }
    if of.name in PRESETS:
        return next((preset for preset in shared if preset.name == of.name), None)
    best = max(shared, key=lambda preset: shared[preset])
    return best if 2 * shared[best] > len(numbers) else None


@cache
def described(name: str) -> Mapping[str, Mapping[str, Any]]:
    """The constants file of a device: value, standard_error, unit, meaning and provenance by name."""
    held: dict[str, Mapping[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return held


def write(name: str, entries: Mapping[str, Mapping[str, Any]], folder: Path = FOLDER) -> Path:
    """Write a constants file and return its path."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
    described.cache_clear()
    return path


def _derived(of: Device) -> Constants:
    """What follows from a device's own numbers when nobody measured more; a set-up is taken as one routing stage."""
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
