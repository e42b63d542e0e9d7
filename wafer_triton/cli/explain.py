"""`wafer-triton explain`: the bounds of an estimate, and the effect of each number of the device."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from wafer_triton.cli.estimate import KINDS, arguments_of, notes_of
from wafer_triton.cli.options import Command, tell
from wafer_triton.text.quantity import PREDICTED, digits, quantity

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


def _texts(found: Explanation) -> list[str]:
    """Return an explanation for people: its shares, and the effects of numbers."""
    from wafer_triton.draw.tables import table

    title = f"{found.title}, {PREDICTED}: {quantity(found.value, found.unit)}"
    shares = {name: f"{digits(100 * share)} %" for name, share in found.shares.items() if share}
    rows = [(f"share of the {found.whole}", name, share) for name, share in shares.items()]
    if found.sram_share is not None:
        rows.append(("SRAM in use", "of a core", f"{digits(100 * found.sram_share)} %"))
    if found.head_groups is not None:
        rows.append(("head groups", "", str(found.head_groups)))
    effects = [(name, _times(effect.halved), _times(effect.doubled)) for name, effect in found.effects.items()]
    head = ("number of the device", "halved", "doubled")
    label = "speed" if found.figure == "seconds" else found.label
    return [table(("", "", ""), rows, title=title, left=2), table(head, effects, title=f"\n{label}")]


def _times(ratio: float | None) -> str:
    return "does not fit" if ratio is None else f"x {digits(ratio)}"


COMMANDS = (
    Command(
        "explain",
        explain,
        kinds=tuple(replace(kind, run=explain) for kind in KINDS),
    ),
)
