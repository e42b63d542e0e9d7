"""Plots of benchmarks in a real browser: a legend has the colours of its rows, also where a row has no ratio."""

import pytest

import report
from pages import IN_CHROMIUM

pytestmark = IN_CHROMIUM
READY = '<script>document.documentElement.dataset.ready = "yes"</script>'  # read when the plot above is there
ROWS = {"emulation": 0.004, "explicit": 0.001, "blas": 0.0005, "copy": 0.0001}  # seconds


def measured(row, side):
    known = {"what": "MeshGEMM", "mesh": f"{side}x{side}", "tile": "32x32", "dtype": "bf16", "exchange": row}
    return {"group": f"on {side}", "stats": {"median": ROWS[row] * side}, "extra_info": known}


@pytest.fixture
def plot(browser, tmp_path):
    """Show a plot of rows of which the emulation has no ratio, as it is the reference."""
    rows = [measured(row, side) for side in (8, 16, 32) for row in ROWS]
    machine = {"gpu": "Some GPU", "driver": "1.2", "cuda": "13.0", "torch": "2.11", "triton": "3.6"}
    _, drawn = report.plots({"machine_info": machine, "benchmarks": rows}, tmp_path, "gpu")
    (tmp_path / "plot.html").write_text(f"<body>{drawn.read_text().partition('?>')[2]}{READY}")
    browser.open(tmp_path / "plot.html")
    return browser


COLOUR = "getComputedStyle(line.querySelector('path, use')).stroke"
LOOKS = (
    "Object.fromEntries([...document.querySelectorAll('#legend_1 g[id^=text]')].map((text) => { "
    "const line = text.previousElementSibling, name = [...text.childNodes].find(({nodeType}) => nodeType === 8); "
    f"return [{COLOUR}, name.textContent.trim()]; }}))"
)
LINES = (
    "((panel) => [...panel.querySelectorAll('g[id^=line2d]')].filter((line) => line.parentElement === panel)"
    f".map((line) => [{COLOUR}, line.getBoundingClientRect()])"
    ".map(([colour, {y, height}]) => [colour, y + height / 2]))"
)


def rows(browser, panel):
    """Return the rows whose lines a panel shows, from its top down, by the colours of their names in the legend."""
    names = browser.value(LOOKS)
    lines = [
        (middle, names[colour])
        for colour, middle in browser.value(f"{LINES}(document.querySelector('#axes_{panel}'))")
        if colour in names
    ]
    return [name for _, name in sorted(lines)]


def test_lines_are_where_the_rows_of_their_names_in_the_legend_belong(plot):
    slowest_first = sorted(ROWS, key=ROWS.get, reverse=True)
    assert rows(plot, 1) == slowest_first
    assert rows(plot, 3) == [row for row in reversed(slowest_first) if row != "emulation"]
