"""The controls of a page in a real browser: headline, values, hover, search, address, zoom, theme, phone, wheel."""

import pytest

from pages import EXAMPLES, IN_CHROMIUM, OWN, SIDE, check_phone, evaluate
from wafer_triton.algorithms.product import recipe
from wafer_triton.cli.own import load
from wafer_triton.count.account import link_loads
from wafer_triton.device.mesh import Mesh
from wafer_triton.verify.values import draw_tiles

pytestmark = IN_CHROMIUM
PAGES = EXAMPLES


def test_values_of_an_own_schedule_are_its_intents_tiles_and_their_sums(show):
    browser, own = show("own"), load(OWN)
    given = draw_tiles(own.schedule, own.intent, 1, seed=0)["x"][0]
    browser.choose("#row", "2")
    browser.choose("#column", "5")
    for key, want in (("Home", given[2, 5]), ("End", given[2].sum(0))):
        browser.key(key)
        figures = evaluate(
            browser, f"page.scenes[0].valuesOf('x', {2 * 8 + 5}, {0 if key == 'Home' else len(own.schedule.rounds)})"
        )
        assert figures[3:] == pytest.approx(want[:4].tolist(), rel=1e-3)


def test_a_page_opens_on_a_round_with_messages_of_the_longest_step(show):
    browser = show("compare")
    assert ", gemm: 128 tiles move" in browser.text("#status")


def test_the_address_shows_the_same_view_again(browser, folder):
    browser.open(folder / "compare.html")
    browser.choose("#slider", "5")
    browser.choose("#row", "3")
    browser.choose("#column", "6")
    browser.choose("#show", "tiles b")
    address, said = browser.value("location.hash"), browser.text("#status")
    browser.open(folder / "compare.html")
    assert browser.text("#status") != said
    browser.value(f"location.hash = {address!r}")
    browser.value("new Promise((done) => setTimeout(done, 0))")
    assert "round=4" in address and "core=3,6" in address
    assert browser.text("#status") == said
    held = [browser.value(f"document.querySelector('#{name}').value") for name in ("row", "column", "show")]
    assert held == ["3", "6", "tiles b"]
    assert browser.problems == []


def test_pictures_side_by_side_share_their_scales(show):
    browser = show("compare")
    for picture in ("links-run", "links-round", "parts c"):
        browser.choose("#show", picture)
        ends = browser.value("[...document.querySelectorAll('#maps .scale')].map((one) => one.textContent)")
        assert len(ends) == 2 and ends[0] == ends[1], picture
    ends = browser.value("[...document.querySelectorAll('#heat .scale')].map((one) => one.textContent)")
    most = max(
        load.max()
        for name in ("mesh", "allgather")
        for load in link_loads(
            recipe("gemm", Mesh(SIDE, SIDE), "fp16", ((32, 32), (32, 32)), (("algorithm", name),)).schedule
        ).values()
    )
    assert ends == [f"0 B{most:,} B on one link"] * 2


def test_the_value_below_the_pointer_is_shown(show):
    browser = show("compare")
    x, y = evaluate(browser, f"page.maps[0].middle({2 * SIDE + 3})")
    browser.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    assert browser.text("#tip").startswith("core (2, 3): tile of a from (2, ")
    for canvas, said in (("strip", "longest move"), ("timeline", "cycles"), ("sram", "round ")):
        browser.value(f"document.querySelector('#{canvas}').scrollIntoView({{block: 'center'}})")
        box = browser.value(f"(({{x, y}}) => [x, y])(document.querySelector('#{canvas}').getBoundingClientRect())")
        browser.ask("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + 300, y=box[1] + 60)
        assert said in browser.text("#tip"), canvas


def test_a_core_and_a_buffer_are_found_by_name_and_a_wrong_one_is_refused(show):
    browser = show("compare")
    browser.choose("#search", "4, 7")
    assert [browser.value(f"document.querySelector('#{name}').value") for name in ("row", "column")] == ["4", "7"]
    browser.choose("#search", "b")
    assert browser.value("document.querySelector('#show').value") == "tiles b"
    browser.choose("#search", "9,9")
    assert browser.value("document.querySelector('#search').validationMessage") == "cores are (0, 0) to (7, 7)"
    browser.choose("#search", "zzz")
    assert "no buffer zzz here" in browser.value("document.querySelector('#search').validationMessage")


def test_maps_move_together_and_a_picture_of_them_is_saved(show):
    browser = show("compare")
    browser.press("#in")
    views = evaluate(browser, "page.maps.map((map) => map.view)")
    assert views[0] == views[1]
    browser.press("#save")
    assert evaluate(browser, "page.saved").startswith("data:image/png;base64,")


def test_a_click_on_sram_or_the_strip_goes_to_the_round(show):
    browser = show("tree")
    browser.key("Home")
    for canvas in ("sram", "strip"):
        browser.value(f"document.querySelector('#{canvas}').scrollIntoView({{block: 'center'}})")
        x, y, length = evaluate(
            browser,
            f"(({{x, y, width}}) => [x + LEFT + 2.5 * (width - LEFT - RIGHT) / page.scenes[0].length, y + 40, "
            f"page.scenes[0].length])(document.querySelector('#{canvas}').getBoundingClientRect())",
        )
        browser.click(x, y)
        assert f"After round 2 (of 0 to {length - 1})" in browser.text("#status")


def test_time_is_zoomed_around_the_round_in_view(show):
    browser = show("compare")
    browser.press("#time-in")
    start, end = evaluate(browser, "page.window")
    now = evaluate(browser, "page.scenes[0].intervalAt(page.position)")
    assert start <= now["start"] <= end
    browser.press("#time-whole")
    assert evaluate(browser, "page.window") is None


def test_a_dark_preference_is_kept_without_a_click_and_a_click_turns_it(show):
    browser = show("compare")
    light = browser.value("getComputedStyle(document.body).backgroundColor")
    browser.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    try:
        assert browser.value("getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 28)" != light
        browser.press("#theme")
        assert browser.value("getComputedStyle(document.body).backgroundColor") == light
    finally:
        browser.ask("Emulation.setEmulatedMedia", features=[])


def test_the_wheel_scrolls_over_a_map_and_zooms_with_a_key(show):
    browser = show("compare")
    x, y = evaluate(browser, "page.maps[0].middle(9)")
    before = evaluate(browser, "page.maps[0].view.scale")
    wheel = {"type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": -120}
    browser.ask("Input.dispatchMouseEvent", **wheel)
    assert evaluate(browser, "page.maps[0].view.scale") == before
    browser.ask("Input.dispatchMouseEvent", **wheel, modifiers=2)
    assert evaluate(browser, "page.maps[0].view.scale") == pytest.approx(1.2 * before)


def test_a_phone_shows_a_comparison_within_its_width(show):
    check_phone(show("compare"))
