from __future__ import annotations

import pytest

from tests.browser.serving import served

pytestmark = pytest.mark.browser

EXPOSE = """() => { const seek = (root) => { for (const e of root.querySelectorAll('*')) {
    if (e.classList && e.classList.contains('fm') && e.map) return e;
    if (e.shadowRoot) { const f = seek(e.shadowRoot); if (f) return f; } } return null; };
  window.fm = seek(document); return !!window.fm; }"""
PLACE = """(token) => { const [x, y] = fm.map.at(token), box = fm.map.stage.getBoundingClientRect();
  return [box.left + x, box.top + y]; }"""
# A token whose dot no letter and no other dot covers.
ALONE = """() => { const m = fm.map; for (let t = 20; t < m.n; t++) { const [x, y] = m.at(t);
  if (m.letterAt(x, y) === null && m.centroidAt(x, y) === null && m.near(x, y, 14)[0][1] === t) return t; }
  return -1; }"""


@pytest.fixture(scope="module")
def app():
    with served(FAKE_SECONDS="0.5") as url:
        yield url


@pytest.fixture
def visit(new_page):
    """Open an address and wait for the map; page.wire holds (direction, bytes) of what goes over the wire."""

    def open_page(url: str, scheme: str = "light"):
        page = new_page(scheme, 1280, 900)
        page.wire = []
        page.on("websocket", lambda socket: socket.on("framesent", lambda f: page.wire.append(("sent", len(f)))))
        page.on("websocket", lambda socket: socket.on("framereceived", lambda f: page.wire.append(("got", len(f)))))
        page.goto(url)
        page.wait_for_selector(".fm canvas", timeout=90_000)
        page.get_by_text("live", exact=True).first.wait_for(timeout=60_000)
        page.wait_for_timeout(600)
        assert page.evaluate(EXPOSE)
        return page

    return open_page


def picked(page) -> list:
    return page.evaluate("() => [fm.map.picked.group, fm.map.picked.token]")


def test_hover_reads_the_token_and_a_click_selects_it_for_the_whole_page(visit, app):
    page = visit(f"{app}/groups")
    token = page.evaluate(ALONE)
    page.mouse.move(*page.evaluate(PLACE, token))
    tip = page.locator(".fm .tip")
    assert tip.evaluate("(e) => getComputedStyle(e).visibility") == "visible"
    assert f"token {token + 1:,}" in tip.inner_text()
    assert 0 < int(page.evaluate("() => fm.dataset.labels")) <= 64
    page.wire.clear()
    page.mouse.click(*page.evaluate(PLACE, token))
    page.get_by_text(f"(token {token + 1:,}) is in").wait_for()
    page.wait_for_url(f"**tok={token + 1}*")
    page.wait_for_timeout(400)
    # The coordinates are not sent again: nothing that comes is nearly as large.
    assert max(size for way, size in page.wire if way == "got") < 10_000
    group = picked(page)[0]
    page.get_by_role("link", name="Overview").click()
    page.wait_for_selector(".fl .text span.c")
    page.get_by_role("link", name="Token groups").click()
    page.wait_for_selector(".fm canvas")
    page.wait_for_timeout(800)
    assert page.evaluate(EXPOSE)
    assert picked(page) == [group, token]
    page.locator(".fm .stage").focus()
    page.keyboard.press("Escape")
    page.get_by_text(f"(token {token + 1:,}) is in").wait_for(state="detached")
    assert picked(page) == [None, None]


def test_colours_sides_and_zoom_ask_the_server_for_nothing(visit, app):
    page = visit(f"{app}/groups")
    drawn = page.evaluate("() => fm.map.below.toDataURL()")
    page.wire.clear()
    for name in ("Part of speech", "Position", "Frequency"):
        page.get_by_role("radio", name=name).click()
        page.wait_for_timeout(250)
        now = page.evaluate("() => fm.map.below.toDataURL()")
        assert now != drawn
        drawn = now
    page.get_by_role("button", name="look for").click()
    page.locator(".fm .stage").hover()
    page.mouse.wheel(0, -600)
    page.wait_for_timeout(300)
    assert page.evaluate("() => fm.map.view.zoom") > 2
    page.get_by_role("button", name="Whole map").click()
    assert page.evaluate("() => fm.map.view.zoom") == 1
    assert page.wire == []
    assert "colour=frequency" in page.url
    assert page.evaluate("() => fm.dataset.built") == "1"


def test_a_link_opens_with_its_colour_group_and_token(visit, app):
    page = visit(f"{app}/groups?colour=position&group=D&tok=12", scheme="dark")
    assert page.evaluate("() => fm.map.colour") == "position"
    assert picked(page) == [3, 11]
    page.locator(".fm .list .entry").nth(4).click()
    page.get_by_text("Tokens that are in E").wait_for()
    page.wait_for_url("**group=E*")
    page.wait_for_timeout(1_000)
    assert "colour=position" in page.url
    assert picked(page) == [4, None]
    # The picture that is saved has every point, the selected group's strong and the others faint.
    drawn = page.evaluate(
        """() => { const svg = fm.map.svg('#fff');
        return ['0.87', '0.1'].map((o) => svg.split(`opacity="${o}"`).length - 1); }"""
    )
    assert sum(drawn) == page.evaluate("() => fm.map.n * fm.map.sides")
    assert min(drawn) > 10


def test_the_keyboard_reaches_every_token(visit, app):
    page = visit(f"{app}/groups")
    stage = page.locator(".fm .stage")
    stage.focus()
    page.keyboard.press("PageDown")
    page.keyboard.press("PageDown")
    first = page.evaluate("() => fm.map.hover")
    page.keyboard.press("PageDown")
    assert page.evaluate("() => fm.map.hover") == first + 1
    page.keyboard.press("ArrowRight")
    assert page.evaluate("() => fm.map.hover") not in (None, first + 1)
    assert "token" in page.locator(".fm .sr").inner_text()
    token = page.evaluate("() => fm.map.tokenOf(fm.map.hover)")
    page.keyboard.press("Enter")
    page.get_by_text(f"(token {token + 1:,}) is in").wait_for()


def test_umap_takes_over_without_moving_the_map(visit, app):
    page = visit(f"{app}/groups")
    stage = page.locator(".fm .stage")
    before, places = stage.bounding_box(), page.evaluate("() => [...fm.map.xy.slice(0, 40)]")
    page.get_by_role("button", name="UMAP").click()
    page.get_by_text("means nothing").wait_for(timeout=30_000)
    page.wait_for_timeout(900)
    after = stage.bounding_box()
    assert after == before
    assert page.evaluate("() => [...fm.map.xy.slice(0, 40)]") != places
    assert page.evaluate("() => fm.isConnected")


def test_eight_thousand_tokens_are_drawn_and_pointing_leaves_the_picture_alone(browser):
    with served(FAKE_TOKENS="8192") as url:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(f"{url}/groups")
        page.wait_for_selector(".fm canvas", timeout=90_000)
        page.wait_for_timeout(1_500)
        assert page.evaluate(EXPOSE)
        assert page.evaluate("() => [fm.map.n, fm.map.sides]") == [8192, 2]
        page.evaluate("""() => { const m = fm.map, box = m.stage.getBoundingClientRect(), paint = m.paintPoints;
          window.painted = 0;
          m.paintPoints = function () { window.painted += 1; paint.call(m); };
          for (let i = 0; i < 60; i++) { const [x, y] = m.at((i * 83) % m.n);
            const place = { clientX: box.left + x, clientY: box.top + y };
            m.stage.dispatchEvent(new PointerEvent('pointermove', place)); } }""")
        page.wait_for_timeout(300)
        assert page.evaluate("() => window.painted") == 0
        page.close()
