"""The size and the colours of all pictures, their files, and the numbers that these carry.

A picture is 5 inches wide in type of 8 points, which stays legible at a width of 8 cm. Its title begins with its point.
Categories have the colours of Okabe and Ito, amounts the colours of viridis. Colour-blind readers can distinguish both;
viridis differs in grey as well. matplotlib is imported when a picture is made (`pip install 'wafer-triton[draw]'`).
"""

from __future__ import annotations

import json
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from wafer_triton.errors import BackendError, DrawError, writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 5.0  # inches: 8 points are 5 at a width of 8 cm
COLUMN = 3.5  # inches: of pictures of one panel
DOTS = 200  # an inch
_LETTERS, _LINE = 15.5, 0.15  # of a title: letters an inch, inches a line
KINDS = (".png", ".svg", ".pdf")
# Okabe and Ito, "Color Universal Design" (2008), black last; yellow is left out, as it is faint on white.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#000000")
MARKERS = "os^DvPX"  # one for each colour, so that lines differ without it
REST = "#5c5c5c"  # of names too small for a colour of their own
AMOUNTS = "viridis"
STYLE = {
    "font.size": 8, "axes.titlesize": 8, "legend.fontsize": 7, "xtick.labelsize": 7,
    "ytick.labelsize": 7, "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6,
    "legend.frameon": False, "svg.fonttype": "none", "svg.hashsalt": "wafer_triton", "pdf.fonttype": 42,
}  # fmt: skip

_INK, _PAPER = "#e6edf3", "#0d1117"
DARK = {
    "text.color": _INK, "axes.labelcolor": _INK, "axes.edgecolor": _INK, "xtick.color": _INK, "ytick.color": _INK,
    "figure.facecolor": _PAPER, "axes.facecolor": _PAPER, "savefig.facecolor": _PAPER,
}  # fmt: skip

Numbers = dict[str, Sequence[float]]
Out: TypeAlias = "str | PathLike[str] | IO[bytes] | Axes"
_ABREAST = 5  # names of a legend above


@contextmanager
def picture(
    out: Out, height: float, title: str = "", point: str = "", dark: bool = False, width: float = WIDTH
) -> Iterator[tuple[Any, Numbers]]:
    """Yield a figure of panels, `width` by `height` inches, and its numbers; write both to `out` when the block ends.

    `out` is the path of a file, an open file for a PNG, or Axes of a figure of the user's own, whose place the panels
    take. Its `point`, such as a finding, stands above its `title`. A `dark` picture has light ink on dark paper. The
    numbers, by name, go into a file's description, so that they can be read from it (`numbers_of`). Raises DrawError
    for another kind of file than `KINDS`, BackendError where matplotlib is missing, OSError for a path that cannot be
    written.
    """
    if hasattr(out, "get_subplotspec"):
        yield _within(out, title, point), Numbers()
        return
    kind = ".png"
    if not hasattr(out, "write"):
        out = path_of(out)
        kind = out.suffix.lower()
        if kind not in KINDS:
            raise DrawError(f"{out}: a picture is one of {', '.join(KINDS)}; end its name with one of them")
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise BackendError(f"drawing needs matplotlib ({missing}): pip install 'wafer-triton[draw]'") from None
    bold = _lines(point, 0.87 * width)
    lines = [*bold, *_lines(title, width)]
    with rc_context(STYLE | (DARK if dark else {})):
        high = height + (_LINE * len(lines) + 0.06 if lines else 0.0)
        figure, numbers = Figure(figsize=(width, high)), Numbers()
        figure.set_layout_engine("constrained", rect=(0, 0, 1, height / high))
        for number, line in enumerate(lines):
            weight = "bold" if number < len(bold) else "normal"
            figure.text(0.05 / width, 1 - (number + 0.3) * _LINE / high, line, weight=weight, va="top")
        yield figure, numbers
        short = json.dumps({name: [round(float(number), 4) for number in many] for name, many in numbers.items()})
        about: dict[str, dict[str, Any]] = {
            ".png": {"Description": short},
            ".svg": {"Description": short, "Date": None},
            ".pdf": {"Keywords": short, "CreationDate": None},
        }
        with writing(out), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a glyph that the font lacks is drawn as a box
            figure.savefig(out, format=kind[1:], dpi=DOTS, metadata=about[kind])


def _within(axes: Any, title: str, point: str) -> Any:
    """Return a subfigure that takes the place of axes, and remove them; DrawError for axes without a place."""
    place, figure = axes.get_subplotspec(), axes.figure
    if place is None:
        raise DrawError("these axes have no place in a grid; give axes that subplots made")
    axes.remove()
    part = figure.add_subfigure(place)
    if text := "\n".join(filter(None, (point, title))):
        part.suptitle(text, size=STYLE["axes.titlesize"])
    return part


def _lines(text: str, width: float) -> list[str]:
    """Return a text in lines that fit a width in inches."""
    return [part for line in text.split("\n") for part in textwrap.wrap(line, int(_LETTERS * width))]


def path_of(path: str | PathLike[str]) -> Path:
    """Return the path of a file to write; DrawError for a folder, and for a folder that is not there."""
    if Path(path).is_dir():
        raise DrawError(f"{path}: is a folder; give the path of a file in it")
    if not Path(path).parent.is_dir():
        raise DrawError(f"{path}: there is no folder {Path(path).parent}; make it, or give another path")
    return Path(path)


def numbers_of(path: str | Path | IO[bytes]) -> dict[str, list[float]]:
    """Return the numbers that a PNG picture says it shows."""
    from PIL import Image

    with Image.open(path) as image:
        numbers: dict[str, list[float]] = json.loads(image.text["Description"])
    return numbers


def coloured(sizes: Mapping[str, float]) -> dict[str, str]:
    """Return a colour for each name, the largest first; names without a colour of their own share `REST`."""
    order = sorted(sizes, key=lambda name: -sizes[name])
    own = len(COLOURS) if len(order) <= len(COLOURS) else len(COLOURS) - 1
    return dict(zip(order, [*COLOURS[:own], *[REST] * len(order)], strict=False))


def legend(axes: Any, colours: Mapping[str, str], names: Sequence[str]) -> None:
    """Add a legend above the axes of the names in their colours, names of one colour as one entry."""
    from matplotlib.patches import Patch

    own = [name for name in names if colours[name] != REST]
    entries = [Patch(color=colours[name], label=name or "(no label)") for name in own]
    if rest := len(names) - len(own):
        entries.append(Patch(color=REST, label=f"{rest} smaller"))
    where = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": min(max(1, len(entries)), _ABREAST)}
    axes.legend(handles=entries, borderaxespad=0, handlelength=1, handleheight=1, **where)


def whole_ticks(axes: Any, most: int = 6) -> None:
    """Put ticks at whole numbers, about `most` on an axis."""
    from matplotlib.ticker import MaxNLocator

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(most, integer=True))
