"""Pictures of sweeps: their numbers are the rows', and wrong rows are refused."""

import re

import pytest
from PIL import Image

from wafer_triton import draw
from wafer_triton.compare.sweep import sweep
from wafer_triton.draw.figure import COLOURS, COLUMN, DOTS, numbers_of
from wafer_triton.errors import DrawError

MODEL = {"model": "smollm2-135m", "context": 64}


@pytest.fixture(scope="module")
def rows():
    over = {"sram_kib": [2, 8, 48], "mesh": [16, 32, 64], "device": ["wse2", "wse3"]}
    return sweep("decode", over, **MODEL)


OVER = ["sram_kib", "mesh", "device"]


@pytest.mark.slow
def test_curves_show_every_figure_and_mark_missing_ones(rows, tmp_path):
    draw.curves(rows, OVER, "tokens_per_second", tmp_path / "a.png")
    shown = numbers_of(tmp_path / "a.png")
    for mesh in (16, 32, 64):
        own = [row for row in rows if row["mesh"] == mesh and row["device"] == "wse3"]
        key = f"mesh {mesh} x {mesh} cores, wse3"
        assert shown[key] == [round(row["tokens_per_second"], 4) for row in own if "reason" not in row]
        assert shown[f"{key} without figures"] == [row["sram_kib"] for row in own if "reason" in row]
    assert Image.open(tmp_path / "a.png").size[0] == COLUMN * DOTS


def test_a_point_without_an_error_band_is_shaded_by_none():
    from matplotlib.figure import Figure

    rows = [{"mesh": x, "cycles": 10.0, "error_band": band} for x, band in ((8, 0.5), (16, 0.5), (32, None))]
    (shade,) = draw.curves(rows, ["mesh"], "cycles", Figure().subplots()).axes[0].collections
    assert {x for path in shade.get_paths() for x, _ in path.vertices} == {8, 16}


def test_points_without_figures_are_named(tmp_path):
    rows = [{"mesh": 8, "cycles": 20}, {"mesh": 9, "reason": "it does not fit"}]
    draw.curves(rows, ["mesh"], "cycles", tmp_path / "a.svg")
    assert ">no figures, see CSV<" in (tmp_path / "a.svg").read_text()


def test_long_names_keep_the_axes_wide(tmp_path):
    """Compare the column of the axes' left spine and of the last point with the width of the picture."""
    long = [f"wse2,sram_kib={48 + more}" + ",hop_cycles=1.25,stage_cycles=17" * more for more in (0, 1)]
    rows = sweep("decode", {"mesh": [16, 32, 64], "device": long}, **MODEL)
    draw.curves(rows, ["mesh", "device"], "tokens_per_second", tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert ">wse2,sram_kib=49,hop_cycles=1.25,stage_...<" in text
    width = float(re.search(r'viewBox="0 0 ([\d.]+)', text)[1])
    frame = re.search(r'id="patch_2">\s*<path d="M ([\d.]+) [\d.]+ \s*L ([\d.]+)', text)
    assert float(frame[2]) - float(frame[1]) > 0.7 * width


def test_words_stand_along_an_axis(tmp_path):
    rows = sweep("gemv", {"algorithm": ["ktree", "ring", "star"]}, mesh=8, k=48, n=48)
    draw.curves(rows, ["algorithm"], "cycles", tmp_path / "a.svg")
    assert all(f">{name}<" in (tmp_path / "a.svg").read_text() for name in ("ktree", "ring", "star"))


ROWS = [{"mesh": 8, "groups": 1, "cycles": 20, "name": "a"}, {"mesh": 8, "groups": 2, "reason": "none"}]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda path: draw.curves(ROWS[1:], ["mesh", "groups"], "cycles", path), "a sweep without figures"),
        (lambda path: draw.curves(ROWS, ["mesh", "groups"], "hops", path), "no column 'hops'; columns: cyc"),
        (lambda path: draw.curves(ROWS, ["mesh", "groups"], "name", path), "column 'name' does not hold numbers alone"),
        (
            lambda path: draw.curves([ROWS[0] | {"groups": n} for n in range(9)], ["mesh", "groups"], "cycles", path),
            f"9 curves of groups: at most {len(COLOURS)} have colours of their own; sweep fewer values",
        ),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_drawn_are_refused(wrong, message, tmp_path):
    with pytest.raises(DrawError, match=message):
        wrong(tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []
