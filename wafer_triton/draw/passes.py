"""The picture of a token's blocks in the regions of a model, and of the steps of one layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wafer_triton.draw.figure import COLOURS, Numbers, check_kind, legend, path_of, picture
from wafer_triton.draw.times import BLOCKS, HAND_OVER, STEPS, TOKENS, WHOLE, Timeline, TrackSpan
from wafer_triton.errors import DrawError, check_type
from wafer_triton.place.need import ENDS
from wafer_triton.text.arguments import checked

LEVEL, UPRIGHT = 0.075, 0.03  # shares of a bar's width from which its name stands in it, level or upright
ORDER = (2, 0, 4, 5, 1, 3)  # the colours of embedding, attention, feed-forward, hand-over and head in a decoder


@checked
def token(line: Timeline, path: str | Path, title: str = "") -> None:
    """Draw the blocks of a token over predicted cycles, a row for each region, and below the steps of its first layer.

    `line` is of `times.of_token` or `draw.request`, of which the first token is drawn. Raises DrawError without one.
    """
    check_type("token: line", line, Timeline, DrawError)
    check_kind(path_of(path))
    whole = next((span for span in line.spans if (span.place, span.track) == (WHOLE, TOKENS)), None)
    if whole is None:
        raise DrawError("a timeline without a token: there is nothing to draw; give one of a token or a request")
    spans = [span for span in line.spans if span.place != WHOLE and whole.start <= span.start < whole.end]
    places = [name for name in line.regions if any(span.place == name for span in spans)]
    with picture(path, 1.9 + 0.16 * len(places), title) as (figure, numbers):
        top, bottom = figure.subplots(2, 1, height_ratios=(max(1.5, 0.16 * len(places)), 0.5))
        colours = _blocks(top, [span for span in spans if span.track == BLOCKS], places, whole.start, numbers)
        _layer(bottom, spans, colours, numbers)


def _blocks(axes: Any, blocks: list[TrackSpan], places: list[str], start: float, numbers: Numbers) -> dict[str, str]:
    """Draw blocks in rows of their regions; return the colours of the kinds of blocks."""
    sums: dict[str, float] = {}
    for span in blocks:
        kind = _kind(span)
        sums[kind] = sums.get(kind, 0.0) + span.cost.cycles
    colours = dict(zip(sums, (COLOURS[at] for at in ORDER), strict=False))
    for span in blocks:
        left, row = span.start - start, places.index(span.place)
        axes.barh(row, span.cost.cycles, 0.8, left, color=colours[_kind(span)], edgecolor="white", linewidth=0.3)
    axes.set(yticks=range(len(places)), yticklabels=places, xlabel="cycles, predicted on the wafer")
    axes.set_xlim(0, max(span.end for span in blocks) - start)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter("{x:,.0f}")
    legend(axes, colours, [name for name in colours if sums[name]], beside=False)
    numbers |= {name: [cycles] for name, cycles in sums.items()}
    return colours


def _kind(span: TrackSpan) -> str:
    return span.name if span.name in (HAND_OVER, *ENDS) else span.name.split()[-1]


def _layer(axes: Any, spans: list[TrackSpan], colours: dict[str, str], numbers: Numbers) -> None:
    """Draw the steps of the first layer as one bar in the colours of their blocks, the largest with their names."""
    layer = next((span.name.split()[1] for span in spans if span.name.startswith("layer ")), None)
    own = [span for span in spans if span.track == BLOCKS and span.name.startswith(f"layer {layer} ")]
    start, end = own[0].start, own[-1].end
    steps = [span for span in spans if span.track == STEPS and start <= span.start < end]
    sums: dict[str, float] = {}
    for number, span in enumerate(steps):
        sums[span.name] = sums.get(span.name, 0.0) + span.cost.cycles
        block = next(each for each in own if each.start <= span.start < each.end)
        left, share = span.start - start, span.cost.cycles / (end - start)
        colour, faint = colours[_kind(block)], number % 2 == 1
        look = {"color": colour, "alpha": 0.55 if faint else 1, "edgecolor": "white", "linewidth": 0.3}
        axes.barh(0, span.cost.cycles, 0.9, left, **look)
        if share > UPRIGHT:
            words, ink = span.name.replace(" ", "\n"), "white" if colour == COLOURS[0] and not faint else "black"
            turn = {"rotation": 0 if share > LEVEL else 90, "ha": "center", "va": "center", "fontsize": 6}
            axes.text(left + span.cost.cycles / 2, 0, words, color=ink, **turn)
    axes.set(yticks=[0], yticklabels=[f"layer {layer}"], xlim=(0, end - start), xlabel="cycles of its steps")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    numbers |= {f"layer {layer}: {name}": [cycles] for name, cycles in sums.items()}
