"""`wafer-triton validate`: the cost model against silicon, its predictions and the fit of its constants."""

from __future__ import annotations

import json as jsons
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from wafer_triton.cli.answer import tell
from wafer_triton.cli.app import FOLDER, made, refuse
from wafer_triton.device import device as find_device
from wafer_triton.draw.figure import KINDS
from wafer_triton.errors import ConfigError, writing
from wafer_triton.text.quantity import PREDICTED, Legend, digits, numbered, unit
from wafer_triton.text.table import Table

if TYPE_CHECKING:
    from wafer_triton.cost.calibrate.own import OwnFamily

PAGE = ".md"


def _validate(
    data: Path | None = None, /, *, device: str | None = None, table: str | None = None, fit: bool = False,
    out: Sequence[Path] = (), json: bool = False,
) -> int:  # fmt: skip
    if data is not None:
        from wafer_triton.cost.calibrate import own

        refuse("only for the package's measurements; leave out your own file", table=table, out=out)
        families = own.read(data, None if device is None else find_device(device))
        return _fit_own(families, json) if fit else _validate_own(families, json)
    refuse("only for your own measurements; give their file", device=device)
    if table is not None:
        refuse("only for all tables; leave out --table", fit=fit, out=out)
        return _tables(table, json)
    for file in out:
        if (file.suffix == FOLDER) != fit:
            raise ConfigError(f"--out {file}: --fit writes a folder, and without it a page or a picture is written")
    return _fit(out, json) if fit else _families(out, json)


validate = made(
    _validate,
    written={"out": (PAGE, *KINDS, FOLDER)},
    words={"device": (str | Path, "of your own measurements: a preset or a file (default: of their family)")},
)


def _families(out: Sequence[Path], json: bool) -> int:
    """Compare predictions with the package's measurements; write the page and the picture of both."""
    from wafer_triton import draw
    from wafer_triton.cost.calibrate import outside, paper, validation
    from wafer_triton.cost.calibrate.own import spread
    from wafer_triton.draw.progress import Progress

    with Progress() as progress:
        families, cells = validation.families(progress), paper.cells(progress=progress)
        points = list(outside.points())
    for file in out:
        if file.suffix.lower() == PAGE:
            with writing(file):
                file.write_text(validation.markdown(families, cells, paper.derived(), points), encoding="utf-8")
        else:
            draw.validation(file)
    answer = {
        family.name: {
            "rows": len(family.rows),
            **spread(family.errors),
            "left_out": {key: errors and spread(errors) for key, errors in family.left_out.items()},
        }
        for family in families
    }
    shown = Table.rows(validation.KINDS, validation.kind_rows([*validation.measured(), *cells]), title=SUMMED)
    written = [f"written: {file}" for file in out] or [EXPLAINED]
    return tell(json, {"families": answer}, validation.counted(cells), shown, outside.counted(points), *written)


def _tables(table: str, json: bool) -> int:
    """Compare the cells of the paper's tables, or of one, with their predictions."""
    from dataclasses import asdict

    from wafer_triton.cost.calibrate import paper, validation
    from wafer_triton.cost.calibrate.cells import TABLES, summaries
    from wafer_triton.draw.progress import Progress

    chosen = tuple(name for name in TABLES if table in ("all", *name.split(", ")))
    with Progress(brief=table != "all") as progress:
        cells = paper.cells(chosen, progress)
    derived = paper.derived(chosen)
    texts: list[str | Table] = []
    if cells:
        texts += [REPRODUCED, Table.rows(validation.CELLS, map(validation.row_of, cells), left=4)]
        missed = [cell for cell in cells if cell.verdict == "miss" and cell.note]
        notes = [f"  {', '.join(filter(None, (one.model, one.mesh, one.tokens)))}: {one.note}" for one in missed]
        texts += ["", "notes on the misses", *notes] if notes else []
        texts += ["", Table.rows(validation.KINDS, validation.kind_rows(cells), title=SUMMED), ""]
    if derived:
        rows = [(one.what, one.model, one.system, f"{one.published:g}", f"{one.value:.4g}") for one in derived]
        texts += [Table.rows(FOLLOWING, rows, title=DERIVED, left=3)]
    kinds = [asdict(kind) for kind in summaries(cells)]
    answer = {"cells": [cell.as_json() for cell in cells], "kinds": kinds, "derived": list(map(asdict, derived))}
    return tell(json, answer, *texts)


REPRODUCED = "WaferLLM (OSDI'25) beside the predictions of its program"
SUMMED = "errors are of cells that are held out"
EXPLAINED = "--table all prints every cell; --out FILE.md writes a page on what was fitted, and why cells are missed"
DERIVED = "numbers that follow from other published ones, and so are no evidence"
FOLLOWING = ("quantity", "model or product", "system", "published", "follows")


def _said(errors: dict[str, float]) -> str:
    """Return the mean and the worst of some errors in words."""
    return f"mean error {100 * errors['mean_error']:.2f} %, worst {100 * errors['worst_error']:.2f} %"


def _validate_own(families: list[OwnFamily], json: bool) -> int:
    """Print each measurement of a user beside its prediction, and the error."""
    from wafer_triton.cost.calibrate import FAMILIES
    from wafer_triton.cost.calibrate.own import spread

    answer = {}
    texts: list[str | Table] = []
    for each in families:
        errors, title = each.errors(), f"{each.family} on {each.device.name}: {numbered(len(each.rows), 'rows')}"
        rows = [
            {"row": row.name, "measured": row.measured, "predicted": row.measured * (1 + error), "error": error}
            for row, error in zip(each.rows, errors, strict=True)
        ]
        of = each.rows[0].unit
        legend = Legend({"measured": unit(of), "predicted": unit(of, PREDICTED), "error": unit("%")})
        texts += [Table(rows, legend, title=title)]
        inside = sum(abs(1 / (1 + error) - 1) <= each.band for error in errors)
        both = spread(errors)
        fitted = FAMILIES[each.family][2]
        other = f" of {fitted}" * (each.device.name != fitted)  # the band of estimates on another device is wider
        texts.append(
            f"{_said(both)}; {inside} of {len(errors)} within the family's error band{other}, {100 * each.band:.1f} %"
        )
        answer[each.family] = {"device": each.device.name, "rows": rows, "within_band": inside, **both}
    return tell(json, {"families": answer}, *texts)


def _fit_own(families: list[OwnFamily], json: bool) -> int:
    """Fit constants on a user's measurements and print them."""
    from wafer_triton.cost.calibrate.own import refitted, spread
    from wafer_triton.cost.constants import Constants

    answer, legend = {}, Legend(Constants)
    texts: list[str | Table] = []
    for one in map(refitted, families):
        rows = []
        for name, after in one.after.items():
            error = one.standard_errors[name]
            certain = "-" if error is None else f"+- {digits(error)}"
            rows.append((name, digits(one.before[name]), digits(after), certain, legend.unit(name)))
        beside = f", beside {one.beside} calibration rows" if one.beside else ""
        title = f"{one.own.family} on {one.own.device.name}: fitted on {numbered(len(one.own.rows), 'rows')}{beside}"
        texts.append(Table.rows(("constant", "now", "fitted", "standard error", "unit"), rows, title=title))
        errors = [spread(errors) for errors in (one.errors_before, one.errors_after)]
        texts.append("of these rows: {} now; {} fitted".format(*map(_said, errors)))
        answer[one.own.family] = {
            "device": one.own.device.name, "before": one.before, "after": one.after,
            "standard_errors": one.standard_errors, "errors_before": errors[0], "errors_after": errors[1],
        }  # fmt: skip
    return tell(json, {"families": answer}, *texts, "nothing written: the package's constants stay as they are")


def _fit(out: Sequence[Path], json: bool) -> int:
    """Fit the constants and the error bands on the calibration files; write them into folders."""
    from wafer_triton.cost.calibrate import fit
    from wafer_triton.cost.calibrate.own import spread
    from wafer_triton.cost.constants import Constants

    for folder in out:  # before the work
        folder.mkdir(exist_ok=True)
    constants, stages = fit.fit()
    lines, legend = [], Legend(Constants)
    for fitted in stages:
        both = spread([error for _, error in fitted.residuals])
        lines.append(f"{fitted.stage.device}, {fitted.stage.family}: {len(fitted.residuals)} rows, {_said(both)}")
        for name, value in fitted.values.items():
            error, of, meaning = fitted.errors[name], legend.unit(name), legend.label(name)
            certainty = "" if error is None else f" +- {digits(error)}"
            remark = " (as many constants as rows)" if error is None else ""
            lines.append(f"  {name:24}{digits(value):>8}{certainty} {of}{remark}: {meaning}")
        lines += [f"    {row.name:32}{100 * error:+8.2f} %" for row, error in fitted.residuals]
    specs = {name: fit.spec(name, own, stages) for name, own in constants.items()}
    for folder in out:
        with writing(folder):
            written = [made.write(folder / f"{name}.json") for name, made in specs.items()]
            written.append(folder / "bands.json")
            written[-1].write_text(jsons.dumps(fit.bands(constants), indent=2) + "\n", encoding="utf-8")
        lines += [f"written: {path}" for path in written]
    if not out:
        lines.append("nothing written; --out FOLDER writes the specs of the devices and the error bands")
    found = {name: {key: entry.as_json() for key, entry in made.constants.items()} for name, made in specs.items()}
    return tell(json, {"constants": found}, *lines)
