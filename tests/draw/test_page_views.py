"""The point of a page in a real browser: colours, arrows, sums, limits, headlines, hover values, address, phone."""

import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import browser as chromium
from wafer_triton import draw, estimate
from wafer_triton.cli.main import main
from wafer_triton.cli.own import load
from wafer_triton.count.account import account, link_loads
from wafer_triton.device import device
from wafer_triton.device.mesh import Mesh
from wafer_triton.draw.figure import REST
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.kv_cache import POLICIES, KvCache
from wafer_triton.schedule.product import recipe
from wafer_triton.verify.values import drawn

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(chromium.PROGRAM is None, reason="there is no Chromium; `make browser` installs it"),
]
OWN = Path(__file__).parents[2] / "docs" / "examples" / "own_all_reduce.py"
SIDE = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write a comparison of products, a sum over a K-tree, an own all-reduce with values, and a placed model."""
    folder = tmp_path_factory.mktemp("pages")
    lines = {
        "compare": f"gemm --m 32 --k 32 --n 32 --mesh {SIDE} --beside allgather",
        "tree": "gemv --k 64 --n 64 --mesh 8",
        "own": f"{OWN}:two_sided --beside {OWN}:two_sided --values",
        "model": "model --model smollm2-135m --mesh 64",
        "request": "request --model llama3-8b --prefill-mesh 660 --decode-mesh 360 --input 2048 --output 128 --as-if",
        "reduce": "all-reduce --size 4 --mesh 8 --beside pipeline --values",
    }
    for name, line in lines.items():
        assert main(["show", *line.split(), "--out", str(folder / f"{name}.html")]) == 0
    scenes = [draw.scene(cache(policy), policy, fills=("cache",)) for policy in POLICIES]
    draw.page(folder / "cache.html", "cache", scenes, Mesh(1, 1).device, beside=1)
    return folder


def cache(policy):
    """Build appends to an empty cache of 4 rows, until a row by concatenation is full."""
    b = Builder(Mesh(4, 2), policy)
    kept = KvCache(4, 6, policy)
    b.buffer("cache", (2,), "fp16", "cache", kept.slots)
    b.buffer("entry", (2,), "fp16", "input")
    for number in range(6):
        kept.append(b, {"cache": "entry"}, number)
    return b.build()


def page(browser, expression):
    """Return an expression of the script, with `page` as its state."""
    return browser.value(f"waferTriton.then((page) => {expression})")


COPY = (  # of a canvas, as one that is drawn often is slow to read
    "((one) => { const {width, height} = one, copy = Object.assign(document.createElement('canvas'), {width, height}); "
    "const context = copy.getContext('2d', {willReadFrequently: true}); context.drawImage(one, 0, 0); "
    "return context; })"
)


def pixels(browser, canvas):
    """Return the colours of a canvas by how many pixels they have, as "r,g,b"."""
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


def check_colours(browser):
    """Assert that bars of both schedules have the colour of their name in the legend."""
    for canvas, names, sizes in (("sram", "buffers", "held"), ("timeline", "steps", "cycles")):
        listed, drawn_ = legend(browser, names), pixels(browser, f"#{canvas}")
        assert all(drawn_.get(colour, 0) > 20 for colour in listed.values()), (listed, drawn_)
        field = {"held": "bufferColours", "cycles": "stepColours"}[sizes]
        for own in page(browser, f"page.scenes.map((scene) => scene.{field})"):
            shown = {name: ",".join(str(int(text[at : at + 2], 16)) for at in (1, 3, 5)) for name, text in own.items()}
            assert listed.items() <= shown.items()
        assert len(set(listed.values())) == len(listed)


def test_bars_of_two_schedules_have_the_colours_of_one_legend(show):
    check_colours(show("compare"))


def test_a_step_of_a_model_has_one_colour_in_all_its_parts(show):
    browser = show("model")
    colours = page(browser, "page.scenes[0].stepColours")
    names = page(browser, "[...new Set(page.scenes.flatMap((scene) => Object.keys(scene.cycles)))]")
    own = [colour for colour in colours.values() if colour != REST]
    assert set(names) < set(colours) and len(own) == len(set(own)) == min(10, len(colours))


def check_arrows(browser):
    """Assert that the head of every move's arrow is in ink on the map."""
    heads = page(
        browser,
        "((map) => { const seen = " + COPY + "(map.canvas), ends = map.scene.moved.filter(({from, to, tile}) => "
        "from !== to && Math.floor(tile / 64) === 0).map(({from, to}) => map.curve(from, to)); "
        "return ends.map(({end, middle}) => { const long = Math.hypot(end[0] - middle[0], end[1] - middle[1]); "
        "const at = [0, 1].map((n) => Math.round(end[n] - 3 * (end[n] - middle[n]) / long)); "
        "return [...seen.getImageData(...at, 1, 1).data].slice(0, 3); }); })(page.maps[0])",
    )
    assert len(heads) == SIDE * SIDE
    assert all(max(colour) < 90 for colour in heads), heads


def test_every_arrow_ends_in_a_head_that_is_seen(show):
    browser = show("compare")
    assert page(browser, "page.scenes[0].moved.length") > 0
    check_arrows(browser)


def test_moves_of_another_buffer_are_drawn_where_the_buffer_in_view_rests(show):
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
    drawn_ = page(
        browser,
        "((map) => { let lines = 0, heads = 0; const bus = map.bus.bind(map), head = map.head.bind(map); "
        "map.bus = (group) => { lines += 1; bus(group); }; map.head = (...at) => { heads += 1; head(...at); }; "
        "map.draw(); delete map.bus; delete map.head; return [lines, heads, map.scene.moved.length]; })(page.maps[1])",
    )
    assert drawn_[0] == SIDE and 0 < drawn_[1] <= drawn_[2]


def test_sums_are_coloured_by_how_many_parts_they_have(show):
    browser = show("tree")
    assert browser.value("document.querySelector('#show').value") == "parts y"
    browser.key("Home")
    start = pixels(browser, "#map-first")
    parts = page(
        browser,
        "((scene) => scene.rounds.map((_, round) => { scene.goTo(round + 1); return "
        "[...scene.parts[scene.buffers.findIndex(({name}) => name === 'y')]]; }))(page.scenes[0])",
    )
    assert set(parts[0]) == {1} and set(parts[-1]) == {8}  # every core of a column of 8 adds one part
    assert all(max(before) <= max(after) for before, after in pairwise(parts))
    browser.key("End")
    assert pixels(browser, "#map-first") != start
    assert "8 parts summed" in browser.text("#maps .scale")


def check_fill(browser):
    """Assert that the page counts the entries of every row of a cache, by each policy after each append."""
    for number, policy in enumerate(POLICIES):
        for count in range(7):
            browser.choose("#slider", str(count))
            filled = page(browser, f"[...page.scenes[{number}].fill(0)]")
            entries = np.diff(KvCache(4, 6, policy).windows(count))
            assert filled == np.repeat(entries, 2).tolist(), (policy, count)


def test_rows_of_a_cache_are_coloured_by_their_entries(show):
    browser = show("cache")
    assert browser.value("document.querySelector('#show').value") == "fill cache"
    check_fill(browser)
    for canvas, entries in (("#map-first", {1, 2}), ("#map-second", {0, 6})):  # after 6 appends
        drawn_ = pixels(browser, canvas)
        assert all(drawn_.get(page(browser, f"amount({count} / 7).join(',')"), 0) > 200 for count in entries), canvas
    assert "no entry" in browser.text("#maps .scale") and "all 7 slots filled" in browser.text("#maps .scale")


def test_an_all_reduce_is_shown_by_the_parts_of_its_sums(show):
    browser = show("reduce")
    assert browser.value("document.querySelector('#show').value") == "parts x"
    assert browser.text("#headline").startswith("ktree 12 hops, pipeline 14;")
    browser.key("End")
    assert page(browser, "[...new Set(page.scenes[0].parts[0])]") == [8]
    assert "tile of x" in page(browser, "page.maps[0].said(page.maps[0].canvas.clientWidth / 2, 100)")


def times_of(browser, track):
    """Return the spans of a track of a whole request on the page, [start, end, name, runs]."""
    return page(browser, f"page.data.time.rows.find(({{name}}) => name === {track!r}).lanes[0]")


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
    rows = page(browser, "page.data.time.rows.map(({name, region, lanes}) => [name, region, lanes])")
    assert [name for name, *_ in rows] == ["tokens", "region 0", "region 1"]
    for number in (1, 2):
        start, end, name, _ = next(span for span in rows[number][2][0] if span[2].startswith("layer "))
        x, y = page(
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
    whole = page(browser, "page.times.view()")
    browser.choose("#times-view", "1")
    start, end = page(browser, "page.times.view()")
    layer = [each for each in page(browser, "page.data.time.rows[1].lanes[0]") if each[2].startswith("layer 0 ")]
    assert [start, end] == [layer[0][0], layer[-1][1]]
    browser.press("#times-out")
    assert page(browser, "page.times.view()")[1] > end
    browser.choose("#times-view", "1")
    address = browser.value("location.hash")
    browser.choose("#times-view", "0")
    assert page(browser, "page.times.view()") == whole
    browser.value(f"location.hash = {address!r}")
    browser.value("new Promise((done) => setTimeout(done, 0))")
    assert page(browser, "page.times.view()") == pytest.approx([start, end], abs=1)


def test_values_of_an_own_schedule_are_its_intents_tiles_and_their_sums(show):
    browser, own = show("own"), load(f"{OWN}:two_sided")
    given = drawn(own.schedule, own.intent, 1, seed=0)["x"][0]
    browser.choose("#row", "2")
    browser.choose("#column", "5")
    for key, want in (("Home", given[2, 5]), ("End", given[2].sum(0))):
        browser.key(key)
        figures = page(
            browser, f"page.scenes[0].valuesOf('x', {2 * 8 + 5}, {0 if key == 'Home' else len(own.schedule.rounds)})"
        )
        assert figures[3:] == pytest.approx(want[:4].tolist(), rel=1e-3)


def test_sram_of_a_model_adds_up_to_its_region_below_the_limit(show):
    browser = show("model")
    region = page(browser, "page.data.regions[page.region]")
    peaks = []
    for number in range(page(browser, "page.scenes.length")):
        browser.choose("#first", str(number))
        peaks.append(page(browser, "page.first().others + page.first().account.sram_peak_bytes"))
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
    assert page(browser, "page.maps[0].byRegion()") is False


def test_the_headline_has_the_counts_of_python(show):
    browser = show("compare")
    schedules = [
        recipe("gemm", Mesh(SIDE, SIDE), "fp16", ((32, 32), (32, 32)), (("algorithm", name),)).schedule
        for name in ("mesh", "allgather")
    ]
    hops = [account(schedule).hops for schedule in schedules]
    assert browser.text("#headline").startswith(f"mesh {hops[0]} hops, allgather {hops[1]};")
    assert "regions of 64x64 cores" in show("model").text("#headline")


def test_a_page_opens_on_a_round_with_messages_of_the_longest_step(show):
    browser = show("compare")
    assert ", gemm: 128 tiles move" in browser.text("#status")


def check_address(browser, folder):
    """Assert that the address shows the same round and core again."""
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


def test_the_address_shows_the_same_view_again(browser, folder):
    browser.open(folder / "compare.html")
    check_address(browser, folder)
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
    x, y = page(browser, f"page.maps[0].middle({2 * SIDE + 3})")
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
    views = page(browser, "page.maps.map((map) => map.view)")
    assert views[0] == views[1]
    browser.press("#save")
    assert page(browser, "page.saved").startswith("data:image/png;base64,")


def test_a_click_on_sram_or_the_strip_goes_to_the_round(show):
    browser = show("tree")
    browser.key("Home")
    for canvas in ("sram", "strip"):
        browser.value(f"document.querySelector('#{canvas}').scrollIntoView({{block: 'center'}})")
        x, y, length = page(
            browser,
            f"(({{x, y, width}}) => [x + LEFT + 2.5 * (width - LEFT - RIGHT) / page.scenes[0].length, y + 40, "
            f"page.scenes[0].length])(document.querySelector('#{canvas}').getBoundingClientRect())",
        )
        browser.click(x, y)
        assert f"After round 2 (of 0 to {length - 1})" in browser.text("#status")


def test_time_is_zoomed_around_the_round_in_view(show):
    browser = show("compare")
    browser.press("#time-in")
    start, end = page(browser, "page.window")
    now = page(browser, "page.scenes[0].intervalAt(page.position)")
    assert start <= now["start"] <= end
    browser.press("#time-whole")
    assert page(browser, "page.window") is None


def test_a_dark_preference_is_kept_without_a_click(show):
    browser = show("compare")
    light = browser.value("getComputedStyle(document.body).backgroundColor")
    browser.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    try:
        assert browser.value("getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 28)" != light
    finally:
        browser.ask("Emulation.setEmulatedMedia", features=[])


@pytest.mark.parametrize("name", ["compare", "model", "request", "cache"])
def test_a_phone_shows_all_within_its_width_and_scrolls(show, name):
    browser = show(name)
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


def test_the_wheel_scrolls_over_a_map_and_zooms_with_a_key(show):
    browser = show("compare")
    x, y = page(browser, "page.maps[0].middle(9)")
    before = page(browser, "page.maps[0].view.scale")
    wheel = {"type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": -120}
    browser.ask("Input.dispatchMouseEvent", **wheel)
    assert page(browser, "page.maps[0].view.scale") == before
    browser.ask("Input.dispatchMouseEvent", **wheel, modifiers=2)
    assert page(browser, "page.maps[0].view.scale") == pytest.approx(1.2 * before)


FAULTS = {
    "colours of each schedule by itself": (
        "compare",
        "Object.assign(scene, { stepColours, bufferColours })",
        "Object.assign(scene, { stepColours: coloured(scene.cycles), bufferColours: coloured(scene.held) })",
        lambda browser, folder: check_colours(browser),
    ),
    "arrows below the cores": (
        "compare",
        "    if (!moving) return;\n",
        "    for (let core = 0; core < count; core += 1) { const [row, column] = this.corner(core); "
        "this.box(row, column, high, wide, '#fff'); }\n    if (!moving) return;\n",
        lambda browser, folder: check_arrows(browser),
    ),
    "an address without the core": ("compare", "if (scene) state.core =", "if (!scene) state.core =", check_address),
    "slots that stay full when their entry moves": (
        "cache",
        "if (src[0] === dst[0] && src[1] !== null)",
        "if (src[0] !== dst[0])",
        lambda browser, folder: check_fill(browser),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(browser, folder, tmp_path, fault):
    name, old, new, check = FAULTS[fault]
    text = (folder / f"{name}.html").read_text()
    assert text.count(old) == 1
    (tmp_path / f"{name}.html").write_text(text.replace(old, new))
    browser.open(tmp_path / f"{name}.html")
    assert browser.value("document.documentElement.dataset.ready") == "yes", json.dumps(browser.problems)
    with pytest.raises(AssertionError):
        check(browser, tmp_path)
