"""Pages in a real browser, driven as by a reader: the contents equal Python's counts.

They need Debian's Chromium (`make browser`); without it they are left out.
"""

import itertools
import json
import re
from functools import partial

import pytest
import torch

from pages import IN_CHROMIUM, cells, settled, whole
from schedules import LAYERS, MOVES, SUMS, build
from wafer_triton import draw
from wafer_triton.algorithms.product import recipe
from wafer_triton.cost.price import intervals, price
from wafer_triton.count.account import account, link_loads, per_round
from wafer_triton.count.routes import routes
from wafer_triton.device.mesh import Mesh
from wafer_triton.draw.tiles import rounds

pytestmark = IN_CHROMIUM
SIDE, SIZE = 6, 24
SIZES = f"--m {SIZE} --k {SIZE} --n {SIZE} --mesh {SIDE}"
PAGES = {
    "product": f"gemm {SIZES} --values",
    "compare": f"gemm {SIZES} --beside cannon --beside summa",
}


def product(algorithm, side=SIDE, size=SIZE):
    shapes = ((size, size), (size, size))
    return recipe("gemm", Mesh(side, side), "fp16", shapes, (("algorithm", algorithm),)).schedule


def sum_of_bounds(schedule):
    """Return cycles by step and by their bound, such as compute."""
    sums = {}
    for run in intervals(schedule):
        of = sums.setdefault(run.label, dict.fromkeys(run.cost.bounds, 0.0))
        for name, cycles in run.cost.bounds.items():
            of[name] += cycles
    return sums


def test_counts_price_and_links_equal_python_s(show):
    browser, schedule = show("product"), product("mesh")
    counted, cost = account(schedule), price(schedule)
    shown = {row[0]: row[1] for row in cells(browser, "#counts")}
    names = {"rounds": "rounds", "hops": "hops", "over links": "link_bytes", "SRAM peak": "sram_peak_bytes"}
    assert {name: whole(shown[name]) for name in names} == {name: getattr(counted, of) for name, of in names.items()}
    assert whole(shown["predicted cycles"]) == round(cost.cycles)
    steps = {row[0]: whole(row[1]) for row in cells(browser, "#costs")}
    assert sum(steps.values()) == pytest.approx(cost.cycles, abs=len(steps)) and list(steps) == [
        "align a and b",
        "gemm",
        "sums to fp16",
    ]
    bounds = sum_of_bounds(schedule)
    for step, _, most in cells(browser, "#costs"):
        name, share = max(bounds[step].items(), key=lambda bound: bound[1])
        assert most == f"{name} {100 * share / sum(bounds[step].values()):.0f} %"
    assert "on one link" in browser.text("#heat .scale") and browser.text("#heat .scale").startswith("0 B")
    assert f"ends at {cost.cycles:,.0f} predicted cycles" in browser.value(
        "document.querySelector('#timeline').ariaLabel"
    )
    captions = browser.value(
        "[...document.querySelectorAll('#heat figcaption')].map((one) => [one.textContent, +one.dataset.bytes])"
    )
    assert {text.split(":")[0].removeprefix("to the "): size for text, size in captions} == {
        way: load.sum() for way, load in link_loads(schedule).items()
    }
    assert sum(size for _, size in captions) == counted.link_bytes


def test_slider_steps_keys_and_play(show):
    browser, schedule = show("product"), product("mesh")
    each, placed = per_round(schedule), intervals(schedule)
    browser.key("Home")
    assert browser.text("#status") == f"Start, before rounds 0 to {len(schedule.rounds) - 1}"
    browser.choose("#slider", "5")
    now = next(run for run in placed if run.first <= 4 <= run.last)
    settled(browser, f"After round 4 (of 0 to {len(schedule.rounds) - 1}), {schedule.rounds[4].label}")
    settled(browser, f"predicted cycles {now.start:,.0f} to {now.end:,.0f} of {price(schedule).cycles:,.0f}")
    settled(
        browser,
        f"{each[4].messages:,} tiles move over at most {each[4].hops} links, {each[4].link_bytes:,} B over links",
    )
    browser.press("#on")
    settled(browser, "After round 5")
    browser.key("ArrowLeft")
    settled(browser, "After round 4")
    browser.press("[name=span][value=round]")
    bytes_of_round = browser.value(
        "[...document.querySelectorAll('#heat figcaption')].reduce((sum, one) => sum + +one.dataset.bytes, 0)"
    )
    assert bytes_of_round == each[4].link_bytes
    browser.key("End")
    settled(browser, f"After round {len(schedule.rounds) - 1}")
    browser.key("Home")
    settled(browser, "Start")
    browser.choose("#speed", "5")
    browser.press("#play")
    assert browser.text("#play").endswith("pause")
    settled(browser, f"After round {len(schedule.rounds) - 1}")


def test_a_round_of_a_longer_run_names_the_rounds_whose_cycles_it_says(show):
    browser, placed = show("product"), intervals(product("mesh"))
    assert [(run.first, run.last) for run in placed[:3]] == [(0, 2), (3, 3), (4, 4)]
    browser.choose("#slider", "1")
    settled(browser, f"; rounds 0 to 2 together: predicted cycles 0 to {placed[0].end:,.0f} of")
    browser.choose("#slider", "6")
    settled(browser, f"B over links; predicted cycles {placed[3].start:,.0f} to {placed[3].end:,.0f} of")


def test_the_map_names_the_buffer_that_holds_a_tile_as_the_panel_has_it(show):
    browser, schedule = show("product"), product("mesh")
    holders, rounds = set(), range(0, len(schedule.rounds), 3)
    for buffer, (position, core) in itertools.product("ab", itertools.product(rounds, (0, 15))):
        browser.choose("#show", f"tiles {buffer}")
        browser.choose("#slider", str(position))
        browser.choose("#row", str(core // SIDE))
        browser.choose("#column", str(core % SIDE))
        said = browser.value(f"waferTriton.then(({{maps: [map]}}) => map.said(...map.centre({core})))")
        origin, holder = re.fullmatch(
            rf"core .*: tile of {buffer} from (\(\d, \d\))(?:, in (\S+))?, \d+ B", said
        ).groups()
        holders.add(holder)
        rows = {row[0]: row[3] for row in cells(browser, "#facts .wide:first-of-type")}
        assert rows[holder or buffer] == f"{buffer} {origin}", (buffer, position, core)
    assert holders == {None, "a.next", "b.next"}


def test_tiles_on_the_page_lie_where_python_has_them(browser, tmp_path):
    """Compare the script with `wafer_triton.draw.tiles`, on schedules of every kind and a folded mesh."""
    built = [build(make, "2x3", "fp16") for make in (SUMS | MOVES | LAYERS).values()]
    kinds = [schedule for schedule in built if schedule.rounds]
    draw.page(tmp_path / "all.html", "all", [draw.scene(schedule) for schedule in kinds], kinds[0].mesh.device)
    browser.open(tmp_path / "all.html")
    followed = browser.value(
        "waferTriton.then(({scenes}) => scenes.map((scene) => scene.rounds.map((_, round) => "
        "{ scene.goTo(round + 1); return scene.last.map((tiles) => [...tiles]); })))"
    )
    for schedule, here in zip(kinds, followed, strict=True):
        assert here == [[where[name].ravel().tolist() for name in schedule.buffers] for where in rounds(schedule)]
    assert browser.problems == []


def test_a_click_shows_a_core_s_buffers_sends_and_receives(show):
    browser, schedule = show("product"), product("mesh")
    browser.choose("#slider", "6")
    x, y = browser.value(f"waferTriton.then((page) => page.maps[0].middle({2 * SIDE + 3}))")
    browser.click(x, y)
    assert (
        browser.value("document.querySelector('#row').value"),
        browser.value("document.querySelector('#column').value"),
    ) == ("2", "3")
    along = next(exchange for exchange in schedule.rounds[5].exchanges if exchange.axis == "x")
    to = dict(zip(along.moves.send.tolist(), along.moves.recv.tolist(), strict=True))[3]
    whence = dict(zip(along.moves.recv.tolist(), along.moves.send.tolist(), strict=True))[3]
    facts = browser.text("#facts")
    assert f"(2, {to})" in facts.partition("Sends in this round")[2].partition("Receives")[0]
    assert f"(2, {whence})" in facts.partition("Receives in this round")[2].partition("Colours")[0]
    listed = re.findall(r"\d+", browser.text("#colours").partition("(")[0])
    assert len(set(listed)) == len(listed) == routes(schedule).per_core[2, 3]
    browser.key("ArrowDown", shift=True)
    assert browser.value("document.querySelector('#row').value") == "3"


def test_values_equal_the_product(show):
    browser, random = show("product"), torch.Generator().manual_seed(0)
    tile = torch.randn(SIZE, SIZE, generator=random) @ torch.randn(SIZE, SIZE, generator=random)
    tile = tile.unflatten(0, (SIDE, -1)).unflatten(2, (SIDE, -1))[2, :, 3]
    browser.choose("#row", "2")
    browser.choose("#column", "3")
    browser.key("End")
    settled(browser, "sums to fp16: no tile moves")
    (row_of_out,) = [row for row in cells(browser, "#facts .wide:last-of-type") if row[0] == "out"]
    assert row_of_out[1] == "4 x 4" and float(row_of_out[2]) == pytest.approx(float(tile.norm()), rel=2e-3)
    assert [float(text) for text in row_of_out[4].split()] == pytest.approx(
        tile.flatten()[:4].tolist(), rel=1e-2, abs=1e-2
    )


def test_zoom_and_the_second_algorithm(show):
    browser = show("compare")
    scale = partial(browser.value, "waferTriton.then((page) => page.maps[0].view.scale)")
    fit = scale()
    browser.press("#in")
    assert scale() == pytest.approx(1.5 * fit)
    browser.press("#device")
    assert scale() < fit / 10
    browser.press("#core")
    assert scale() > fit
    assert [row[0] for row in cells(browser, "#counts")][:1] == ["rounds"]
    head = browser.value("[...document.querySelectorAll('#counts th')].map((one) => one.textContent)")
    assert head == ["", "mesh", "cannon"]
    browser.choose("#second", "2")
    hops = next(row for row in cells(browser, "#counts") if row[0] == "hops")
    hops = dict(zip(("mesh", "summa"), map(whole, hops[1:]), strict=True))
    assert hops == {name: account(product(name)).hops for name in hops}
    assert browser.text("#headline").startswith(f"mesh {hops['mesh']} hops, summa {hops['summa']};")
    browser.choose("#first", "1")
    assert browser.text("#headline").startswith(
        f"cannon {account(product('cannon')).hops} hops, summa {hops['summa']};"
    )
    browser.choose("#second", "")
    assert browser.text("#headline").startswith(f"cannon: {account(product('cannon')).hops} hops, ")
    assert browser.value("document.querySelector('#map-second').offsetParent === null")


def test_an_old_browser_gets_a_message(browser, tmp_path):
    schedule = product("mesh")
    draw.page(tmp_path / "old.html", "old", [draw.scene(schedule)], schedule.mesh.device)
    text = (tmp_path / "old.html").read_text().replace("<script>", "<script>delete window.DecompressionStream;", 1)
    (tmp_path / "old.html").write_text(text)
    browser.open(tmp_path / "old.html")
    assert "needs a browser of 2023 or later" in browser.text("#about")
    assert json.dumps(browser.problems).count("DecompressionStream") >= 1
