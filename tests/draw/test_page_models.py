"""Models and requests on a page in a real browser: predicted time, SRAM below its limit, regions."""

import re

import pytest

from pages import IN_CHROMIUM, check_phone, evaluate, legend, pixels
from wafer_triton import estimate
from wafer_triton.device import device

pytestmark = IN_CHROMIUM
PAGES = {
    "model": "model --model smollm2-135m --mesh 64",
    "request": "request --model llama3-8b --prefill-mesh 660 --decode-mesh 360 --input 2048 --output 128 --as-if",
}


def times_of(browser, track):
    """Return the spans of a track of a whole request on the page, [start, end, name, runs]."""
    return evaluate(browser, f"page.data.time.rows.find(({{name}}) => name === {track!r}).lanes[0]")


def test_a_request_is_shown_in_time_as_it_is_priced(show):
    browser, hertz = show("request"), device("wse2").clock_hz
    sizes = {"model": "llama3-8b", "prefill_mesh": 660, "decode_mesh": 360, "input": 2048, "output": 128}
    priced = estimate.request(**sizes, as_if=True)
    phases = {name: end - start for start, end, name, _ in times_of(browser, "phases")}
    seconds = (priced.prefill_seconds, priced.replacement_seconds, priced.decode_seconds)
    assert list(phases) == ["prefill", "re-placement", "decode"]
    assert [cycles / hertz for cycles in phases.values()] == pytest.approx(seconds, rel=1e-6)
    assert sum(runs for *_, runs in times_of(browser, "tokens")) == 128
    assert f"prefill {priced.prefill_seconds / priced.seconds:.0%}" in browser.text("#headline")


def test_spans_of_regions_are_drawn_where_they_lie_in_time(show):
    browser = show("model")
    rows = evaluate(browser, "page.data.time.rows.map(({name, region, lanes}) => [name, region, lanes])")
    assert [name for name, *_ in rows] == ["tokens", "region 0", "region 1"]
    for number in (1, 2):
        start, end, name, _ = next(span for span in rows[number][2][0] if span[2].startswith("layer "))
        x, y = evaluate(
            browser,
            "(() => { const canvas = document.querySelector('#times'), [from, to] = page.times.view(); "
            "canvas.scrollIntoView({block: 'center'}); const {x, y} = canvas.getBoundingClientRect(); "
            f"const above = page.times.tall().slice(0, {number}).reduce((sum, each) => sum + each, HEAD); "
            f"return [x + LEFT + ({(start + end) / 2} - from) / (to - from) * inner(canvas), y + above + 6]; }})()",
        )
        browser.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        assert browser.text("#tip").startswith(f"region {number - 1}, {name}: {round(end - start):,} cycles")
        browser.click(x, y)
        assert f"{number - 1} of 0 to 1" in browser.text("#facts")
    steps, listed = pixels(browser, "#times"), legend(browser, "times-steps")
    shown = [name for name, colour in listed.items() if steps.get(colour, 0) > 20]
    assert {"gate and up", "down", "qkv"} <= set(shown) and len(set(listed.values())) == len(listed)


def test_a_layer_and_a_zoom_show_a_part_of_the_time(show):
    browser = show("model")
    whole = evaluate(browser, "page.times.view()")
    browser.choose("#times-view", "1")
    start, end = evaluate(browser, "page.times.view()")
    layer = [each for each in evaluate(browser, "page.data.time.rows[1].lanes[0]") if each[2].startswith("layer 0 ")]
    assert [start, end] == [layer[0][0], layer[-1][1]]
    browser.press("#times-out")
    assert evaluate(browser, "page.times.view()")[1] > end
    browser.choose("#times-view", "1")
    address = browser.value("location.hash")
    browser.choose("#times-view", "0")
    assert evaluate(browser, "page.times.view()") == whole
    browser.value(f"location.hash = {address!r}")
    browser.value("new Promise((done) => setTimeout(done, 0))")
    assert evaluate(browser, "page.times.view()") == pytest.approx([start, end], abs=1)


def test_sram_of_a_model_adds_up_to_its_region_below_the_limit(show):
    browser = show("model")
    region = evaluate(browser, "page.data.regions[page.region]")
    peaks = []
    for number in range(evaluate(browser, "page.scenes.length")):
        browser.choose("#first", str(number))
        peaks.append(evaluate(browser, "page.first().others + page.first().account.sram_peak_bytes"))
        assert pixels(browser, "#sram").get("179,38,30", 0) > 300  # the line of the limit
    assert max(peaks) == region["sram"] and min(peaks) > region["resident"]


def test_the_choice_names_the_picture_of_a_placed_model(show):
    browser = show("model")
    chosen = "document.querySelector('#show').selectedOptions[0].textContent"
    assert browser.value(chosen) == "regions by layers" and "first layer" in browser.text("#maps .scale")
    browser.press("#mesh")
    assert browser.value(chosen).startswith(("tiles of ", "parts summed in "))
    assert re.match(r"tile from|1 part", browser.text("#maps .scale"))
    browser.press("#device")
    assert browser.value(chosen) == "regions by layers"
    browser.choose("#show", "links-run")
    assert "sent by a core" in browser.text("#maps .scale")
    assert evaluate(browser, "page.maps[0].byRegion()") is False


@pytest.mark.parametrize("name", PAGES)
def test_a_phone_shows_models_within_its_width(show, name):
    check_phone(show(name))
