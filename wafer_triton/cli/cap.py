"""`wafer-triton cap`: cost, accuracy and performance of several runs beside each other (MoE-CAP, arXiv 2412.07067)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wafer_triton.cli.answer import tell
from wafer_triton.cli.app import made
from wafer_triton.errors import ConfigError
from wafer_triton.text.files import read_record
from wafer_triton.text.quantity import unit

NEEDED = ("cap", "predicted", "device", "tokens")
SHOWN = ("tokens_per_second", "seconds_per_pass", "s_mbu", "mbu", "s_mfu", "mfu", "distinct_experts")
OWN = {"accuracy": unit("")}
AXES = ("performance", "cost", "accuracy")


def _cap(*runs: Path, accuracy: Sequence[float] = (), watts: float | None = None, json: bool = False) -> int:
    from wafer_triton.cost.cap import Cap
    from wafer_triton.cost.price import Prediction
    from wafer_triton.text.quantity import PREDICTED, Legend
    from wafer_triton.text.table import Table

    if not runs:
        raise ConfigError("give the files of runs, each with the output of `generate --json`")
    if accuracy and len(accuracy) != len(runs):
        raise ConfigError(f"{len(accuracy)} times --accuracy for {len(runs)} runs; give one for each, in order")
    if wrong := [value for value in accuracy if not math.isfinite(value)]:
        raise ConfigError(f"--accuracy {wrong[0]} is not a finite number")
    rows = [_row(run, watts) for run in runs]
    for row, value in zip(rows, accuracy, strict=False):
        row["accuracy"] = value
    present = [name for name in rows[0] if any(row.get(name) is not None for row in rows)]
    shown = [{name: row.get(name) for name in present} for row in rows]
    texts: list[Table | str] = [Table(shown, Legend(Cap, Prediction, OWN), title=f"decode, {PREDICTED}")]
    scaled = _scaled(rows)
    if len(rows) > 1:
        head = ("run", *scaled[0])
        lines = [
            (row["run"], *(f"{axis:.2f}" for axis in axes.values())) for row, axes in zip(rows, scaled, strict=True)
        ]
        texts += ["", Table.rows(head, lines, title="scaled from 0, the worst of these runs, to 1, the best")]
    return tell(json, {"runs": rows, "scaled": scaled}, *texts)


def _row(run: Path, watts: float | None) -> dict[str, Any]:
    """Return one run's measures in decode."""
    record = _read(run)
    measures, predicted = record["cap"]["decode"], record["predicted"]["decode"]
    row: dict[str, Any] = {"run": run.stem, "device": record["device"]}
    row |= {name: measures.get(name) for name in SHOWN}
    row["joules_per_token"] = predicted.get("joules_per_token")
    if watts is not None:
        row["joules_per_token"] = watts / measures["tokens_per_second"]
    return row


def _read(path: Path) -> dict[str, Any]:
    """Return the record that `generate --json` printed last; ConfigError for a file that holds none."""
    try:
        record: dict[str, Any] = read_record(path)
        missing = [name for name in NEEDED if name not in record]
        missing += [
            f"{name} of decode"
            for name in ("cap", "predicted")
            if not missing and not isinstance(record[name].get("decode"), dict)
        ]
    except (TypeError, AttributeError):
        missing = ["all of its fields"]
    wrong = [] if missing else _wrong(record)
    if wrong:
        raise ConfigError(f"{path}: {wrong[0]}; give the last line of `generate --json`")
    if missing:
        raise ConfigError(f"{path}: no record of a run ({missing[0]} missing); give the last line of `generate --json`")
    return record


def _wrong(record: dict[str, Any]) -> list[str]:
    """Return the faults in the numbers of a record."""
    measures = {name: record["cap"]["decode"].get(name) for name in SHOWN}
    measures |= {"joules_per_token": record["predicted"]["decode"].get("joules_per_token")}
    wrong = [
        f"{name} = {value!r} is not positive"
        for name, value in measures.items()
        if (value is not None or name == "tokens_per_second")
        and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf)
    ]
    return wrong + [f"device = {record['device']!r} is no name"] * (not isinstance(record["device"], str))


def _scaled(rows: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Return, of each run, its place on every axis that all runs have, by min-max; the best is 1, and so are equals."""
    values = {
        "performance": [row["tokens_per_second"] for row in rows],
        "cost": [None if row["joules_per_token"] is None else -row["joules_per_token"] for row in rows],
        "accuracy": [row.get("accuracy") for row in rows],
    }
    scaled: list[dict[str, float]] = [{} for _ in rows]
    for axis in AXES:
        if any(value is None for value in values[axis]):
            continue
        low, high = min(values[axis]), max(values[axis])
        for place, value in zip(scaled, values[axis], strict=True):
            place[axis] = 1.0 if high == low else (value - low) / (high - low)
    return scaled


cap = made(_cap, _cap)
