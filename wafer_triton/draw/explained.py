"""The picture of an explained estimate: shares of the time, roofs, and the effect of each number of the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from wafer_triton.draw.figure import COLOURS, COLUMN, REST, picture
from wafer_triton.errors import DrawError
from wafer_triton.text.quantity import PREDICTED, quantity

if TYPE_CHECKING:
    from wafer_triton.compare.explain import Effect, Explanation

_LETTERS = 40  # of a line below an axis


def explanation(of: Explanation, path: str | Path, *, title: str = "") -> None:
    """Draw an explanation: the shares of the time, a roof for each letter of PLMR, and the effect of each number."""
    if not hasattr(of, "effects"):
        raise DrawError(f"an explanation is of type {type(of).__name__}; give the result of `explain`")
    shown = {name: effect for name, effect in of.effects.items() if effect.matters}
    heights = [0.45, *([0.75] if of.roofs else []), 0.2 + 0.19 * max(1, len(shown))]
    name, most = max(of.shares.items(), key=itemgetter(1))
    point = f"Largest share: {name}, {100 * most:.0f} % of the {of.whole}"
    with picture(path, 1.4 + sum(heights), said(title or of.title), point, width=COLUMN) as (figure, numbers):
        many = list(figure.subplots(len(heights), 1, height_ratios=heights))
        _shares(many[0], of, numbers)
        if of.roofs:
            _roofs(many[1], of, numbers)
        _effects(many[-1], of, shown, numbers)


def _shares(axes: Any, of: Explanation, numbers: dict[str, Sequence[float]]) -> None:
    """Draw the shares of the time as one bar, each with its name."""
    left = 0.0
    names = [name for name, share in of.shares.items() if share > 0]
    for number, name in enumerate(names):
        share = 100 * of.shares[name]
        axes.barh(0, share, 0.5, left, color=COLOURS[number % len(COLOURS)] if share >= 3 else REST, ec="white", lw=0.4)
        if share >= 6:
            axes.text(left + share / 2, 0, f"{share:.0f}", ha="center", va="center", fontsize=7, color="white")
        left += share
    handles = [(name, COLOURS[number % len(COLOURS)]) for number, name in enumerate(names) if of.shares[name] >= 0.03]
    for name, colour in handles:
        axes.plot([], [], "s", ms=5, color=colour, label=name)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.5), ncols=4, columnspacing=0.8, handletextpad=0.1)
    axes.set(xlim=(0, 100), yticks=[], title=f"share of the {of.whole} (%)")
    axes.spines["left"].set_visible(False)
    numbers["shares"] = [of.shares[name] for name in names]


def _roofs(axes: Any, of: Explanation, numbers: dict[str, Sequence[float]]) -> None:
    """Draw the speed that each letter alone allows, on a logarithmic scale, and the predicted speed."""
    roofs = {name: roof for name, roof in of.roofs.items() if roof}
    axes.barh(range(len(roofs)), roofs.values(), 0.6, color="#bdd7e7")
    for number, (name, roof) in enumerate(roofs.items()):
        axes.text(of.value, number, f" {name}: {quantity(roof, of.unit)}", va="center", fontsize=6.5)
    axes.axvline(of.value, color=COLOURS[5], lw=1.2)
    axes.set(xscale="log", yticks=[], xlim=(of.value / 2, max(roofs.values()) * 1.5))
    axes.set_title(f"roofs by PLMR; line: {quantity(of.value, of.unit)}")
    axes.tick_params(axis="x", which="both", labelsize=6)
    axes.invert_yaxis()
    numbers["roofs"] = list(roofs.values())


def _effects(axes: Any, of: Explanation, shown: Mapping[str, Effect], numbers: dict[str, Sequence[float]]) -> None:
    """Draw the change by each number of the device that matters, halved and doubled."""
    from matplotlib.patches import Patch

    for number, (name, effect) in enumerate(shown.items()):
        for ratio, colour in ((effect.halved, COLOURS[1]), (effect.doubled, COLOURS[0])):
            axes.barh(number, 0.0 if ratio is None else 100 * (ratio - 1), 0.7, color=colour)
        missing = [word for word, ratio in (("halved", effect.halved), ("doubled", effect.doubled)) if ratio is None]
        if missing:
            axes.text(1, number, f"{missing[0]}: does not fit", fontsize=6.5, va="center", color=COLOURS[5])
        numbers[name] = [effect.halved or 0.0, effect.doubled or 0.0]
    rest = [name for name in of.effects if name not in shown]
    axes.axvline(0, color="black", lw=0.6)
    axes.set(yticks=range(len(shown)), yticklabels=list(shown))
    axes.set_xlabel(fill(f"change of {of.label} (%)" + f"; none by {', '.join(rest)}" * bool(rest), _LETTERS))
    handles = [Patch(color=COLOURS[1], label="halved"), Patch(color=COLOURS[0], label="doubled")]
    axes.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0, handlelength=1)
    axes.tick_params(axis="y", length=0, labelsize=6.5)
    axes.invert_yaxis()


def said(title: str) -> str:
    """Return a title that says that times are predicted."""
    return title if PREDICTED in title else ", ".join(filter(None, (title, PREDICTED)))
