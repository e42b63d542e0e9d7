"""Cores and tiles of a page in a real browser: colours of names, arrows of moves, parts of sums, entries of a cache."""

from itertools import pairwise

import numpy as np
import pytest

from pages import COPY, EXAMPLES, IN_CHROMIUM, SIDE, evaluate, legend, pixels
from wafer_triton import draw
from wafer_triton.algorithms.kv_cache import POLICIES, KvCache
from wafer_triton.device.mesh import Mesh
from wafer_triton.schedule.builder import Builder

pytestmark = IN_CHROMIUM
PAGES = EXAMPLES


@pytest.fixture(scope="module", autouse=True)
def cache_page(folder):
    """Write one page that has a scene of the KV cache for each policy."""
    scenes = [draw.scene(cache(policy), policy, fills=("cache",)) for policy in POLICIES]
    draw.page(folder / "cache.html", "cache", scenes, Mesh(1, 1).device, beside=1)


def cache(policy):
    """Build 6 appends to an empty cache of 4 mesh rows; policy "concat" puts all entries into the last row."""
    b = Builder(Mesh(4, 2), policy)
    kept = KvCache(4, 6, policy)
    b.buffer("cache", (2,), "fp16", "cache", kept.slots)
    b.buffer("entry", (2,), "fp16", "input")
    for number in range(6):
        kept.append(b, {"cache": "entry"}, number)
    return b.build()


def test_bars_of_two_schedules_have_the_colours_of_one_legend(show):
    browser = show("compare")
    for canvas, names, field in (("sram", "buffers", "bufferColours"), ("timeline", "steps", "stepColours")):
        listed, painted = legend(browser, names), pixels(browser, f"#{canvas}")
        assert all(painted.get(colour, 0) > 20 for colour in listed.values()), (listed, painted)
        for own in evaluate(browser, f"page.scenes.map((scene) => scene.{field})"):
            shown = {name: ",".join(str(int(text[at : at + 2], 16)) for at in (1, 3, 5)) for name, text in own.items()}
            assert listed.items() <= shown.items()
        assert len(set(listed.values())) == len(listed)


# The colour of the map 3 pixels before the end of each arrow, for tiles of the first buffer.
ARROWHEADS = (
    "((map) => { const seen = " + COPY + "(map.canvas), ends = map.scene.moved.filter(({from, to, tile}) => "
    "from !== to && Math.floor(tile / 64) === 0).map(({from, to}) => map.curve(from, to)); "
    "return ends.map(({end, middle}) => { const long = Math.hypot(end[0] - middle[0], end[1] - middle[1]); "
    "const at = [0, 1].map((n) => Math.round(end[n] - 3 * (end[n] - middle[n]) / long)); "
    "return [...seen.getImageData(...at, 1, 1).data].slice(0, 3); }); })(page.maps[0])"
)


def test_every_arrow_ends_in_a_visible_head(show):
    browser = show("compare")
    assert evaluate(browser, "page.scenes[0].moved.length") > 0
    arrowheads = evaluate(browser, ARROWHEADS)
    assert len(arrowheads) == SIDE * SIDE
    assert all(max(colour) < 90 for colour in arrowheads), arrowheads


def test_moves_of_another_buffer_are_painted_over_a_buffer_that_rests(show):
    browser = show("own")
    browser.choose("#slider", "1")
    browser.choose("#show", "tiles from_right")
    with_moves = pixels(browser, "#map-first")
    browser.choose("#slider", "0")
    ink = "28,31,35"
    assert with_moves.get(ink, 0) > pixels(browser, "#map-first").get(ink, 0) + 50


def test_a_multicast_is_one_straight_line_with_a_head_at_every_core(show):
    browser = show("compare")
    browser.choose("#slider", "3")
    painted = evaluate(
        browser,
        "((map) => { let lines = 0, heads = 0; const bus = map.bus.bind(map), head = map.head.bind(map); "
        "map.bus = (group) => { lines += 1; bus(group); }; map.head = (...at) => { heads += 1; head(...at); }; "
        "map.draw(); delete map.bus; delete map.head; return [lines, heads, map.scene.moved.length]; })(page.maps[1])",
    )
    assert painted[0] == SIDE and 0 < painted[1] <= painted[2]


def test_sums_are_coloured_by_the_number_of_their_terms(show):
    browser = show("tree")
    assert browser.value("document.querySelector('#show').value") == "parts y"
    browser.key("Home")
    start = pixels(browser, "#map-first")
    parts = evaluate(
        browser,
        "((scene) => scene.rounds.map((_, round) => { scene.goTo(round + 1); return "
        "[...scene.parts[scene.buffers.findIndex(({name}) => name === 'y')]]; }))(page.scenes[0])",
    )
    assert set(parts[0]) == {1} and set(parts[-1]) == {8}  # every core of a column of 8 adds one part
    assert all(max(before) <= max(after) for before, after in pairwise(parts))
    browser.key("End")
    assert pixels(browser, "#map-first") != start
    assert "8 parts summed" in browser.text("#maps .scale")


def test_rows_of_a_cache_are_coloured_by_their_entries(show):
    browser = show("cache")
    assert browser.value("document.querySelector('#show').value") == "fill cache"
    for number, policy in enumerate(POLICIES):
        for count in range(7):
            browser.choose("#slider", str(count))
            filled = evaluate(browser, f"[...page.scenes[{number}].fill(0)]")
            assert filled == np.repeat(np.diff(KvCache(4, 6, policy).windows(count)), 2).tolist(), (policy, count)
    for canvas, entries in (("#map-first", {1, 2}), ("#map-second", {0, 6})):  # after 6 appends
        painted = pixels(browser, canvas)
        colours = [evaluate(browser, f"amount({count} / 7).join(',')") for count in entries]
        assert all(painted.get(colour, 0) > 200 for colour in colours), canvas
    assert "no entry" in browser.text("#maps .scale") and "all 7 slots filled" in browser.text("#maps .scale")
