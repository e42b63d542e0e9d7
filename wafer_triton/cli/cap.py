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

SHOWN = ("tokens_per_second", "seconds_per_pass", "s_mbu", "mbu", "s_mfu", "mfu", "distinct_experts")
OWN = {"accuracy": unit("")}
MOST = 1e30  # of any figure of a record


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
    """Return one run's measures in decode; ConfigError for a file that holds none."""
    record = read_record(run)
    try:
        measures, predicted = record["cap"]["decode"], record["predicted"]["decode"]
        row = {"run": run.stem, "device": record["device"], **{name: measures.get(name) for name in SHOWN}}
        if not row["tokens_per_second"] > 0:
            raise ValueError
        row["joules_per_token"] = predicted["joules_per_token"] if watts is None else watts / row["tokens_per_second"]
        if not all(0 <= row[name] < MOST for name in (*SHOWN, "joules_per_token") if row[name] is not None):
            raise ValueError
    except (AttributeError, LookupError, TypeError, ValueError):
        raise ConfigError(
            f"{run}: no record of a run with tokens of decode; give the last line of `generate --json`"
        ) from None
    return row


def _scaled(rows: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Return, of each run, its place on every axis that all runs have, by min-max; the best is 1, and so are equals."""
    values = {
        "performance": [row["tokens_per_second"] for row in rows],
        "cost": [None if row["joules_per_token"] is None else -row["joules_per_token"] for row in rows],
        "accuracy": [row.get("accuracy") for row in rows],
    }
    scaled: list[dict[str, float]] = [{} for _ in rows]
    for axis, own in values.items():
        if None not in own:
            low, high = min(own), max(own)
            for place, value in zip(scaled, own, strict=True):
                place[axis] = 1.0 if high == low else (value - low) / (high - low)
    return scaled


cap = made(_cap)
