"""The site of docs/ builds without a warning, its links lead somewhere, and it asks for nothing from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

import browser as chromium
import wafer_triton

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    line = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(line, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


def links(page):
    """Return the targets of a page's links, files of the site alone, without the anchor."""
    hrefs = re.findall(r'(?:href|src)="?([^"\s>]+)', page.read_text(encoding="utf-8"))
    return {unquote(href.partition("#")[0]) for href in hrefs if not re.match(r"[a-z]+:|#|/", href)} - {""}


def test_every_link_leads_to_a_file(site):
    pages = [page for page in site.rglob("*.html") if page.name != "404.html" and page.parent.name != "pages"]
    assert len(pages) >= 11
    for page in pages:
        assert [link for link in links(page) if not (page.parent / link).exists()] == [], page


def test_nothing_comes_from_elsewhere(site):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(
            r'<(?:script|img|iframe)[^>]*src="?https?:|<link[^>]*rel="?stylesheet[^>]*https?:', text
        ), page


def test_install_a_first_run_and_ones_own_algorithm_are_a_click_away(site):
    start = (site / "index.html").read_text(encoding="utf-8")
    assert "pip install" in start and "mesh_gemm" in start
    assert {"tutorial.html", "concepts.html", "api.html"} <= links(site / "index.html")


def test_the_reference_has_every_public_name(site):
    text = (site / "api.html").read_text(encoding="utf-8")
    heads = set(re.findall(r'<h[23] id="?wafer_triton\.([\w.]+)', text))
    assert heads >= set(wafer_triton.__all__) | {f"draw.{name}" for name in wafer_triton.draw.__all__}
    commands = (site / "commands.html").read_text(encoding="utf-8")
    assert all(f"--{option}" in commands for option in ("head-groups", "install-completion", "failed"))


def test_algorithms_can_be_walked_through(site):
    walks = {link for link in links(site / "concepts.html") if link.startswith("pages/")}
    assert walks == {f"pages/{page.name}" for page in (site / "pages").iterdir()} and len(walks) == 4


def test_every_document_is_in_the_navigation():
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("nav:")[2]
    assert [page.name for page in sorted((ROOT / "docs").glob("*.md")) if f": {page.name}\n" not in nav] == []


def test_no_link_is_called_by_a_file(site):
    for page in site.glob("*.html"):
        named = re.findall(r"<a href=\"?[\w./-]+\"?>([\w/-]+\.md)</a>", page.read_text(encoding="utf-8"))
        assert named == [], page.name


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if chromium.PROGRAM is None:
        pytest.skip("there is no Chromium; `make browser` installs it")
    one = chromium.Browser(tmp_path_factory.mktemp("chromium"))
    one.ask("Emulation.setDeviceMetricsOverride", width=1440, height=900, deviceScaleFactor=1, mobile=False)
    yield one
    one.close()


def opened(browser, page):
    """Open a page of the site from disk, and wait until it is complete."""
    browser.problems.clear()
    browser.requests.clear()
    browser.ask("Page.navigate", url=page.as_uri())
    browser.until(f"document.readyState === 'complete' && location.href === {page.as_uri()!r}")
    return browser


def test_search_finds_pages_from_disk(site, browser):
    opened(browser, site / "index.html")
    browser.value(
        "((field) => { field.focus(); field.value = 'Cannon'; for (const kind of ['input', 'keyup']) "
        "field.dispatchEvent(new Event(kind, {bubbles: true})); })"
        "(document.querySelector('[data-md-component=search-query]'))"
    )
    browser.until("document.querySelectorAll('.md-search-result__item').length > 0")
    found = browser.value("[...document.querySelectorAll('.md-search-result__link')].map((link) => link.href)")
    assert any("concepts.html" in link for link in found)
    assert all(address.startswith(("file:", "data:")) for address in browser.requests)
    assert browser.problems == []


def test_code_of_120_columns_fits_beside_the_navigation(site, browser):
    for page in ("concepts.html", "tutorial.html", "api.html", "reference.html"):
        opened(browser, site / page)
        wide = "(code) => Math.max(...code.textContent.split('\\n').map((line) => line.length))"
        every = browser.value(
            f"[...document.querySelectorAll('pre > code')].map((code) => [({wide})(code), "
            "code.scrollWidth <= code.clientWidth + 1])"
        )
        assert every and all(fits for columns, fits in every if columns <= 120), page
