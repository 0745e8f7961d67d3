"""The Claims page in a real browser, with the synthetic engine."""

import re

import pytest

from tests.browser.serving import served

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address():
    with served(FOCUS_LAB_ENGINE="tests.app.fake_cache:make", FAKE_SECONDS="1") as url:
        yield url


def test_a_linked_claim_opens_is_measured_again_and_filtered(new_page, address):
    page = new_page("dark", 800)
    page.goto(f"{address}/claims?claims_one=slim-half")
    page.get_by_role("heading", name="What was claimed, and what did we measure?").wait_for(timeout=60_000)
    page.locator(".st-key-claims_bars_saveable .js-plotly-plot .main-svg").first.wait_for(timeout=30_000)
    page.get_by_role("heading", name="The cache halves").wait_for()
    page.get_by_role("button", name=re.compile("Measure here")).click()
    page.get_by_text(re.compile("now, 50.0 % of dense recorded")).wait_for(timeout=20_000)
    # The picture and the table stay within a narrow page.
    for part in (".st-key-claims_bars_saveable", "[data-testid=stDataFrame]"):
        box = page.locator(part).first.bounding_box()
        assert box["x"] + box["width"] <= 800
    page.goto(f"{address}/claims?claims_method=mla")
    page.get_by_text("Of one claim about MLA").wait_for(timeout=30_000)
    page.wait_for_url(re.compile("claims_one=mla-cache"))
    page.get_by_role("link", name="KV cache").click()
    page.get_by_role("heading", name="What must be remembered").wait_for(timeout=30_000)
    assert "claims_one" not in page.url
    assert page.get_by_text("Traceback").count() == 0
