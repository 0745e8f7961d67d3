"""The KV cache page in a real browser, with the synthetic engine."""

import re

import pytest

from tests.browser.serving import served

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address():
    with served(FOCUS_LAB_ENGINE="tests.app.fake_cache:make", FAKE_SECONDS="1") as url:
        yield url


def test_caches_are_measured_and_every_tab_draws(new_page, address):
    page = new_page("dark", 800)
    page.goto(f"{address}/cache?cache_lines=sfa.features-8")
    page.get_by_role("heading", name="What must be remembered, and is it exact?").wait_for(timeout=60_000)
    page.get_by_role("button", name=re.compile("^Run|play_arrow")).first.click()
    page.get_by_text(re.compile("SFA, 8 features, keeps 3.55 kB")).wait_for(timeout=30_000)
    plot = page.locator(".st-key-cache_bars_saveable .js-plotly-plot")
    plot.get_by_text("3.55 kB", exact=False).wait_for(timeout=20_000)
    page.get_by_role("button", name=re.compile("Measure again")).wait_for(timeout=20_000)
    page.wait_for_url(re.compile("cache_run="))
    # No bar's text leaves the picture.
    box = plot.bounding_box()
    right = max(t.bounding_box()["x"] + t.bounding_box()["width"] for t in plot.locator("text.bartext").all())
    assert right <= box["x"] + box["width"] + 1
    page.get_by_role("radio", name="float16", exact=True).click()
    page.get_by_text(re.compile("Dense attention remembers 3.07 kB a token in float16")).wait_for(timeout=20_000)
    for tab, area in (("Two orders", "cache_orders"), ("Encoder-decoders", "cache_failures")):
        page.get_by_role("tab", name=tab).click()
        page.locator(f".st-key-{area}_saveable .js-plotly-plot .main-svg").first.wait_for(timeout=20_000)
    page.get_by_role("tab", name="What a card holds").click()
    page.get_by_text(re.compile("one sequence of 41,707 tokens with dense attention")).wait_for(timeout=20_000)
    assert page.get_by_text("Traceback").count() == 0
