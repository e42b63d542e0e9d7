"""Pictures show the numbers of `account`, `price` and `sram`, in files of three kinds that carry them."""

import builtins
import html
import io
import re
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from schedules import LAYERS, build, squares
from wafer_triton import draw
from wafer_triton.cost.price import price
from wafer_triton.count.account import link_loads
from wafer_triton.device.mesh import Mesh
from wafer_triton.draw.figure import COLUMN, DOTS, REST, coloured, numbers_of
from wafer_triton.errors import BackendError, DrawError

SCHEDULES = {
    "square": squares(Mesh(4, 4)),
    "one-core": squares(Mesh(1, 1), tile=12),
    "decode": build(LAYERS["decode-project-head-groups"], "4x4", "fp16"),
}
ROWS = [{"mesh": 8, "cycles": 20.0, "hops": 3}, {"mesh": 16, "cycles": 15.0, "hops": 9}]


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_a_timeline_shows_the_cycles_of_the_price(schedule, tmp_path):
    draw.timeline(schedule, tmp_path / "picture.png")
    shown = numbers_of(tmp_path / "picture.png")
    assert shown.pop("end of the timeline")[0] == pytest.approx(price(schedule).cycles)
    assert sum(cycles for (cycles,) in shown.values()) == pytest.approx(price(schedule).cycles)


def test_links_show_the_bytes_of_the_account(tmp_path):
    path, schedule = tmp_path / "picture.png", SCHEDULES["square"]
    draw.links(schedule, path)
    assert numbers_of(path) == {f"bytes to the {way}": [load.sum()] for way, load in link_loads(schedule).items()}


DRAWN = {
    "links": lambda out: draw.links(SCHEDULES["square"], out),
    "timeline": lambda out: draw.timeline(SCHEDULES["square"], out),
    "curves": lambda out: draw.curves(ROWS, ["mesh"], "cycles", out, title="a sweep"),
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_goes_into_axes_or_a_file_and_is_returned(name, tmp_path):
    drawing, held = DRAWN[name], io.BytesIO()
    figure = drawing(held)
    assert numbers_of(held) == numbers_of((drawing(tmp_path / "a.png"), tmp_path / "a.png")[1])
    whole = Figure(layout="constrained")
    left, right = whole.subplots(1, 2)
    part = drawing(right)
    assert whole.axes[0] is left and right not in whole.axes and part.figure is whole
    shown = [[each.get_xlabel() for each in one.axes] for one in (figure, part)]
    assert shown[0] == shown[1] and part.get_suptitle()
    whole.savefig(tmp_path / "both.png")
    with pytest.raises(DrawError, match="these axes have no place in a grid"):
        drawing(whole.add_axes((0, 0, 1, 1)))


@pytest.mark.parametrize("kind", ["png", "svg", "pdf", "PNG", "Svg", "PDF"])
def test_a_sweep_is_written_in_every_kind(kind, tmp_path):
    path = tmp_path / f"sweep.{kind}"
    draw.curves(ROWS, ["mesh"], "cycles", path, title="a sweep")
    draw.curves(ROWS, ["mesh"], "cycles", tmp_path / f"again.{kind}", title="a sweep")
    assert path.read_bytes() == (tmp_path / f"again.{kind}").read_bytes(), "the same numbers give the same file"
    if kind.lower() == "png":
        assert numbers_of(path) == {"cycles": [20, 15], "cycles without figures": []}
        assert Image.open(path).size[0] == COLUMN * DOTS
    elif kind.lower() == "svg":
        assert "a sweep" in path.read_text() and "predicted on the wafer" in path.read_text()
    else:
        assert path.read_bytes().startswith(b"%PDF")


def points(draws, path):
    """Return the text of a picture's bold lines."""
    draws(path)
    bold = re.findall(r'<text style="[^"]*(?:700|bold)[^>]*>([^<]*)<', path.read_text())
    return " ".join(html.unescape(line) for line in bold)


def test_a_picture_begins_with_its_point(tmp_path):
    schedule, path = SCHEDULES["square"], tmp_path / "a.svg"
    cost = price(schedule)
    used = np.concatenate([load[load > 0] for load in link_loads(schedule).values()])
    said = f"The busiest link carries {used.max()} B, {used.max() / used.mean():.2g} times the mean of links in use"
    assert points(lambda path: draw.links(schedule, path), path) == said
    most = max(cost.bounds, key=cost.bounds.get)
    said = f"{cost.cycles:,.0f} predicted cycles ({cost.tuned_cycles:,.0f} if tuned), "
    said += f"{100 * cost.bounds[most] / cost.cycles:.0f} % {most}"
    assert points(lambda path: draw.timeline(schedule, path), path) == said


def test_a_series_without_its_own_colour_is_grey():
    colours = coloured({str(number): float(number) for number in range(20)})
    assert len(set(colours.values())) == 7 and list(colours)[:1] == ["19"]
    assert [name for name, colour in colours.items() if colour == REST] == [str(number) for number in range(13, -1, -1)]
    assert REST not in coloured({str(number): float(number) for number in range(7)}).values()


EMPTY = replace(SCHEDULES["square"], rounds=())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda path: draw.links(SCHEDULES["square"], path / "a.bmp"), r"a.bmp: a picture is one of .png, .svg, .pdf"),
        (lambda path: draw.timeline(EMPTY, path / "a.png"), "a timeline of a schedule without rounds"),
    ],
)  # fmt: skip
def test_a_picture_that_cannot_be_drawn_is_refused(wrong, message, tmp_path):
    with pytest.raises(DrawError, match=message):
        wrong(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(DrawError, match="nowhere/a.png: there is no folder .*nowhere; make it, or give another path"):
        draw.links(SCHEDULES["square"], tmp_path / "nowhere" / "a.png")


def test_drawing_without_matplotlib_names_the_package_to_install(monkeypatch, tmp_path):
    real = builtins.__import__

    def missing(name: str, *rest, **more):
        if name.startswith("matplotlib"):
            raise ImportError("No module named 'matplotlib'")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(BackendError, match=r"drawing needs matplotlib .*pip install 'wafer-triton\[draw\]'"):
        draw.links(SCHEDULES["square"], tmp_path / "trace.png")
