from __future__ import annotations

import time

import numpy as np
import pytest

from tests.app.synthetic import make_trace
from tests.browser.serving import served

pytestmark = pytest.mark.browser

EXPOSE = """() => { const seek = (root) => { for (const e of root.querySelectorAll('*')) {
    if (e.classList && e.classList.contains('fl') && e.strip) return e;
    if (e.shadowRoot) { const f = seek(e.shadowRoot); if (f) return f; } } return null; };
  window.fl = seek(document); return !!window.fl; }"""
ATTACK = "<script>window.hacked = 1</script> <img src=x onerror=\"window.hacked = 1\"> 'quoted' & more "


@pytest.fixture(scope="module")
def app():
    with served(FAKE_SECONDS="0.5") as url:
        yield url


@pytest.fixture
def visit(new_page):
    """Open an address and wait for the strip."""

    def open_page(url: str, scheme: str = "light"):
        page = new_page(scheme, 1280, 800, requests=True)
        page.goto(url)
        page.wait_for_selector(".fl .text span.c", timeout=90_000)
        assert page.evaluate(EXPOSE)
        return page

    return open_page


def settle(page, kind: str = "live"):
    page.get_by_text(kind, exact=True).first.wait_for(timeout=60_000)


def held(page) -> bool:
    return page.evaluate("() => window.fl.strip.pin !== null")


def test_first_paint_then_the_live_run_takes_over_without_a_jump(browser):
    with served(FAKE_SECONDS="6") as url:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        problems = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("requestfailed", lambda request: problems.append(request.url))
        page.goto(url)
        page.wait_for_selector(".fl .text span.c", timeout=90_000)
        page.evaluate(EXPOSE)
        assert page.get_by_text("recorded", exact=True).first.is_visible()
        box = page.locator(".fl .text")
        before, built = box.bounding_box(), page.evaluate("() => window.fl.dataset.built")
        box.evaluate("(e) => { e.scrollTop = 150; }")
        settle(page)
        after = box.bounding_box()
        assert (before["x"], before["y"], before["width"]) == (after["x"], after["y"], after["width"])
        assert box.evaluate("(e) => e.scrollTop") == 150
        assert page.evaluate("() => [window.fl.isConnected, window.fl.dataset.built]") == [True, built]
        assert not problems
        page.close()


def test_the_strip_counts_what_the_pattern_keeps(visit, app):
    page = visit(app)
    settle(page)
    data = page.evaluate("() => { const d = window.fl.strip.data; return [d.layer, d.window, d.sinks, d.count]; }")
    counts = page.evaluate("() => [0, 5, 200, 700, 1100].map((i) => window.fl.strip.count(i).all)")
    text = page.evaluate("() => window.fl.strip.tokens.join('')")
    topk = int(page.evaluate("() => window.fl.strip.q.low[50].toString(2).replaceAll('0', '').length"))
    trace = make_trace(text, window=data[1], sinks=data[2], query_topk=topk)
    assert len(trace) == data[3]
    kept = trace.pattern(data[0]).kept_per_query(0, 0)
    assert counts == [int(kept[i]) for i in (0, 5, 200, 700, 1100)]


def test_hover_click_second_click_and_escape(visit, app):
    page = visit(app)
    settle(page)
    cells = page.locator(".fl .text span.c")
    cells.nth(300).scroll_into_view_if_needed()
    cells.nth(300).hover()
    assert page.locator(".fl.on").count() == 1
    assert page.locator(".fl .tip").evaluate("(e) => getComputedStyle(e).visibility") == "visible"
    assert "token 301" in page.locator(".fl .tip").inner_text()
    cells.nth(300).click()
    page.get_by_text("Where its dense attention went").wait_for()
    page.wait_for_function("() => window.fl.strip.data.lost && window.fl.strip.data.lost.query === 300")
    marked = page.locator(".fl .text span.l").count()
    assert marked == page.evaluate("() => window.fl.strip.data.lost.keys.length") > 0
    scroll = page.locator(".fl .text").evaluate("(e) => e.scrollTop")
    page.mouse.move(700, 770)
    assert held(page)
    cells.nth(300).click()
    page.get_by_text("Where its dense attention went").wait_for(state="detached")
    assert not held(page)
    cells.nth(305).click()
    page.get_by_text("Where its dense attention went").wait_for()
    page.keyboard.press("Escape")
    page.get_by_text("Where its dense attention went").wait_for(state="detached")
    assert not held(page)
    assert page.locator(".fl .text").evaluate("(e) => e.scrollTop") == scroll


def test_arrow_keys_move_and_enter_holds(visit, app):
    page = visit(app)
    settle(page)
    page.locator(".fl .text").focus()
    for key in ("Home", "ArrowRight", "ArrowRight", "ArrowDown", "ArrowUp", "ArrowLeft"):
        page.keyboard.press(key)
    assert page.evaluate("() => window.fl.strip.query") in (0, 1, 2)
    before = page.evaluate("() => window.fl.strip.query")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("() => window.fl.strip.query") > before + 3
    page.keyboard.press("Enter")
    page.get_by_text("Where its dense attention went").wait_for()
    page.keyboard.press("End")
    assert page.evaluate("() => window.fl.strip.pin") == page.evaluate("() => window.fl.strip.total - 1")
    assert "(token" in page.locator(".fl .sr").inner_text()


def test_a_new_layer_keeps_the_spans_the_scroll_and_the_held_token(visit, app):
    page = visit(app)
    settle(page)
    cells = page.locator(".fl .text span.c")
    cells.nth(400).click()
    page.get_by_text("Where its dense attention went").wait_for()
    state = "() => [window.fl.isConnected, window.fl.dataset.built, window.fl.strip.box.scrollTop, window.fl.strip.pin]"
    before, view = page.evaluate(state), page.evaluate("() => window.fl.strip.view")
    page.get_by_role("slider", name="Layer").first.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("(view) => window.fl.strip.view !== view", arg=view)
    assert page.evaluate(state) == before
    assert page.evaluate("() => window.fl.strip.pin") == 400
    assert "layer=2" in page.url


def test_a_layer_without_queries_and_keys_offers_the_nearest_that_has_them(visit, app):
    page = visit(app + "/?layer=0")
    settle(page)
    page.locator(".fl .text span.c").nth(120).click()
    page.get_by_role("button", name="Show layer 1").click()
    page.get_by_text("Where its dense attention went").wait_for()
    page.wait_for_function("() => window.fl.strip.data.layer === 1 && window.fl.strip.pin === 120")
    assert "layer=" not in page.url  # 1 is where every run starts, and a link leaves the start out


def test_the_damage_map_recolours_the_same_spans(visit, app):
    page = visit(app)
    settle(page)
    built = page.evaluate("() => window.fl.dataset.built")
    page.get_by_text("Where it hurts").click()
    page.wait_for_selector(".fl.damage")
    assert page.locator(".fl .text span[class*=bad]").count() > 5
    assert page.evaluate("() => window.fl.dataset.built") == built
    page.get_by_text("Hurt most").wait_for()
    page.locator("[class*=st-key-hurt_] button").first.click()
    page.get_by_text("less likely** than").or_(page.get_by_text("than with dense attention")).first.wait_for()
    assert held(page)


def test_both_themes_are_designed(visit, app):
    looks = {}
    for scheme in ("light", "dark"):
        page = visit(app, scheme)
        settle(page)
        looks[scheme] = page.evaluate(
            "() => { const of = (e) => getComputedStyle(e), s = of(window.fl.strip.spans[3]);"
            "return [of(document.querySelector('.stApp')).backgroundColor, s.color, s.backgroundColor]; }"
        )
        picture = page.screenshot()
        assert len(picture) > 30_000
    light, dark = (brightness(looks[scheme][0]) for scheme in ("light", "dark"))
    assert light > 200
    assert dark < 60
    assert brightness(looks["light"][1]) < 100
    assert brightness(looks["dark"][1]) > 180
    assert looks["light"][2] != looks["dark"][2]


def brightness(color: str) -> float:
    import re

    return float(np.mean([float(x) for x in re.findall(r"[\d.]+", color)[:3]])) * (255 if "srgb" in color else 1)


def test_token_text_is_only_ever_text(visit, app):
    page = visit(app + "/?text=own")
    area = page.locator("textarea").first
    area.wait_for(timeout=60_000)
    area.fill(ATTACK * 12)
    area.press("Control+Enter")
    page.locator(".st-key-run_now button").click()
    page.wait_for_function("() => window.fl.strip.tokens[0] === '<'", timeout=60_000)
    cells = page.locator(".fl .text span.c")
    for i in (0, 8, 20):
        cells.nth(i).hover()
    cells.nth(200).click()
    page.get_by_text("Where its dense attention went").wait_for()
    time.sleep(0.5)
    assert page.evaluate("() => window.hacked") is None
    assert page.locator(".fl .text").evaluate("(e) => e.textContent.startsWith('<script>window')")
    assert page.locator(".fl .text img, .fl .text script").count() == 0
    assert "script" not in page.url
    assert "hacked" not in page.url


def test_a_page_switch_keeps_the_selection_and_the_held_token(visit, app):
    page = visit(app + "/?layer=1")
    settle(page)
    page.locator(".fl .text span.c").nth(150).click()
    page.get_by_text("Where its dense attention went").wait_for()
    page.get_by_role("link", name="Compare").click()
    page.wait_for_selector(".fl", state="detached", timeout=60_000)
    page.get_by_role("link", name="Overview").click()
    page.wait_for_selector(".fl .text span.c", timeout=60_000)
    page.evaluate(EXPOSE)
    page.wait_for_function("() => window.fl.strip.pin === 150", timeout=20_000)
    assert page.evaluate("() => window.fl.strip.data.layer") == 1
