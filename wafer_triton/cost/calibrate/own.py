"""A user's own measurements, in the form of the calibration files: errors of predictions, and constants of a fit.

The columns of a file give the sizes and the measured number, as in `wafer_triton/cost/calibrate/*.csv`.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from wafer_triton.cost.bands import bands
from wafer_triton.cost.calibrate import FAMILIES, Measurement, records
from wafer_triton.cost.calibrate.fit import STAGES, UndeterminedError, solve
from wafer_triton.cost.constants import constants
from wafer_triton.device import PRESETS, Device, device
from wafer_triton.errors import ConfigError, WaferError
from wafer_triton.shape.read import shape_of
from wafer_triton.text.files import read_text

MOST_ROWS = 1_000  # a schedule is priced for each row
WORDS = ("phase", "model")  # columns that hold no number


@dataclass(frozen=True)
class OwnFamily:
    """The rows of a file of one family, on a device."""

    family: str
    device: Device
    rows: tuple[Measurement, ...]

    @property
    def band(self) -> float:
        """The error band of the family."""
        own: float = bands()[self.family]["error_band"]
        return own

    def errors(self, c: Any = None) -> list[float]:
        """Return the errors of all rows, predicted over measured, by constants `c` or the device's."""
        own = constants(self.device) if c is None else c
        return [row.predict(own) / row.measured - 1 for row in self.rows]


def read(path: Path, on: Device | None = None) -> list[OwnFamily]:
    """Return the measurements in a file, by family, on a device; None takes the family's measured device.

    Raises ConfigError, with the line, for other columns, for a value that is not a number and for a row that cannot be
    predicted.
    """
    try:
        table = csv.DictReader(StringIO(read_text(path)))
        names = tuple(table.fieldnames or ())
        lines = [(table.line_num, record) for record in table]  # a blank line has no record
    except csv.Error as error:
        raise ConfigError(f"{path}: no CSV that can be read ({error}); mend it, or give another file") from None
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"{path}: column {twice[0]} stands twice; leave one out")
    columns = {family: list(records(file)[0]) for family, (file, *_) in FAMILIES.items()}
    kinds = [family for family, own in columns.items() if sorted(own) == sorted(names)]
    if not kinds:
        known = "; ".join(dict.fromkeys(map(",".join, columns.values())))
        raise ConfigError(
            f"{path}: its columns are {','.join(names)[:200] or 'none'}; give those of one of these lists, "
            f"with commas between them: {known}"
        )
    if not lines or len(lines) > MOST_ROWS:
        raise ConfigError(f"{path}: {len(lines):,} rows; give from 1 to {MOST_ROWS:,}")
    found: dict[str, list[Measurement]] = {family: [] for family in kinds}
    devices = {family: on or device(FAMILIES[family][2]) for family in kinds}
    for line, record in lines:
        _checked(path, line, record)
        for family in kinds:
            try:
                found[family] += FAMILIES[family][1](record, devices[family])
                if "model" in record:
                    shape_of(record["model"]).paper_benchmark()  # raises for one with experts
            except (WaferError, ValueError) as error:
                raise ConfigError(f"{path}, line {line}: {error}") from None
        if len(kinds) > 1 and record["phase"] not in ("decode", "prefill"):
            raise ConfigError(f"{path}, line {line}: phase is {record['phase']!r}; write decode or prefill")
    return [OwnFamily(family, devices[family], tuple(own)) for family, own in found.items() if own]


def _checked(path: Path, line: int, record: dict[str, Any]) -> None:
    for name, text in record.items():
        if name is None or text is None:
            raise ConfigError(f"{path}, line {line}: as many values as there are columns are needed")
        if name in WORDS:
            continue
        whole = "cycles" not in name and name != "tokens_per_second"
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            value = 0
        if not 0 < value < 1e15:
            kind = "a whole number of at least 1" if whole else "a positive number"
            raise ConfigError(f"{path}, line {line}: {name} = {text!r} must be {kind}")
    parts = [float(record[name]) for name in ("communication_cycles", "total_cycles") if name in record]
    if parts != sorted(parts):
        raise ConfigError(f"{path}, line {line}: communication_cycles is more than total_cycles; mend one of them")


@dataclass(frozen=True)
class Refitted:
    """The result of a fit with the rows of a user: constants before and after, and errors of the user's rows."""

    own: OwnFamily
    beside: int  # calibration rows that were fitted on as well
    before: dict[str, float]
    after: dict[str, float]
    standard_errors: dict[str, float | None]
    errors_before: list[float]
    errors_after: list[float]


def refitted(own: OwnFamily) -> Refitted:
    """Return a fit of the family's constants to the user's rows, and on a preset to its calibration rows as well.

    Raises ConfigError for rows that do not determine the constants.
    """
    (stage,) = (stage for stage in STAGES if stage.family == own.family)
    beside = stage.rows() if own.device == PRESETS.get(stage.device) else []
    start = constants(own.device)
    try:
        c, errors = solve(stage.names, [*own.rows, *beside], start)
    except UndeterminedError:
        raise ConfigError(
            f"{own.family}: {len(own.rows)} rows do not determine {', '.join(stage.names)}; give more rows, of other "
            f"meshes and tiles"
        ) from None
    before, after = ({name: getattr(each, name) for name in stage.names} for each in (start, c))
    return Refitted(
        own, len(beside), before, after, dict(zip(stage.names, errors, strict=True)), own.errors(), own.errors(c)
    )


def spread(errors: Sequence[float]) -> dict[str, float]:
    """Return the mean and the worst size of relative errors."""
    sizes = [abs(error) for error in errors]
    return {"mean_error": sum(sizes) / len(sizes), "worst_error": max(sizes)}
