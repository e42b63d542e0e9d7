"""Fixtures of pages: one browser, and pages that are shown by their names."""

import pytest

import browser as chromium
from pages import written


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    one = chromium.Browser(tmp_path_factory.mktemp("chromium"))
    yield one
    one.close()


@pytest.fixture(scope="module")
def folder(request, tmp_path_factory):
    """Write the pages of a file's `PAGES`."""
    folder = tmp_path_factory.mktemp("pages")
    written(folder, request.module.PAGES)
    return folder


@pytest.fixture
def show(browser, folder):
    """Show a page of the file's `folder` by name; it must request itself alone, and have no problem until the end."""

    def opened(name):
        path = folder / f"{name}.html"
        browser.open(path)
        assert browser.value("document.documentElement.dataset.ready") == "yes", browser.problems
        return browser

    yield opened
    assert browser.problems == []
    assert len(browser.requests) == 1 and browser.requests[0].startswith("file://")
