"""Roofs by PLMR: an estimate on a device where one resource alone takes time.

The usual code of an estimate runs on constants of which only one resource's are there. So every kind of estimate has
roofs, also where phases follow one another or groups share regions. Choices such as head groups are made for that
resource. A predicted time never falls with a constant, so no choice is faster than its roofs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from wafer_triton.cost.constants import Constants, constants
from wafer_triton.device import Device

ROOFS = {"P": "multiply-adds", "L": "hops and set-ups", "M": "SRAM bandwidth", "R": "busiest link"}
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
PATHS = [name for part in ("hops", "stages", "waiting", "set-up") for name in BOUNDS[part]]


@dataclass(frozen=True)
class _Alone(Device):
    """A device on which the resource of a letter of PLMR alone takes time."""

    letter: str = ""


@constants.register
def _(of: _Alone) -> Constants:
    plain = constants(Device(**{each.name: getattr(of, each.name) for each in fields(Device)}))
    none: dict[str, Any] = dict.fromkeys(("hop_cycles", "word_cycles", "stage_cycles"), 0.0)
    if of.letter == "P":  # multiply-adds at their peak, in each lane and cycle
        peak = dict.fromkeys(("gemm_group_cycles", "gemv_group_cycles"), 1 / of.macs_per_cycle_fp16)
        return Constants(**none | peak, mac_cycles_fp32=1 / of.macs_per_cycle_fp32)
    kept = {"L": PATHS, "M": ("sram_bytes_per_cycle",), "R": ("word_cycles",)}[of.letter]
    return Constants(**none | {name: getattr(plain, name) for name in kept})


def roofs(run: Callable[[Device], Any], chip: Device, least: bool) -> dict[str, float]:
    """Return the figure that `run` has on a device if each resource of `ROOFS` alone took time.

    A resource without any time has no roof. With `least` the figure is a time, else a rate.
    """
    numbers = {each.name: getattr(chip, each.name) for each in fields(Device)}
    found = {}
    for letter, name in ROOFS.items():
        try:
            figure = run(_Alone(**numbers, letter=letter))
        except ZeroDivisionError:  # a rate over no time at all
            continue
        if figure or not least:
            found[f"{letter}, {name}"] = float(figure)
    return found
