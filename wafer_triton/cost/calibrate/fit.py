"""Fits the constants of the cost model on the calibration files, and writes the constants files of the devices.

Each stage fits a few constants on one family of measurements by least squares of the relative error; the cost model
itself predicts, so there is no second formula. A constant that the data of its device cannot tell is carried over from
the other generation, and says so; hop and link costs never are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wafer_triton.cost.calibrate import FAMILIES, Row, rows
from wafer_triton.cost.constants import Constants
from wafer_triton.device import device


@dataclass(frozen=True)
class Stage:
    """One fit: which constants of which device on which family, and afterwards what the other device takes over."""

    device: str
    family: str
    names: tuple[str, ...]
    least_mesh: int = 0
    hands_on: tuple[str, ...] = ()

    def rows(self) -> list[Row]:
        """The measurements that it is fitted on."""
        return [row for row in rows(self.family) if int(row.groups.get("mesh", self.least_mesh)) >= self.least_mesh]


# In this order, as later ones build on earlier ones.
STAGES = (
    Stage(
        "wse3",
        "MeshGEMM",
        ("kernel_cycles", "round_cycles", "packed_cycles", "k_step_cycles", "row_cycles"),
        hands_on=("kernel_cycles", "round_cycles", "packed_cycles"),
    ),
    # Meshes below 80 run through before all of their cores have started.
    Stage(
        "wse3", "MeshGEMV", ("collective_cycles", "stage_cycles"), 80, hands_on=("collective_cycles", "stage_cycles")
    ),
    Stage(
        "wse2",
        "WSE-2 decode",
        ("decode_step_cycles", "decode_mac_cycles"),
        hands_on=("decode_step_cycles", "decode_mac_cycles"),
    ),
    Stage("wse2", "WSE-2 prefill", ("k_step_cycles", "gemm_group_cycles")),
    Stage("wse3", "WSE-3 decode layer", ("decode_work_cycles",)),
)

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
    "cores": ("cores", "on the whole device"),
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
        "cores": (900_000, "prior: Cerebras data sheet"),
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
        "cores": (850_000, "prior: Cerebras data sheet"),
    },
}
_START = {
    "kernel_cycles": 80.0,
    "round_cycles": 80.0,
    "k_step_cycles": 40.0,
    "gemm_group_cycles": 1.0,
    "decode_mac_cycles": 1.0,
}


@dataclass(frozen=True)
class Fitted:
    """The result of one stage: values, standard errors (None where there are as many constants as rows), residuals."""

    stage: Stage
    values: dict[str, float]
    errors: dict[str, float | None]
    residuals: tuple[tuple[Row, float], ...]  # predicted over measured, less 1


class UndeterminedError(ValueError):
    """The rows do not tell the constants apart."""


def solve(names: Sequence[str], on: Sequence[Row], start: Constants) -> tuple[Constants, list[float | None]]:
    """Least squares of relative errors over the named constants: Gauss-Newton, and standard errors from its Jacobian.

    Exact after one step where predictions are linear in the constants; a few more settle what hides behind what.
    Raises UndeterminedError when the rows do not tell the constants apart.
    """
    c, measured = start, np.array([row.measured for row in on])
    for _ in range(6):
        error = np.array([row.predict(c) for row in on]) / measured - 1
        columns = []
        for name in names:
            step = 1e-4 * max(1.0, getattr(c, name))
            moved = replace(c, **{name: getattr(c, name) + step})
            columns.append((np.array([row.predict(moved) for row in on]) / measured - 1 - error) / step)
        slope = np.stack(columns, 1)
        if np.linalg.matrix_rank(slope) < len(names):
            raise UndeterminedError(f"{len(on)} rows do not determine {', '.join(names)}")
        change = np.linalg.lstsq(slope, -error, rcond=None)[0]
        found: dict[str, Any] = {
            name: max(0.0, float(getattr(c, name) + by)) for name, by in zip(names, change, strict=True)
        }
        c = replace(c, **found)
        if np.abs(change).max() < 1e-9:
            break
    free = len(on) - len(names)
    if free <= 0:
        return c, [None] * len(names)
    error = np.array([row.predict(c) for row in on]) / measured - 1
    spread = np.sqrt(np.diag(np.linalg.inv(slope.T @ slope)) * (error @ error) / free)
    return c, [float(one) for one in spread]


def fit() -> tuple[dict[str, Constants], list[Fitted]]:
    """All stages, from the priors on: the constants by device, and what each stage found."""
    found = {}
    for name, own in PRIORS.items():
        held: dict[str, Any] = {key: value for key, (value, _) in own.items()}
        found[name] = Constants(**{"stage_cycles": device(name).stage_cycles} | _START | held)
    results = []
    for stage in STAGES:
        on = stage.rows()
        c, errors = solve(stage.names, on, found[stage.device])
        found[stage.device] = c
        for other in set(found) - {stage.device}:
            found[other] = replace(found[other], **{name: getattr(c, name) for name in stage.hands_on})
        values = {name: getattr(c, name) for name in stage.names}
        residuals = tuple((row, row.predict(c) / row.measured - 1) for row in on)
        results.append(Fitted(stage, values, dict(zip(stage.names, errors, strict=True)), residuals))
    return found, results


def entries(name: str, c: Constants, results: Sequence[Fitted]) -> dict[str, Mapping[str, Any]]:
    """What the constants file of a device says."""
    made: dict[str, Mapping[str, Any]] = {}
    for key, (unit, meaning) in MEANING.items():
        error: float | None = None
        provenance = PRIORS[name].get(key, (0, ""))[1]
        for one in results:
            where = f"{FAMILIES[one.stage.family][0]}, {one.stage.family}, {len(one.residuals)} rows"
            where += f" of meshes of {one.stage.least_mesh} and up" * bool(one.stage.least_mesh)
            if key in one.stage.names and one.stage.device == name:
                provenance, error = f"fitted on {where}", one.errors[key]
            elif key in one.stage.hands_on and one.stage.device != name:
                provenance = f"carried over from {one.stage.device}, fitted on {where}"
        made[key] = {
            "value": getattr(c, key),
            "standard_error": error,
            "unit": unit,
            "meaning": meaning,
            "provenance": provenance,
        }
    return made


def leave_one_out(stage: Stage, start: Constants) -> dict[str, list[float] | None]:
    """For each way to group a stage's rows: the relative errors on each group when it is fitted on all others.

    None where the remaining rows do not determine the constants.
    """
    on = stage.rows()
    left: dict[str, list[float] | None] = {}
    for key in on[0].groups:
        errors: list[float] = []
        for group in sorted({row.groups[key] for row in on}):
            rest = [row for row in on if row.groups[key] != group]
            try:
                c, _ = solve(stage.names, rest, start)
            except UndeterminedError:
                continue
            errors += [row.predict(c) / row.measured - 1 for row in on if row.groups[key] == group]
        left[key] = errors or None
    return left
