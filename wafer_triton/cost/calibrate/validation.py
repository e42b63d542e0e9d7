"""The validation table: every calibration row with its prediction and error, and errors on rows left out of a fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from textwrap import wrap

from wafer_triton import estimate
from wafer_triton.cost.calibrate import FAMILIES, Measurement, rows, tried
from wafer_triton.cost.calibrate.cells import NAMES, TABLES, VERDICTS, Cell, summaries
from wafer_triton.cost.calibrate.fit import STAGES, leave_one_out
from wafer_triton.cost.calibrate.paper import Parts
from wafer_triton.cost.constants import constants
from wafer_triton.device import device
from wafer_triton.text.progress import Progress, silent


@dataclass(frozen=True)
class Family:
    """One family's rows with predictions; errors are predicted over measured, less 1."""

    name: str
    device: str
    rows: tuple[tuple[Measurement, float], ...]
    left_out: dict[str, list[float] | None]  # errors on groups that the constants were not fitted on
    fitted: int  # constants fitted on it

    @property
    def errors(self) -> list[float]:
        """Return the relative errors of all rows that the family's stage is fitted on: MeshGEMV from 80 x 80 on."""
        (stage,) = (stage for stage in STAGES if stage.family == self.name)
        return [predicted / row.measured - 1 for row, predicted in self.rows if stage.takes(row)]


def families(progress: Progress = silent) -> list[Family]:
    """Return all families, predicted with the committed constants. Reports "families"."""
    predictions = []
    for number, stage in enumerate(STAGES, 1):
        c = constants(device(stage.device))
        predicted = tuple((row, row.predict(c)) for row in rows(stage.family))
        left_out: dict[str, list[float] | None] = {
            key: None if rest is None else [prediction / row.measured - 1 for row, prediction in rest]
            for key, rest in leave_one_out(stage, c).items()
        }
        predictions.append(Family(stage.family, stage.device, predicted, left_out, len(stage.names)))
        progress("families", number, len(STAGES))
    return sorted(predictions, key=lambda family: list(FAMILIES).index(family.name))


TITLE = "# Predicted against measured"


def markdown(of: Sequence[Family], cells: Sequence[Cell], requests: Sequence[Parts]) -> str:
    """Return the whole table as a page."""
    lines = [
        TITLE,
        "",
        "Written by `wafer-triton validate`; a test checks that it is current. Errors are predicted over measured,",
        "less 1.",
        "",
        *reproduced(cells, requests),
        "",
        "## The fit",
        "",
        "Left out: the constants are fitted on all other groups, then predict the one left out. Sources of the",
        "measurements: `wafer_triton/cost/calibrate/README.md`; constants: `wafer_triton/device/*.json`.",
        "",
        "| family | rows | fitted constants | mean error | worst error | left out: mean / worst error |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for family in of:
        left = "; ".join(f"{key}: {_spread(errors)}" for key, errors in family.left_out.items())
        errors = [abs(error) for error in family.errors]
        summary = f"{_percent(fmean(errors))} | {_percent(max(errors))}"
        lines.append(f"| {family.name} | {len(family.rows)} | {family.fitted} | {summary} | {left} |")
    lines += [
        "",
        "MeshGEMV: mean and worst are over meshes of 80 and up, on which it is fitted. The WSE-3 decode layer is",
        "one measurement: one constant is fitted on its total, its communication is predicted by constants of others.",
    ]
    lines += _not_reproduced()
    for family in of:
        lines += ["", f"## {family.name}", "", "| row | measured | predicted | error |", "| --- | ---: | ---: | ---: |"]
        for row, predicted in family.rows:
            error = _percent(predicted / row.measured - 1, sign=True)
            lines.append(f"| {row.name} | {row.measured:,.1f} {row.unit} | {predicted:,.1f} | {error} |")
    return "\n".join(lines) + "\n"


KINDS = ("the paper's cells", "cells", "fitted", "within the band", "missed", "mean error", "worst error")
REQUESTS = (
    "request", "published", "predicted", "prefill", "re-placement", "decode", "error", "left", "left, prefill on 720",
)  # fmt: skip


def kind_rows(cells: Iterable[Cell]) -> list[tuple[str, ...]]:
    """Return the rows under `KINDS`, a kind of cell each."""
    return [
        (
            kind.name, *map(str, (kind.cells, kind.fitted, kind.within, kind.misses)),
            *("-" if error is None else f"{100 * error:,.1f} %" for error in (kind.mean_error, kind.worst_error)),
        )
        for kind in summaries(cells)
    ]  # fmt: skip


def request_rows(requests: Iterable[Parts]) -> list[tuple[str, ...]]:
    """Return the rows under `REQUESTS`, in milliseconds that are published or predicted on the wafer."""
    rows = []
    for one in requests:
        whole = (one.published_seconds, one.predicted_seconds)
        seconds = (*whole, one.prefill_seconds, one.replacement_seconds, one.decode_seconds)
        error = _percent(one.published_seconds / one.predicted_seconds - 1, sign=True)
        left = one.published_seconds - one.prefill_seconds - one.decode_seconds
        elsewhere = left + one.predicted_seconds - one.elsewhere_seconds
        name = f"{one.model}, {one.input:,} in, {one.output:,} out"
        times = (f"{1e3 * time:,.1f} ms" for time in seconds)
        rows.append((name, *times, error, *(f"{1e3 * time:+,.1f} ms" for time in (left, elsewhere))))
    return rows


def _marked(head: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> list[str]:
    """Return a table in markdown, whose first `left` columns are texts."""
    rule = ["---" if number < left else "---:" for number in range(len(head))]
    return [f"| {' | '.join(row)} |" for row in (head, rule, *rows)]


_WIDTH = 116  # of the page's lines
_SAID_OF_CELLS = """
The constants are fitted on eight of these cells, in the calibration files, and on nothing else of the paper. A routing
stage of a single GEMV on a WSE-2 is taken from WSE-3 measurements; in a decode layer it is the set-up of a vector
operation. Two rows were known when that was decided: the GEMV of 16,384 x 16,384, and the vendor's pipeline. The
paper's program has one head and keys and values of full width. The full program is the model's own, of which there is
no measurement. Where weights leave little room, it takes the prompt in chunks, which are named beside its number; more
chunks are slower. Tables 2 to 4 are of all layers of a model, also where the wafer holds a part of them alone: the
authors scale the time of the part that they ran.
"""
_SAID_OF_REQUESTS = """
Prefill makes the first token, and each other token takes a decode step; tokens per second count all tokens over the
whole time. Two answers to one prompt differ by decode alone, which is as published, of 8B to a thousandth. A step takes
less than a millisecond. So prefill and re-placement are off. "Left" is the part of the published time for re-placement,
after prefill and decode. Prefill is on meshes that table 3 lacks. On 660 x 660 a core has 7 of 8B's 4,096 columns and
on 720 x 720 it has 6. So prefill is predicted to be slower than on 600 x 600, and nothing is left. On 750 x 750 a core
has 7 of 13B's 5,120 columns and on 720 x 720 it has 8. With prefill on 720 x 720 some time is left in all requests. For
8B it is less than the predicted time of the schedules that move weights and cache.
"""


def reproduced(cells: Sequence[Cell], requests: Sequence[Parts]) -> list[str]:
    """Return the lines of the paper's tables beside their predictions."""
    lines = [
        "## The paper's tables",
        "",
        "`wafer-triton reproduce` prints every cell of tables 2 to 8 of the paper, and the speeds in its text.",
        "Errors are of the cells that are not fitted.",
        "",
        *_marked(KINDS, kind_rows(cells), 1),
        "",
        *(f"- {name}: {meaning}." for name, meaning in VERDICTS.items()),
        "",
        *wrap(_SAID_OF_CELLS.strip(), _WIDTH),
    ]
    for table in TABLES:
        name = f"Table {table}: {NAMES[table]}" if table != "text" else f"The text: {NAMES[table]}"
        lines += ["", f"### {name}", ""]
        own = [cell for cell in cells if cell.table == table]
        lines += _marked(CELLS, map(row_of, own), 5)
        notes = dict.fromkeys(f"{cell.system}: {cell.note}." for cell in own if cell.verdict == "miss" and cell.note)
        lines += ["", "Notes on the misses:", "", *(f"- {note}" for note in notes)] if notes else []
    lines += [
        "",
        "### The misses of a request, part by part",
        "",
        *wrap(_SAID_OF_REQUESTS.strip(), _WIDTH),
        "",
        *_marked(REQUESTS, request_rows(requests), 1),
    ]
    return [*lines, "", *tried.lines(requests, _WIDTH)]


CELLS = (
    "quantity", "model", "system", "mesh", "tokens", "published", "its program", "error", "band", "full", "verdict",
)  # fmt: skip


def row_of(cell: Cell) -> tuple[str, ...]:
    """Return the row under `CELLS` of a cell."""
    predicted, full = ("-" if number is None else _digits(number) for number in (cell.predicted, cell.full))
    full += f" in {cell.full_chunks} chunks" if (cell.full_chunks or 1) > 1 else ""
    error = "-" if cell.error is None else _share(cell.error)
    band = "-" if cell.band is None else f"{100 * cell.band:.0f} %"
    number = cell.published if "to" in cell.published or "." in cell.published else f"{int(cell.published):,}"
    return (
        cell.what, cell.model, cell.system, cell.mesh or "-", cell.tokens or "-", f"{number} {cell.unit}", predicted,
        error, band, full, cell.verdict,
    )  # fmt: skip


def _digits(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:.4g}"


def _share(error: float) -> str:
    """Return an error in percent or, of more than twice as much, as a factor."""
    if abs(error) <= 1:
        return f"{100 * error:+.1f} %"
    return f"{_digits(1 + error)} times"


def _not_reproduced() -> list[str]:
    """Return the section on reports of the paper that the model does not predict."""
    lines = [
        "",
        "## Not reproduced",
        "",
        "For an 8192^3 MeshGEMM the paper's share of communication falls with more cores. Here it rises, however",
        "communication is counted; only its cycles on the busiest link fall. The multiply-adds of a core fall faster",
        "than the bytes over its links, and each round has a fixed cost: twice the rounds cost twice as much. So the",
        "measured tiles of 1 x 1 x 1, which hardly compute, take cycles in proportion to the side of the mesh.",
        "",
        "| device | counted | 360 x 360 | 720 x 720 |",
        "| --- | --- | ---: | ---: |",
    ]
    for wafer in ("wse2", "wse3"):
        kernels = [estimate.gemm(device=wafer, mesh=side, m=8192, k=8192, n=8192) for side in (360, 720)]
        idle = [_percent(kernel.communication_cycles / kernel.cycles) for kernel in kernels]
        carrying = [_percent(kernel.link_cycles / kernel.cycles) for kernel in kernels]
        cycles = [f"{kernel.link_cycles:,.0f}" for kernel in kernels]
        for name, figures in (
            ("share of the time in which cores do not compute", idle),
            ("share of the time in which the busiest link carries payload", carrying),
            ("cycles in which the busiest link carries payload", cycles),
        ):
            lines.append(f"| {wafer} | {name} | {figures[0]} | {figures[1]} |")
    return lines


def _spread(errors: list[float] | None) -> str:
    if errors is None:
        return "not determined"
    sizes = [abs(error) for error in errors]
    return f"{_percent(fmean(sizes))} / {_percent(max(sizes))}"


def _percent(share: float, sign: bool = False) -> str:
    text = f"{100 * share:+.2f} %" if sign else f"{100 * share:.2f} %"
    return text.replace("-0.00", "+0.00")
