"""The page Features in a real browser: a token is picked, what follows it follows, in both themes."""

import pytest

from tests.browser.serving import served

pytestmark = pytest.mark.browser


def test_a_picked_key_changes_the_codes_and_the_address_and_stays_after_another_page(new_page):
    with served(FAKE_SECONDS="0.2") as url:
        page = new_page("dark", 1400, 1000)
        page.wire = []
        page.on("websocket", lambda socket: socket.on("framereceived", lambda frame: page.wire.append(len(frame))))
        page.goto(f"{url}/features?layer=1")
        page.wait_for_selector(".fx .c.k", timeout=90_000)
        page.wait_for_selector(".js-plotly-plot .bars", timeout=60_000)
        page.get_by_text("live", exact=True).first.wait_for(timeout=60_000)
        assert sum(page.wire) < 500_000
        before = page.locator("h4").inner_text()
        page.locator(".fx .c:not(.later):not(.q):not(.k)").nth(30).hover()
        tip = page.locator(".fx .tip")
        assert "of 8 dimensions with the query" in tip.inner_text()
        token = int(tip.locator(".row").first.inner_text().removeprefix("token ").replace(",", ""))
        page.locator(".fx .c.at").click()
        page.wait_for_url(f"**codes=*-{token}*")
        page.wait_for_function("before => document.querySelector('h4').innerText !== before", arg=before)
        after = page.locator("h4").inner_text()
        page.get_by_role("tab", name="One tile, step by step").click()
        page.get_by_role("button", name="Next").click()
        page.get_by_text("Tile 1 of 3, running maximum.").wait_for()
        page.get_by_role("link", name="Masks and sparsity").click()
        page.wait_for_selector(".fm canvas")
        page.get_by_role("link", name="Features").click()
        page.wait_for_selector(".fx .c.k")
        page.wait_for_function("after => document.querySelector('h4')?.innerText === after", arg=after)
        page.locator(".fx .text").focus()
        page.locator(".fx button[data-side=query]").click()
        page.locator(".fx .c").nth(3).click()
        page.wait_for_url("**codes=4-4*")
        page.wait_for_timeout(300)
