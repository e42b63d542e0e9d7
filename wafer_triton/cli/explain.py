"""`wafer-triton explain`: the bounds of an estimate, and the effect of each number of the device."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from wafer_triton.cli.estimate import KINDS, arguments_of, notes_of
from wafer_triton.cli.options import Command, tell
from wafer_triton.text.quantity import PREDICTED, Legend, digits, quantity, unit
from wafer_triton.text.table import Table

if TYPE_CHECKING:
    from wafer_triton.compare.explain import Explanation


def explain(args: argparse.Namespace) -> int:
    """explain an estimate: its bounds, and the effect of each number of the device"""
    from wafer_triton.compare.explain import explain
    from wafer_triton.draw.progress import Progress

    arguments = arguments_of(args)
    with Progress(brief=args.kind not in ("batch", "request", "prefill")) as progress:
        found = explain(args.kind, progress=progress, **arguments)
    texts = [*_texts(found), *notes_of(args, arguments)]
    return tell(args, found.as_json(), *texts)


def _texts(found: Explanation) -> list[str | Table]:
    """Return an explanation for people: its shares, and the effects of numbers."""
    title = f"{found.title}, {PREDICTED}: {quantity(found.value, found.unit)}"
    shares = {name: share for name, share in found.shares.items() if share}
    parts = {"share": shares, "sram_share": found.sram_share, "head_groups": found.head_groups}
    shares_of = {"share": unit("%", f"share of the {found.whole}")}
    legend = Legend(shares_of, {"sram_share": unit("%", "SRAM of a core in use"), "head_groups": unit("groups")})
    effects = [(name, _times(effect.halved), _times(effect.doubled)) for name, effect in found.effects.items()]
    head = ("number of the device", "halved", "doubled")
    label = "speed" if found.figure == "seconds" else found.label
    return [Table([parts], legend, title=title, upright=True), "", Table.rows(head, effects, title=label)]


def _times(ratio: float | None) -> str:
    return "does not fit" if ratio is None else f"x {digits(ratio)}"


COMMANDS = (
    Command(
        "explain",
        explain,
        kinds=tuple(replace(kind, run=explain) for kind in KINDS),
    ),
)
