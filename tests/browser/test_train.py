"""The tab Train in a real browser, light and dark: it evolves, stops, goes on, is found again, and is saved."""

import re

import pytest

from tests.browser.serving import served

pytestmark = pytest.mark.browser

TRAIN = re.compile("Train · about")


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    cache = str(tmp_path_factory.mktemp("cache"))
    with served(FOCUS_LAB_ENGINE="tests.app.fake_train:make", FAKE_SECONDS="12", FOCUS_LAB_CACHE=cache) as url:
        yield url


@pytest.fixture(params=["light", "dark"])
def page(request, new_page, address):
    page = new_page(request.param, height=1500)
    page.goto(f"{address}/groups?groups_tab=Train&train_groups={8 if request.param == 'light' else 4}")
    page.get_by_role("tab", name="Train").wait_for(timeout=60_000)
    return page


def test_a_router_learns_stops_goes_on_and_is_kept(page):
    page.get_by_role("button", name=TRAIN).click()
    page.get_by_text(re.compile("Untrained groups serve|After .* steps the groups serve")).wait_for(timeout=20_000)
    strip = page.locator(".st-key-train_strip .fl")
    strip.wait_for(timeout=20_000)
    cells = strip.locator(".text span")
    before, built = cells.evaluate_all("all => all.map(e => e.className)"), strip.get_attribute("data-built")
    page.get_by_text(re.compile(r"after step (6|12)")).wait_for(timeout=20_000)
    # The strip is dressed anew in place: no rebuilding, so no flicker.
    for _ in range(50):
        after = cells.evaluate_all("all => all.map(e => e.className)")
        if after != before:
            break
        page.wait_for_timeout(200)
    assert after != before
    assert len(after) == len(before)
    assert strip.get_attribute("data-built") == built
    page.locator(".st-key-train_stop button").click()
    page.get_by_role("button", name=re.compile("Go on from step")).wait_for(timeout=20_000)
    assert "trained=" in page.url
    page.reload()
    page.get_by_role("button", name=re.compile("Go on from step")).click(timeout=60_000)
    page.get_by_text("This run is whole").wait_for(timeout=60_000)
    page.get_by_text(re.compile("After 20 of 20 steps the groups serve perplexity 41.0")).wait_for()
    name = f"kept-{page.scheme}"
    field = page.locator(".st-key-train_name input")
    field.fill(name)
    field.press("Enter")
    page.locator(".st-key-train_save button").click()
    page.get_by_text(f"Kept as {name}").wait_for(timeout=20_000)
    page.locator(".st-key-train_use button").click()
    page.wait_for_url(re.compile(f"adapter={name}"), timeout=20_000)
    assert page.get_by_text("Traceback").count() == 0


def test_the_collapse_is_drawn_and_replayed(page):
    page.get_by_role("tab", name="Collapse").click()
    page.get_by_text(re.compile("One group takes most tokens with the model frozen")).wait_for(timeout=30_000)
    panels = page.locator(".st-key-collapse_panels .js-plotly-plot")
    panels.wait_for(timeout=30_000)
    assert panels.locator(".subplot").count() == 5
    page.get_by_role("slider", name="Replay: up to step").press("Home")
    page.get_by_text("No collapse with the model frozen").wait_for(timeout=20_000)
    page.get_by_text("All weights move", exact=True).click()
    page.get_by_text(re.compile("with all weights moving")).first.wait_for(timeout=20_000)
