"""The tab of what is forgotten in a real browser, wide and narrow, with the synthetic engine."""

import re

import pytest

from tests.browser.serving import served

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address():
    with served(FOCUS_LAB_ENGINE="tests.app.fake_forgotten:make", FAKE_SECONDS="2") as url:
        yield f"{url}/compare?compare_view=What+is+forgotten&compare_behind=True"


def test_a_prompt_is_answered_side_by_side_as_it_comes(new_page, address):
    page = new_page("dark", 1300)
    page.goto(address)
    plot = page.locator(".js-plotly-plot").first
    plot.wait_for(timeout=60_000)
    page.get_by_text(re.compile("loses most on needles")).wait_for(timeout=30_000)
    assert plot.locator(".scatterlayer .trace").count() == 2
    page.get_by_role("button", name=re.compile("Ask all 3")).click()
    page.get_by_role("button", name="Stop").wait_for(timeout=10_000)
    page.get_by_text("App", exact=True).wait_for(timeout=10_000)
    page.get_by_text("<b>Plum</b>").wait_for(timeout=20_000)
    page.get_by_text(re.compile("As dense for 5 words")).wait_for(timeout=10_000)
    page.set_viewport_size({"width": 800, "height": 1000})
    page.wait_for_function("document.querySelector('.js-plotly-plot').getBoundingClientRect().right <= 800")
    assert plot.bounding_box()["x"] >= 0
    assert page.get_by_text("Traceback").count() == 0
