"""One Chromium for all browser tests, and pages in it whose faults fail the test that opened them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.serving import chromium


def pytest_collection_modifyitems(items):
    """Two more tries: two browsers, two servers and their tests share two cores, and a wait may end too soon."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.flaky(reruns=2))


# Playwright keeps an event loop while it runs, which tests outside this folder could not start theirs beside.
@pytest.fixture(scope="package")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture
def new_page(browser):
    """Open a page in a session of its own; ``page.faults`` are its script errors and, if asked, failed requests."""
    pages = []

    def opened(scheme: str = "light", width: int = 1400, height: int = 1000, *, requests: bool = False, **settings):
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, **settings)
        page = context.new_page()
        page.faults, page.scheme = [], scheme
        page.on("pageerror", lambda error: page.faults.append(str(error)))
        if requests:
            page.on("requestfailed", lambda request: page.faults.append(request.url))
        pages.append(page)
        return page

    yield opened
    faults = [fault for page in pages for fault in page.faults]
    for page in pages:
        page.context.close()
    assert faults == []
