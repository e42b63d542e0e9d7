"""The page of a product on 720 x 720 cores in a real browser: blocks of cores, a small file, little to draw."""

import re

from pages import IN_CHROMIUM, cells, evaluate, settled
from wafer_triton.algorithms.product import recipe
from wafer_triton.count.account import account
from wafer_triton.device.mesh import Mesh
from wafer_triton.text.quantity import quantity

pytestmark = IN_CHROMIUM
PAGES = {"wafer": "gemm --m 720 --k 720 --n 720 --mesh 720"}


def test_a_whole_wafer_is_shown_in_blocks(show):
    browser, schedule = show("wafer"), recipe("gemm", Mesh(720, 720), "fp16", ((720, 720), (720, 720)), ()).schedule
    first, last = evaluate(browser, "(({first, last}) => [first, last])(page.scenes[0].frameAt(page.position))")
    assert last > first and {schedule.rounds[number].label for number in range(first, last + 1)} == {"gemm"}
    browser.key("Home")
    assert browser.text("#status") == f"Start, before rounds 0 to {len(schedule.rounds) - 1:,}"
    shown = {row[0]: row[1] for row in cells(browser, "#counts")}
    assert shown["over links"] == quantity(account(schedule).link_bytes, "B")
    browser.press("#on")
    settled(browser, "After round 0")
    assert "blocks of 12 x 12" in browser.text("#facts")


COUNTED = (  # counts the calls that draw on canvases
    "window.drawn = 0; for (const name of ['fillRect', 'strokeRect', 'stroke', 'fill', 'fillText', 'putImageData']) { "
    "const own = CanvasRenderingContext2D.prototype[name]; CanvasRenderingContext2D.prototype[name] = "
    "function (...of) { window.drawn += 1; return own.apply(this, of); }; }"
)


def test_a_page_of_a_whole_wafer_is_small_and_draws_little(browser, folder):
    text = (folder / "wafer.html").read_text()
    assert len(text.encode()) < 300_000
    assert not re.search(r"https?:|\bsrc=|@import|\burl\(|href=\"(?!data:)", text)
    script = browser.ask("Page.addScriptToEvaluateOnNewDocument", source=COUNTED)["identifier"]
    try:
        browser.open(folder / "wafer.html")
        assert 0 < browser.value("window.drawn") < 40_000
        browser.key("Home")
        browser.value("window.drawn = 0")
        for _ in range(28):
            browser.value("document.querySelector('#on').click()")
        settled(browser, "After round 27")
        assert 0 < browser.value("window.drawn") < 28 * 20_000
    finally:
        browser.ask("Page.removeScriptToEvaluateOnNewDocument", identifier=script)
    assert browser.problems == []
