"""Fits the constants of the cost model on the calibration files, for the specs of the devices.

Each stage fits a few constants on one family of measurements by least squares of the relative error. The cost model
itself predicts, so that there is no second formula. A constant that the data of its device do not determine is carried
over from the other generation, and its source says so. Hop and link costs are never carried over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wafer_triton.cost.bands import band
from wafer_triton.cost.calibrate import FAMILIES, Measurement, rows
from wafer_triton.cost.constants import Constants, ruled
from wafer_triton.device import MEASURED, device
from wafer_triton.device.spec import Sourced, Spec, read


@dataclass(frozen=True)
class Stage:
    """One fit: constants `names` of a device on a family of meshes of `least_mesh` and up.

    The other device takes over the constants `hands_on`.
    """

    device: str
    family: str
    names: tuple[str, ...]
    least_mesh: int = 0
    hands_on: tuple[str, ...] = ()

    def takes(self, row: Measurement) -> bool:
        """Return whether the stage is fitted on a measurement of its family."""
        return int(row.groups.get("mesh", self.least_mesh)) >= self.least_mesh

    def rows(self) -> list[Measurement]:
        """Return the measurements that the stage is fitted on."""
        return [row for row in rows(self.family) if self.takes(row)]


# In this order, as later stages use the constants of earlier ones.
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
    residuals: tuple[tuple[Measurement, float], ...]  # predicted over measured, less 1


ROUNDING = 1e-9  # if a constant changes relative errors by no more than this, they do not depend on it


class UndeterminedError(ValueError):
    """The rows do not determine the constants."""


def solve(
    names: Sequence[str], measurements: Sequence[Measurement], start: Constants
) -> tuple[Constants, list[float | None]]:
    """Return the constants of least squared relative errors, by Gauss-Newton, with standard errors from its Jacobian.

    One step is exact if predictions are linear in the constants. A few more steps settle which term of a maximum
    counts. Raises UndeterminedError when the rows do not determine the constants.
    """
    c, measured = start, np.array([row.measured for row in measurements])

    def errors(of: Constants) -> NDArray[np.float64]:
        return np.array([row.predict(of) for row in measurements]) / measured - 1

    for _ in range(6):
        error, columns = errors(c), []
        for name in names:
            step = 1e-4 * max(1.0, getattr(c, name))
            columns.append((errors(replace(c, **{name: getattr(c, name) + step})) - error) / step)
        slope = np.stack(columns, 1)
        sizes = np.array([max(1.0, getattr(c, name)) for name in names])
        if np.linalg.matrix_rank(slope * sizes, tol=ROUNDING) < len(names):
            raise UndeterminedError(f"{len(measurements)} rows do not determine {', '.join(names)}")
        change = np.linalg.lstsq(slope, -error, rcond=None)[0]
        updated: dict[str, Any] = {
            name: max(0.0, float(getattr(c, name) + by)) for name, by in zip(names, change, strict=True)
        }
        c = replace(c, **updated)
        if np.abs(change).max() < 1e-9:
            break
    free = len(measurements) - len(names)
    if free <= 0:
        return c, [None] * len(names)
    error = errors(c)
    return c, np.sqrt(np.diag(np.linalg.inv(slope.T @ slope)) * (error @ error) / free).tolist()


@cache  # of the package's own files, which do not change while it runs
def fit() -> tuple[dict[str, Constants], list[Fitted]]:
    """Return the constants by device, and the result of each stage, after all stages in order."""
    by_device = {name: _start(name) for name in MEASURED}
    results = []
    for stage in STAGES:
        measurements = stage.rows()
        c, errors = solve(stage.names, measurements, by_device[stage.device])
        by_device[stage.device] = c
        for taker in set(by_device) - {stage.device}:
            by_device[taker] = replace(by_device[taker], **{name: getattr(c, name) for name in stage.hands_on})
        values = {name: getattr(c, name) for name in stage.names}
        residuals = tuple((row, row.predict(c) / row.measured - 1) for row in measurements)
        results.append(Fitted(stage, values, dict(zip(stage.names, errors, strict=True)), residuals))
    return by_device, results


def _start(name: str) -> Constants:
    """Return the constants of a device before any stage, with start values for constants that stages fit."""
    found = {key for stage in STAGES for key in (stage.names if stage.device == name else stage.hands_on)}
    held = {key: entry.value for key, entry in read(name).constants.items() if key not in found}
    start = {key: _START.get(key, 0.0) for key in found if key != "stage_cycles"}  # which starts with the device's
    return ruled(device(name), **held, **start)


def spec(name: str, c: Constants, results: Sequence[Fitted]) -> Spec:
    """Return the spec of a device with the constants that the stages fitted."""
    held = read(name)
    constants = dict(held.constants)
    for result in results:
        stage = result.stage
        where = f"{FAMILIES[stage.family][0]}, {stage.family}, {len(result.residuals)} rows"
        where += f" of meshes of {stage.least_mesh} and up" * bool(stage.least_mesh)
        for key in stage.names if stage.device == name else stage.hands_on:
            if stage.device == name:
                constants[key] = Sourced(getattr(c, key), "fitted", where, result.errors[key])
            else:
                constants[key] = Sourced(getattr(c, key), "carried over", f"{stage.device}, fitted on {where}")
    return replace(held, constants=constants)


def leave_one_out(stage: Stage, start: Constants) -> dict[str, list[tuple[Measurement, float]] | None]:
    """Return predictions of a stage's rows by fits without them, for each way to group the rows.

    A row is predicted by a fit without its group. None means that the remaining rows do not determine the constants.
    """
    measurements = stage.rows()
    left: dict[str, list[tuple[Measurement, float]] | None] = {}
    for key in measurements[0].groups:
        predictions: list[tuple[Measurement, float]] = []
        for group in sorted({row.groups[key] for row in measurements}):
            rest = [row for row in measurements if row.groups[key] != group]
            try:
                c, _ = solve(stage.names, rest, start)
            except UndeterminedError:
                continue
            predictions += [(row, row.predict(c)) for row in measurements if row.groups[key] == group]
        left[key] = predictions or None
    return left


def bands(by_device: Mapping[str, Constants]) -> dict[str, Mapping[str, Any]]:
    """Return the entries of the file of error bands, by family: the errors are measured over predicted, less 1."""
    table: dict[str, Mapping[str, Any]] = {}
    for stage in STAGES:
        measurements = stage.rows()
        left = leave_one_out(stage, by_device[stage.device])
        errors = {
            key: {row.name: round(row.measured / predicted - 1, 6) for row, predicted in predictions}
            for key, predictions in left.items()
            if predictions
        }
        spans = {
            name: [min(sizes), max(sizes)]
            for name in measurements[0].sizes
            if (sizes := [size for row in measurements for size in row.sizes[name]])
        }
        table[stage.family] = {
            "rows": len(measurements),
            "constants": len(stage.names),
            "error_band": band(errors, len(measurements), len(stage.names)),
            "sizes": spans,
            "left_out": errors,
        }
    return table
