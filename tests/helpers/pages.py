"""Pages of `wafer-triton draw` in a browser: written by commands, read by pixels and legends, with checks."""

import json
from pathlib import Path

import pytest

import browser as chromium
from wafer_triton.cli.main import main

IN_CHROMIUM = pytest.mark.skipif(chromium.PROGRAM is None, reason="there is no Chromium; `make browser` installs it")
OWN = f"{Path(__file__).parents[2] / 'docs' / 'examples' / 'own_all_reduce.py'}:two_sided"
SIDE = 8
EXAMPLES = {  # pages by their names
    "compare": f"gemm --m 32 --k 32 --n 32 --mesh {SIDE} --beside allgather",
    "tree": f"gemv --k 64 --n 64 --mesh {SIDE}",
    "own": f"{OWN} --values",
}


def written(folder, lines):
    """Write pages by their names, each by the arguments of `wafer-triton draw`."""
    for name, line in lines.items():
        assert main(["draw", *line.split(), "--out", str(folder / f"{name}.html")]) == 0


def evaluate(browser, expression):
    """Return the value of a JavaScript expression in the browser, where `page` is the page's state."""
    return browser.value(f"waferTriton.then((page) => {expression})")


COPY = (  # of a canvas, as one that is drawn often is slow to read
    "((one) => { const {width, height} = one, copy = Object.assign(document.createElement('canvas'), {width, height}); "
    "const context = copy.getContext('2d', {willReadFrequently: true}); context.drawImage(one, 0, 0); "
    "return context; })"
)


def pixels(browser, canvas):
    """Return the number of pixels of each colour "r,g,b" of a canvas."""
    return browser.value(
        f"((one) => {{ const sums = {{}}, of = {COPY}(one).getImageData(0, 0, one.width, one.height).data; "
        "for (let at = 0; at < of.length; at += 4) { if (!of[at + 3]) continue; "
        "const key = `${of[at]},${of[at + 1]},${of[at + 2]}`; sums[key] = (sums[key] ?? 0) + 1; } return sums; })"
        f"(document.querySelector({canvas!r}))"
    )


def legend(browser, name):
    """Return the colours of a legend by the names in it, as "r,g,b"."""
    return browser.value(
        f"Object.fromEntries([...document.querySelectorAll({'#' + name + ' li'!r})].map((one) => "
        "[one.dataset.name, getComputedStyle(one.querySelector('i')).backgroundColor.match(/\\d+/g).join(',')]))"
    )


def check_phone(browser):
    """Assert that no element is wider than a phone of 390 pixels, and that its bar leaves room for the page."""
    browser.ask("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True)
    try:
        wide = browser.value(
            "[...document.querySelectorAll('body *')].filter((one) => !one.closest('.wide') && "
            "one.getBoundingClientRect().right > 391).map((one) => one.id || one.tagName)"
        )
        assert wide == []
        assert browser.value("document.querySelector('nav').getBoundingClientRect().height") <= 150
    finally:
        browser.ask("Emulation.clearDeviceMetricsOverride")


def whole(text):
    return int(text.replace(",", "").removesuffix(" B"))


def cells(browser, selector):
    """Return the rows of a table, [[cell]]."""
    rows = f"[...document.querySelectorAll({selector + ' tbody tr'!r})]"
    return browser.value(f"{rows}.map((row) => [...row.cells].map((cell) => cell.textContent))")


def settled(browser, said):
    """Wait until the status line has the text `said`: an animation may not have ended."""
    browser.until(f"document.querySelector('#status').textContent.includes({json.dumps(said)})")
