"""The cost model against silicon: `validate` compares its predictions with measurements, `fit` fits its constants."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from wafer_triton.cli.options import Command, file_of, option, path, tell
from wafer_triton.device import device
from wafer_triton.errors import ConfigError, writing
from wafer_triton.text.table import Table

if TYPE_CHECKING:
    from wafer_triton.cost.calibrate.own import OwnFamily


def validate(args: argparse.Namespace) -> int:
    """compare predictions with measurements on silicon, or with your own"""
    if args.data:
        return _validate_own(args)
    if args.device is not None:
        raise ConfigError(f"--device {args.device}: it stands for your own measurements; give their file")
    from wafer_triton.cost.calibrate import paper, validation
    from wafer_triton.cost.calibrate.own import spread
    from wafer_triton.draw.progress import Progress

    if not args.json:  # before the work too: a closed stdout raises at once
        print(validation.TITLE, flush=True)
    with Progress() as progress:
        families = validation.families(progress)
        page = validation.markdown(families, paper.cells(progress=progress), paper.derived())
    if args.write:
        with writing(args.write):
            args.write.write_text(page, encoding="utf-8")
    answer = {
        family.name: {
            "rows": len(family.rows),
            **spread(family.errors),
            "left_out": {key: errors and spread(errors) for key, errors in family.left_out.items()},
        }
        for family in families
    }
    shown = page if args.json else page.removeprefix(f"{validation.TITLE}\n")
    return tell(args.json, {"families": answer}, shown.rstrip(), *([f"written: {args.write}"] if args.write else []))


def reproduce(args: argparse.Namespace) -> int:
    """compare the cells of the paper's tables with their predictions; takes some ten seconds"""
    from dataclasses import asdict

    from wafer_triton.cost.calibrate import paper, validation
    from wafer_triton.cost.calibrate.cells import TABLES, summaries
    from wafer_triton.draw.progress import Progress

    chosen = tuple(name for name in TABLES if args.table in (None, *name.split(", ")))
    if not args.json:  # before the work
        print(REPRODUCED, flush=True)
    with Progress(brief=args.table is not None) as progress:
        cells = paper.cells(chosen, progress)
    derived = paper.derived(chosen)
    texts: list[str | Table] = []
    if cells:
        texts += [Table.rows(validation.CELLS, map(validation.row_of, cells), left=4)]
        notes = [f"  {cell.model}, {cell.mesh}: {cell.note}" for cell in cells if cell.verdict == "miss" and cell.note]
        texts += ["", "notes on the misses", *notes] if notes else []
        texts += ["", Table.rows(validation.KINDS, validation.kind_rows(cells), title=SUMMED), ""]
    if derived:
        rows = [(one.what, one.model, one.system, f"{one.published:g}", f"{one.value:.4g}") for one in derived]
        texts += [Table.rows(FOLLOWING, rows, title=DERIVED, left=3)]
    kinds = [asdict(kind) for kind in summaries(cells)]
    answer = {"cells": [cell.as_json() for cell in cells], "kinds": kinds, "derived": list(map(asdict, derived))}
    return tell(args.json, answer, *texts)


REPRODUCED = "WaferLLM (OSDI'25), tables 2 to 8 and text, beside the predictions of its program"
SUMMED = "errors are of cells that are held out"
DERIVED = "numbers that follow from other published ones, and so are no evidence"
FOLLOWING = ("quantity", "model or product", "system", "published", "follows")


def _rows(number: int) -> str:
    return f"{number:,} row{'s' * (number != 1)}"


def _measured(args: argparse.Namespace) -> list[OwnFamily]:
    from wafer_triton.cost.calibrate import own

    return own.read(args.data, None if args.device is None else device(args.device))


def _validate_own(args: argparse.Namespace) -> int:
    """Return how far predictions of a user's measurements are off."""
    from wafer_triton.cost.calibrate import FAMILIES, own

    if args.write:
        raise ConfigError(f"--write {args.write}: the page has the package's measurements; leave out the file")
    answer = {}
    texts: list[str | Table] = []
    for each in _measured(args):
        errors, title = each.errors(), f"{each.family} on {each.device.name}: {_rows(len(each.rows))}"
        rows = [
            (row.name, f"{row.measured:,.1f} {row.unit}", f"{row.measured * (1 + error):,.1f}", f"{100 * error:+.2f} %")
            for row, error in zip(each.rows, errors, strict=True)
        ]
        texts += [Table.rows(("row", "measured", "predicted on the wafer", "error"), rows, title=title)]
        inside = sum(abs(1 / (1 + error) - 1) <= each.band for error in errors)
        both = own.spread(errors)
        fitted = FAMILIES[each.family][2]
        other = f" of {fitted}" * (each.device.name != fitted)  # the band of estimates on another device is wider
        texts.append(
            f"mean error {100 * both['mean_error']:.2f} %, worst {100 * both['worst_error']:.2f} %; {inside} of "
            f"{len(errors)} within the family's error band{other}, {100 * each.band:.1f} %"
        )
        answer[each.family] = {"device": each.device.name, "errors": errors, "within_band": inside, **both}
    return tell(args.json, {"families": answer}, *texts)


def _fit_own(args: argparse.Namespace) -> int:
    """Fit constants on a user's measurements and print them; return the exit code."""
    from wafer_triton.cost.calibrate import own
    from wafer_triton.cost.constants import Constants
    from wafer_triton.text.quantity import Legend, digits

    if args.folder:
        raise ConfigError(f"--out {args.folder}: constants of your own are shown, not written; leave it out")
    answer, legend = {}, Legend(Constants)
    texts: list[str | Table] = []
    for made in map(own.refitted, _measured(args)):
        rows = []
        for name, after in made.after.items():
            error = made.standard_errors[name]
            certain = "-" if error is None else f"+- {digits(error)}"
            rows.append((name, digits(made.before[name]), digits(after), certain, legend.unit(name)))
        beside = f", beside {made.beside} calibration rows" if made.beside else ""
        title = f"{made.own.family} on {made.own.device.name}: fitted on {_rows(len(made.own.rows))}{beside}"
        texts.append(Table.rows(("constant", "now", "fitted", "standard error", "unit"), rows, title=title))
        errors = [own.spread(errors) for errors in (made.errors_before, made.errors_after)]
        texts.append(
            "errors of these rows: mean {:.2f} %, worst {:.2f} % now; mean {:.2f} %, worst {:.2f} % fitted".format(
                *(100 * each[name] for each in errors for name in ("mean_error", "worst_error"))
            )
        )
        answer[made.own.family] = {
            "device": made.own.device.name, "before": made.before, "after": made.after,
            "standard_errors": made.standard_errors, "errors_before": errors[0], "errors_after": errors[1],
        }  # fmt: skip
    return tell(args.json, {"families": answer}, *texts, "nothing written: the package's constants stay as they are")


def fit(args: argparse.Namespace) -> int:
    """fit the constants of the cost model, and their error bands, on the calibration files or your own"""
    if args.data:
        return _fit_own(args)
    if args.device is not None:
        raise ConfigError(f"--device {args.device}: it stands for your own measurements; give their file with --data")
    from wafer_triton.cost.calibrate import fit
    from wafer_triton.cost.calibrate.own import spread
    from wafer_triton.cost.constants import Constants
    from wafer_triton.text.quantity import Legend, digits

    if args.folder:  # before the work
        args.folder.mkdir(exist_ok=True)
    constants, stages = fit.fit()
    lines, legend = [], Legend(Constants)
    for fitted in stages:
        both = spread([error for _, error in fitted.residuals])
        lines.append(
            f"{fitted.stage.device}, {fitted.stage.family}: {len(fitted.residuals)} rows, "
            f"mean error {100 * both['mean_error']:.2f} %, worst {100 * both['worst_error']:.2f} %"
        )
        for name, value in fitted.values.items():
            error, unit, meaning = fitted.errors[name], legend.unit(name), legend.label(name)
            certainty = "" if error is None else f" +- {digits(error)}"
            remark = " (as many constants as rows)" if error is None else ""
            lines.append(f"  {name:24}{digits(value):>8}{certainty} {unit}{remark}: {meaning}")
        lines += [f"    {row.name:32}{100 * error:+8.2f} %" for row, error in fitted.residuals]
    specs = {name: fit.spec(name, own, stages) for name, own in constants.items()}
    if args.folder:
        with writing(args.folder):
            written = [made.write(args.folder / f"{name}.json") for name, made in specs.items()]
            written.append(args.folder / "bands.json")
            written[-1].write_text(json.dumps(fit.bands(constants), indent=2) + "\n", encoding="utf-8")
        lines += [f"written: {path}" for path in written]
    else:
        lines.append("nothing written; --out FOLDER writes the specs of the devices and the error bands")
    found = {name: {key: entry.as_json() for key, entry in made.constants.items()} for name, made in specs.items()}
    return tell(args.json, {"constants": found}, *lines)


ON = option(
    "--device", metavar="NAME|FILE",
    help="of your measurements: a preset, a .toml or .json file (default: the device that the family was measured on)",
)  # fmt: skip
COMMANDS = (
    Command(
        "reproduce",
        reproduce,
        (option("--table", choices=(*"2345678", "text"), help="of the paper (default: all, and its text)"),),
    ),
    Command(
        "validate",
        validate,
        (
            option("data", nargs="?", type=path, metavar="FILE.csv", help="your own measurements, in place of these"),
            ON,
            option("--write", type=file_of(".md"), metavar="FILE.md", help="also write the page there"),
        ),
    ),
    Command(
        "fit",
        fit,
        (
            option("--data", type=path, metavar="FILE.csv", help="your own measurements (default: the package's)"),
            ON,
            option(
                "--out",
                dest="folder",
                type=path,
                metavar="FOLDER",
                help="write the specs of devices there (default: print alone)",
            ),
        ),
    ),
)
