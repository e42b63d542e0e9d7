"""Colours of pictures and pages differ for readers with each kind of colour blindness."""

import re
from importlib.resources import files
from itertools import pairwise

import pytest

from vision import BLIND, distances, seen
from wafer_triton.draw.figure import AMOUNTS, COLOURS, REST

LEAST = 15.0  # CIELAB: a distance of about 2 is just visible side by side
CHARTS = (files("wafer_triton.draw") / "web" / "charts.js").read_text()
STYLE = (files("wafer_triton.draw") / "web" / "page.css").read_text()
PAGE = re.findall(r'"(#\w{6})"', CHARTS.partition("const COLOURS")[2].partition("\n")[0])
SCALE = ["#" + text for text in re.findall(r'"(\w{6})"', CHARTS.partition("\n.map")[0].partition("=")[2])[:11]]
PANELS = sorted(set(re.findall(r"--panel: (#\w{6})", STYLE)))
SIGHTS = [None, *BLIND]


@pytest.mark.parametrize("sight", SIGHTS)
def test_colours_of_names_differ_from_each_other_and_from_the_panel(sight):
    assert len(PAGE) == 11 and len(PANELS) == 2 and REST in PAGE
    assert min(distances(PAGE, sight).values()) > LEAST
    assert min(distances([*COLOURS, REST], sight).values()) > LEAST
    for panel in PANELS:
        pairs = distances([*PAGE, panel], sight)
        assert min(apart for pair, apart in pairs.items() if panel in pair) > LEAST


@pytest.mark.parametrize("sight", SIGHTS)
def test_a_scale_of_amounts_only_grows_lighter(sight):
    light = seen(SCALE, sight)[:, 0]
    assert len(light) == 11 and all(after - before > 4 for before, after in pairwise(light))


def test_a_page_and_a_picture_have_one_scale():
    colormaps = pytest.importorskip("matplotlib").colormaps
    every = [colormaps[AMOUNTS](share / 10) for share in range(11)]
    for colour, (red, green, blue, _) in zip(SCALE, every, strict=True):
        near = f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"
        assert distances([colour, near])[near, colour] < 3
