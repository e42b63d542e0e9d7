"""`wafer-triton explain`: the bounds of an estimate and the changes that pay most, as text and as a picture."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from wafer_triton.cli.estimate import KINDS, arguments_of, notes_of
from wafer_triton.cli.options import Command, option, path, tell
from wafer_triton.text.quantity import PREDICTED, digits, quantity

if TYPE_CHECKING:
    from wafer_triton.compare.explain import Explanation


def explain(args: argparse.Namespace) -> int:
    """explain an estimate: its bounds, the effect of each number of the device, and the changes that pay most"""
    from wafer_triton.compare.explain import explain
    from wafer_triton.draw.progress import Progress

    out = args.draw
    del args.draw
    if out is not None:
        from wafer_triton.draw.figure import check_kind

        check_kind(out)
    arguments = arguments_of(args)
    with Progress(brief=args.kind not in ("batch", "request", "prefill")) as progress:
        found = explain(args.kind, progress=progress, **arguments)
    texts = [*_texts(found), *notes_of(args, arguments)]
    if out is not None:
        from wafer_triton.draw import explanation

        explanation(found, out)
        texts.append(f"written: {out}")
    return tell(args, found.as_json() | {"files": [str(out)] if out else []}, *texts)


def _texts(found: Explanation) -> list[str]:
    """Return an explanation for people: its shares, roofs, the effects of numbers, and the best changes."""
    from wafer_triton.draw.tables import table

    title = f"{found.title}, {PREDICTED}: {quantity(found.value, found.unit)}"
    shares = {name: f"{digits(100 * share)} %" for name, share in found.shares.items() if share}
    rows = [(f"share of the {found.whole}", name, share) for name, share in shares.items()]
    rows += [("roof", name, quantity(roof, found.unit)) for name, roof in found.roofs.items()]
    if found.sram_share is not None:
        rows.append(("SRAM in use", "of a core", f"{digits(100 * found.sram_share)} %"))
    if found.head_groups is not None:
        rows.append(("head groups", "", str(found.head_groups)))
    rows += [
        (f"change {number}", change.what, f"x {digits(change.ratio)}") for number, change in enumerate(found.best, 1)
    ]
    sign = -1 if found.figure == "seconds" else 1  # the slope of a time; the effects are of speed
    slopes = {name: sign * slope for name, slope in found.elasticities.items()}
    effects = [
        (name, _times(effect.halved), _times(effect.doubled), _slope(slopes.get(name)))
        for name, effect in found.effects.items()
    ]
    head = ("number of the device", "halved", "doubled", "per cent of 1 %")
    label = "speed" if sign < 0 else found.label
    return [table(("", "", ""), rows, title=title, left=2), table(head, effects, title=f"\n{label}")]


def _times(ratio: float | None) -> str:
    return "does not fit" if ratio is None else f"x {digits(ratio)}"


def _slope(slope: float | None) -> str:
    return "-" if slope is None else f"{slope:+.2f}"


DRAW = option("--draw", type=path, metavar="FILE", help="a picture of it as .png, .svg or .pdf too")
COMMANDS = (
    Command(
        "explain",
        explain,
        kinds=tuple(replace(kind, run=explain, options=(*kind.options, DRAW)) for kind in KINDS),
    ),
)
