"""The cost model against silicon: `validate` compares its predictions with measurements, `fit` fits its constants."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from wafer_triton.cli.options import Command, option, path, tell
from wafer_triton.errors import writing


def validate(args: argparse.Namespace) -> int:
    """compare predictions with measurements on silicon"""
    from wafer_triton.cost.calibrate import paper, validation

    if not args.json:  # before the work too: what cannot be written is told at once
        print(validation.TITLE, flush=True)
    families = validation.families()
    page = validation.markdown(families, paper.cells(), paper.parts())
    if args.write:
        with writing(args.write):
            args.write.write_text(page, encoding="utf-8")
    answer = {
        family.name: {
            "rows": len(family.rows),
            **_spread(family.errors),
            "left_out": {key: errors and _spread(errors) for key, errors in family.left_out.items()},
        }
        for family in families
    }
    shown = page if args.json else page.removeprefix(f"{validation.TITLE}\n")
    return tell(args, {"families": answer}, shown.rstrip())


def reproduce(args: argparse.Namespace) -> int:
    """every cell of the paper's tables beside its prediction; takes some ten seconds"""
    from dataclasses import asdict

    from wafer_triton.cost.calibrate import paper, validation
    from wafer_triton.draw import studies, tables
    from wafer_triton.draw.figure import check_kind

    if args.out:  # before the work
        check_kind(args.out)
    chosen = tuple(name for name in paper.TABLES if args.table in (None, *name.split(", ")))
    if not args.json:  # before the work too
        print(REPRODUCED, flush=True)
    cells = paper.cells(chosen)
    texts = [tables.table(validation.CELLS, map(validation.row_of, cells), left=5)]
    notes = dict.fromkeys(f"  {cell.system}: {cell.note}" for cell in cells if cell.verdict == "miss" and cell.note)
    texts += ["", "what is known of the misses", *notes] if notes else []
    texts += ["", tables.table(validation.KINDS, validation.kind_rows(cells), title=SUMMED)]
    requests = paper.parts() if "2" in chosen else []
    if requests:
        texts += ["", tables.table(validation.REQUESTS, validation.request_rows(requests), title=PARTS)]
    if args.out:
        studies.reproduction(cells, args.out)
        texts.append(f"written: {args.out}")
    kinds = [asdict(kind) for kind in paper.summaries(cells)]
    answer = {"cells": [cell.as_json() for cell in cells], "kinds": kinds, "requests": list(map(asdict, requests))}
    return tell(args, answer, *texts)


REPRODUCED = "WaferLLM (OSDI'25), tables 2 to 8 and text, beside what is predicted of its program and of the true one"
SUMMED = "errors are those of cells that are not fitted"
PARTS = "requests of table 2: times published, and predicted on the wafer of the paper's program"


def fit(args: argparse.Namespace) -> int:
    """fit the constants of the cost model, and their error bands, on the calibration files"""
    from wafer_triton.cost.calibrate import fit
    from wafer_triton.cost.constants import write
    from wafer_triton.draw.units import digits

    if args.folder:  # before the work
        args.folder.mkdir(parents=True, exist_ok=True)
    constants, stages = fit.fit()
    lines = []
    for fitted in stages:
        spread = _spread([error for _, error in fitted.residuals])
        lines.append(
            f"{fitted.stage.device}, {fitted.stage.family}: {len(fitted.residuals)} rows, "
            f"mean error {100 * spread['mean_error']:.2f} %, worst {100 * spread['worst_error']:.2f} %"
        )
        for name, value in fitted.values.items():
            error, (unit, meaning) = fitted.errors[name], fit.MEANING[name]
            certainty = "" if error is None else f" +- {digits(error)}"
            remark = " (as many constants as rows)" if error is None else ""
            lines.append(f"  {name:24}{digits(value):>8}{certainty} {unit}{remark}: {meaning}")
        lines += [f"    {row.name:32}{100 * error:+8.2f} %" for row, error in fitted.residuals]
    files = {device: fit.entries(device, fitted_constants, stages) for device, fitted_constants in constants.items()}
    if args.folder:
        written = files | {"bands": fit.bands(constants)}
        with writing(args.folder):
            lines += [f"written: {write(name, entries, args.folder)}" for name, entries in written.items()]
    else:
        lines.append("nothing written; --out FOLDER writes the constants files")
    return tell(args, {"constants": files}, *lines)


def _spread(errors: Sequence[float]) -> dict[str, float]:
    """Mean and worst size of relative errors."""
    sizes = [abs(error) for error in errors]
    return {"mean_error": sum(sizes) / len(sizes), "worst_error": max(sizes)}


COMMANDS = (
    Command(
        "reproduce",
        reproduce,
        (
            option("--table", choices=(*"2345678", "text"), help="of the paper (default: all, and its text)"),
            option("--out", type=path, metavar="FILE", help="also draw it: a .png, .svg or .pdf"),
        ),
    ),
    Command(
        "validate",
        validate,
        (option("--write", type=path, metavar="FILE", help="also write the page, docs/validation.md"),),
    ),
    Command(
        "fit",
        fit,
        (
            option(
                "--out",
                dest="folder",
                type=path,
                metavar="FOLDER",
                help="write the constants files there (default: print alone)",
            ),
        ),
    ),
)
