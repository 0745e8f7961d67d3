"""Links and reloads in a real browser: what was shown is shown again, and pasted text never stands in an address."""

import re

import pytest

from tests.browser.serving import served

pytestmark = pytest.mark.browser

QUESTION = "Does every token need to see every other?"
SECRET = "The quiet harbour keeps a secret that nobody reads aloud. "


@pytest.fixture(scope="module")
def address():
    with served() as url:
        yield url


@pytest.fixture(params=["light", "dark"])
def page(request, new_page):
    return new_page(request.param)


def visit(page, url):
    page.goto(url)
    page.get_by_role("heading", name=QUESTION).wait_for(timeout=60_000)
    page.locator(".fl .text span.c").first.wait_for(timeout=60_000)


def choose(page, label, option):
    page.get_by_role("combobox", name=re.compile(label)).click()
    page.get_by_role("option", name=option).click()


def run_own_text(page, address):
    visit(page, f"{address}/")
    choose(page, "Text", "Your own text …")
    page.get_by_role("textbox", name="Paste a text").fill(SECRET * 40)
    page.get_by_role("textbox", name="Paste a text").press("Control+Enter")
    page.get_by_role("button", name=re.compile("^Run")).click()
    page.wait_for_url(re.compile(r"run=[0-9a-f]{32}"), timeout=20_000)
    page.get_by_text("harbour").first.wait_for()


def test_a_reload_brings_pasted_text_back_and_the_address_holds_only_its_run(page, address):
    run_own_text(page, address)
    assert "secret" not in page.url
    before = page.url
    page.reload()
    page.locator(".fl .text span.c").first.wait_for(timeout=60_000)
    page.get_by_text("harbour").first.wait_for(timeout=20_000)
    assert page.get_by_role("textbox", name="Paste a text").input_value().startswith("The quiet harbour")
    page.wait_for_function(
        "before => new URLSearchParams(location.search).toString().split('&').sort().join() ==="
        " before.split('?')[1].split('&').sort().join()",
        arg=before,
        timeout=10_000,
    )
    assert page.get_by_text("has not run yet").count() == 0


def test_a_link_alone_opens_the_run_in_another_browser(page, address, browser):
    run_own_text(page, address)
    run = re.search(r"run=([0-9a-f]{32})", page.url).group(1)
    other = browser.new_context()
    try:
        tab = other.new_page()
        visit(tab, f"{address}/?run={run}&layer=3&head=Head 2&tok=30")
        tab.get_by_text("harbour").first.wait_for(timeout=20_000)
        assert tab.get_by_role("textbox", name="Paste a text").input_value().startswith("The quiet harbour")
        tab.get_by_text("(token 30)").first.wait_for(timeout=10_000)
        tab.get_by_test_id("stSliderThumbValue").filter(has_text="3").wait_for(timeout=5000)
    finally:
        other.close()


def test_a_run_wins_over_what_else_the_link_says_of_its_text(page, address):
    run_own_text(page, address)
    run = re.search(r"run=([0-9a-f]{32})", page.url).group(1)
    visit(page, f"{address}/?text=Persuasion: the opening&variant=Window&run={run}")
    page.get_by_text("harbour").first.wait_for(timeout=20_000)
    assert page.get_by_role("textbox", name="Paste a text").input_value().startswith("The quiet harbour")
    assert page.get_by_text("has not run yet").count() == 0


def test_a_run_that_is_gone_and_a_page_that_is_none_are_said_once(page, address):
    visit(page, f"{address}/nopage?run={'0' * 32}&layer=3")
    page.get_by_text("of the link is not on this machine").wait_for(timeout=10_000)
    page.get_by_text("There is no page /nopage; showing Overview.").wait_for(timeout=10_000)
    page.wait_for_url(re.compile("/[?](.*&)?layer=3"), timeout=10_000)
    visit(page, f"{address}/overview?layer=2")
    page.wait_for_url(re.compile("/[?](.*&)?layer=2"), timeout=10_000)
    assert page.get_by_role("dialog").count() == 0


def test_the_held_token_and_the_address_survive_a_page_switch(page, address):
    visit(page, f"{address}/?tok=40&layer=2")
    page.get_by_text("(token 40)").first.wait_for(timeout=10_000)
    page.get_by_role("link", name="Compare").click()
    page.get_by_role("heading", name=re.compile("What does it cost")).wait_for(timeout=30_000)
    page.wait_for_url(re.compile("tok=40"), timeout=10_000)
    page.get_by_role("link", name="Overview").click()
    page.get_by_text("(token 40)").first.wait_for(timeout=20_000)
    page.wait_for_url(re.compile("layer=2"), timeout=10_000)


def test_a_page_loaded_again_during_a_run_can_stop_it(browser):
    with served(FAKE_SECONDS="60") as url:
        context = browser.new_context()
        try:
            page = context.new_page()
            visit(page, url)
            page.get_by_role("button", name="Stop").wait_for(timeout=20_000)
            page.reload()
            page.locator(".fl .text span.c").first.wait_for(timeout=60_000)
            page.get_by_role("button", name="Stop").click()
            page.get_by_text("was cancelled").wait_for(timeout=10_000)
        finally:
            context.close()
