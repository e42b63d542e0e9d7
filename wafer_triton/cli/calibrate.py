"""The cost model against silicon: `validate` compares its predictions with measurements, `fit` fits its constants."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from wafer_triton.cli.options import Command, option, path, tell
from wafer_triton.errors import writing


def validate(args: argparse.Namespace) -> int:
    """compare predictions with measurements on silicon"""
    from wafer_triton.cost.calibrate import validation

    if args.write:  # before the work
        args.write.parent.mkdir(parents=True, exist_ok=True)
        args.write.open("a").close()
    if not args.json:  # before the work too: what cannot be written is told at once
        print(validation.TITLE, flush=True)
    families, facts = validation.families(), validation.facts()
    page = validation.markdown(families, facts)
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


def fit(args: argparse.Namespace) -> int:
    """fit the constants of the cost model, and their error bands, on the calibration files"""
    from wafer_triton.cost.calibrate import fit
    from wafer_triton.cost.constants import write
    from wafer_triton.draw.units import digits

    if args.out:  # before the work
        args.out.mkdir(parents=True, exist_ok=True)
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
    if args.out:
        written = files | {"bands": fit.bands(constants)}
        with writing(args.out):
            lines += [f"written: {write(name, entries, args.out)}" for name, entries in written.items()]
    else:
        lines.append("nothing written; --out FOLDER writes the constants files")
    return tell(args, {"constants": files}, *lines)


def _spread(errors: Sequence[float]) -> dict[str, float]:
    """Mean and worst size of relative errors."""
    sizes = [abs(error) for error in errors]
    return {"mean_error": sum(sizes) / len(sizes), "worst_error": max(sizes)}


COMMANDS = (
    Command(
        "validate",
        validate,
        (option("--write", type=path, metavar="FILE", help="also write the page, docs/validation.md"),),
    ),
    Command(
        "fit",
        fit,
        (option("--out", type=path, metavar="FOLDER", help="write the constants files there (default: print alone)"),),
    ),
)
