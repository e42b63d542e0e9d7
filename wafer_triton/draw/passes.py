"""The picture of a token's blocks in the regions of a model, and of the steps of one layer."""

from __future__ import annotations

from operator import itemgetter
from pathlib import Path
from typing import Any

from wafer_triton.draw.figure import COLOURS, Numbers, check_kind, legend, path_of, picture
from wafer_triton.draw.times import BLOCKS, HAND_OVER, STEPS, TOKENS, WHOLE, Timeline, TrackSpan
from wafer_triton.errors import DrawError
from wafer_triton.place.need import ENDS

ORDER = (2, 0, 4, 5, 1, 3)  # the colours of embedding, attention, feed-forward, hand-over and head in a decoder


def token(line: Timeline, path: str | Path, title: str = "") -> None:
    """Draw the blocks of a token over predicted cycles, a row for each region, and below the steps of its first layer.

    `line` is of `times.of_token` or `draw.request`, of which the first token is drawn. Raises DrawError without one.
    """
    check_kind(path_of(path))
    whole = next((span for span in line.spans if (span.place, span.track) == (WHOLE, TOKENS)), None)
    if whole is None:
        raise DrawError("a timeline without a token: there is nothing to draw; give one of a token or a request")
    spans = [span for span in line.spans if span.place != WHOLE and whole.start <= span.start < whole.end]
    places = [name for name in line.regions if any(span.place == name for span in spans)]
    blocks, steps = [span for span in spans if span.track == BLOCKS], _steps(spans)
    sums = _sums(blocks)
    name, most = max(sums.items(), key=itemgetter(1))
    point = f"{whole.cost.cycles:,.0f} predicted cycles, {100 * most / sum(sums.values()):.0f} % in {name}"
    heights = (0.14 * len(places), 0.14 * len(steps))
    with picture(path, 1.2 + sum(heights), title, point) as (figure, numbers):
        top, bottom = figure.subplots(2, 1, height_ratios=heights)
        colours = _blocks(top, blocks, sums, places, whole.start, numbers)
        _layer(bottom, spans, steps, colours, numbers)


def _kind(span: TrackSpan) -> str:
    return span.name if span.name in (HAND_OVER, *ENDS) else span.name.split()[-1]


def _sums(blocks: list[TrackSpan]) -> dict[str, float]:
    """Return the cycles of each kind of block."""
    sums: dict[str, float] = {}
    for span in blocks:
        sums[_kind(span)] = sums.get(_kind(span), 0.0) + span.cost.cycles
    return sums


def _blocks(
    axes: Any, blocks: list[TrackSpan], sums: dict[str, float], places: list[str], start: float, numbers: Numbers
) -> dict[str, str]:  # fmt: skip
    """Draw blocks in rows of their regions; return the colours of the kinds of blocks."""
    colours = dict(zip(sums, (COLOURS[at] for at in ORDER), strict=False))
    for span in blocks:
        left, row = span.start - start, places.index(span.place)
        axes.barh(row, span.cost.cycles, 0.8, left, color=colours[_kind(span)], edgecolor="white", linewidth=0.3)
    axes.set(yticks=range(len(places)), yticklabels=places, xlabel="cycles of the token, predicted on the wafer")
    axes.set_xlim(0, max(span.end for span in blocks) - start)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter("{x:,.0f}")
    legend(axes, colours, [name for name in colours if sums[name]], beside=False)
    numbers |= {name: [cycles] for name, cycles in sums.items()}
    return colours


def _layer_of(spans: list[TrackSpan]) -> str:
    """Return the name of the first layer."""
    return next(" ".join(span.name.split()[:2]) for span in spans if span.name.startswith("layer "))


def _steps(spans: list[TrackSpan]) -> dict[tuple[str, str], list[TrackSpan]]:
    """Return the steps of the first layer by the kind of their block and their name."""
    own = [span for span in spans if span.track == BLOCKS and span.name.startswith(f"{_layer_of(spans)} ")]
    found: dict[tuple[str, str], list[TrackSpan]] = {}
    for span in spans:
        if span.track == STEPS and own[0].start <= span.start < own[-1].end:
            block = next(each for each in own if each.start <= span.start < each.end)
            found.setdefault((_kind(block), span.name), []).append(span)
    return found


def _layer(
    axes: Any, spans: list[TrackSpan], steps: dict[tuple[str, str], list[TrackSpan]], colours: dict[str, str],
    numbers: Numbers,
) -> None:  # fmt: skip
    """Draw the steps of the first layer, a row for each, in the colours of their blocks."""
    layer, start = _layer_of(spans), min(span.start for each in steps.values() for span in each)
    for row, ((kind, name), each) in enumerate(steps.items()):
        cycles = sum(span.cost.cycles for span in each)
        axes.broken_barh(
            [(span.start - start, span.cost.cycles) for span in each], (row - 0.4, 0.8), color=colours[kind]
        )
        end = each[-1].end - start
        axes.annotate(f"{cycles:,.0f}", (end, row), (2, 0), textcoords="offset points", va="center", fontsize=6.5)
        before = numbers.get(f"{layer}: {name}", [0.0])[0]
        numbers[f"{layer}: {name}"] = [before + cycles]
    axes.set(yticks=range(len(steps)), yticklabels=[name for _, name in steps], xlabel=f"cycles of {layer}")
    axes.margins(x=0.1)
    axes.set_xlim(left=0)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter("{x:,.0f}")
