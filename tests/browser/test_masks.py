from __future__ import annotations

import re
import time

import numpy as np
import pytest

from tests.app.synthetic import make_trace
from tests.browser.serving import served

pytestmark = pytest.mark.browser

EXPOSE = """() => { const seek = (root, name) => { for (const e of root.querySelectorAll('*')) {
    if (e.classList && e.classList.contains(name) && (e.mask || e.grid)) return e;
    if (e.shadowRoot) { const f = seek(e.shadowRoot, name); if (f) return f; } } return null; };
  window.fm = seek(document, 'fm'); window.fg = seek(document, 'fg'); return !!window.fm; }"""
ATTACK = "<script>window.hacked = 1</script> <img src=x onerror=\"window.hacked = 1\"> 'quoted' & more "


@pytest.fixture(scope="module")
def app():
    with served(FAKE_SECONDS="0.3") as url:
        yield url


@pytest.fixture
def visit(new_page):
    """Open an address of the page and wait for the mask."""

    def open_page(url: str, scheme: str = "light", kind: str = "live"):
        page = new_page(scheme, 1280, 900, requests=True)
        page.goto(url)
        ready(page)
        if kind:
            page.get_by_text(kind, exact=True).first.wait_for(timeout=60_000)
        return page

    return open_page


def ready(page):
    page.wait_for_selector(".fm canvas.base", timeout=90_000)
    for _ in range(60):
        if page.evaluate(EXPOSE) and page.evaluate("() => !!(window.fm.mask.cells)"):
            return
        time.sleep(0.2)
    raise AssertionError("the mask was not drawn")


def at(page, y: float, x: float) -> tuple[float, float]:
    """Where a place of the plot (shares of its side) is on the screen."""
    return page.evaluate(
        """([y, x]) => { const b = fm.mask.base.getBoundingClientRect(), p = fm.mask.place;
          return [b.left + p.left + p.side * x, b.top + p.top + p.side * y]; }""",
        [y, x],
    )


def cell_at(page, i: int, j: int) -> tuple[float, float]:
    view = page.evaluate("() => fm.mask.view")
    return at(page, (i + 0.5 - view["i"]) / view["span"], (j + 0.5 - view["j"]) / view["span"])


def trace_of(page):
    data = page.evaluate("() => [fm.mask.data.tokens.join(''), fm.mask.data.layer]")
    return make_trace(data[0], window=128, sinks=4), data[1]


def url_has(page, part: str):
    for _ in range(50):
        if part in page.url:
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"{part} is not in {page.url}")


def url_lacks(page, part: str):
    for _ in range(50):
        if part not in page.url:
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"{part} is still in {page.url}")


def test_pointing_tells_the_pair_and_redraws_nothing(visit, app):
    page = visit(app + "/masks")
    time.sleep(1)
    paints = page.evaluate("() => fm.dataset.paints")
    page.mouse.move(*at(page, 0.8, 0.3))
    tip = page.locator(".fm .tip")
    assert tip.evaluate("(e) => getComputedStyle(e).visibility") == "visible"
    i, j = page.evaluate("() => fm.mask.cursor")
    words = tip.inner_text()
    assert f"token {i + 1:,}" in words
    assert f"token {j + 1:,}" in words
    assert f"distance {i - j:,}" in words
    trace, layer = trace_of(page)
    for _ in range(12):
        page.mouse.move(*at(page, 0.6 + 0.03 * _, 0.1 + 0.04 * _))
        i, j = page.evaluate("() => fm.mask.cursor")
        kept = bool(trace.pattern(layer).tile(0, 0, slice(i, i + 1), slice(j, j + 1))[0, 0])
        verdict = page.locator(".fm .tip .verdict").inner_text()
        assert verdict.startswith("kept: ") == kept, (i, j, verdict)
    seen = int(trace.pattern(layer).kept_per_query(0, 0)[i])
    assert f"{seen:,} of {i + 1:,}" in page.locator(".fm .say").inner_text()
    assert page.evaluate("() => fm.dataset.paints") == paints
    page.mouse.move(*at(page, 0.2, 0.8))
    assert "no pair" in tip.inner_text()


def test_click_holds_escape_lets_go_and_the_link_knows(visit, app):
    page = visit(app + "/masks")
    page.mouse.click(*at(page, 0.75, 0.25))
    i, j = page.evaluate("() => fm.mask.pin")
    url_has(page, f"pair={i + 1}-{j + 1}")
    page.get_by_text("Where the dense attention of token").wait_for()
    assert page.get_by_text(re.compile(f"The held key, token {j + 1:,}, got")).is_visible()
    page.mouse.move(*at(page, 0.9, 0.5))
    assert page.evaluate("() => fm.mask.pin") == [i, j]
    page.locator(".fm .stage").focus()
    page.keyboard.press("Escape")
    assert page.evaluate("() => fm.mask.pin") is None
    url_lacks(page, "pair=")
    page.get_by_text("Where the dense attention of token").wait_for(state="detached")
    page.mouse.click(*at(page, 0.75, 0.25))
    assert page.evaluate("() => fm.mask.pin") is not None
    page.mouse.click(*at(page, 0.75, 0.25))
    assert page.evaluate("() => fm.mask.pin") is None


def test_keys_alone_reach_everything(visit, app):
    page = visit(app + "/masks")
    page.locator(".fm .stage").focus()
    page.keyboard.press("ArrowDown")
    before = page.evaluate("() => fm.mask.cursor")
    step = page.evaluate("() => fm.mask.cells.step")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("() => fm.mask.cursor") == [before[0] + step, before[1] + step]
    assert "query" in page.locator(".fm .sr").inner_text()
    for _ in range(8):
        page.keyboard.press("+")
    page.wait_for_function("() => fm.mask.cells.step === 1")
    view = page.evaluate("() => fm.mask.view")
    cursor = page.evaluate("() => fm.mask.cursor")
    assert view["i"] <= cursor[0] < view["i"] + view["span"]
    page.keyboard.press("Shift+ArrowUp")
    page.wait_for_function("(i) => fm.mask.view.i < i", arg=view["i"])
    page.keyboard.press("Enter")
    url_has(page, f"pair={cursor[0] + 1}-{cursor[1] + 1}")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("() => fm.mask.pin") == [cursor[0], cursor[1] + 1]
    url_has(page, "part=")
    page.keyboard.press("0")
    page.wait_for_function("() => fm.mask.view.span === fm.mask.data.count")
    url_lacks(page, "part=")


def test_wheel_drag_buttons_and_the_small_map_move_the_view(visit, app):
    page = visit(app + "/masks")
    assert page.locator(".fm .note .badge").inner_text() == "pooled view"
    page.mouse.move(*at(page, 0.7, 0.3))
    under = page.evaluate("() => fm.mask.cursor")
    for _ in range(8):
        page.mouse.wheel(0, -120)
    page.wait_for_function("() => fm.mask.cells.step === 1")
    page.mouse.move(*at(page, 0.7, 0.3))
    close = page.evaluate("() => fm.mask.cursor")
    assert abs(close[0] - under[0]) <= 4
    assert abs(close[1] - under[1]) <= 4
    assert page.locator(".fm .note .badge").inner_text() == "every pair"
    view = page.evaluate("() => fm.mask.view")
    page.mouse.down()
    page.mouse.move(*at(page, 0.5, 0.5), steps=5)
    page.mouse.up()
    moved = page.evaluate("() => fm.mask.view")
    assert moved["i"] == pytest.approx(view["i"] + 0.2 * view["span"], abs=1)
    assert moved["j"] == pytest.approx(view["j"] - 0.2 * view["span"], abs=1)
    assert page.evaluate("() => fm.mask.pin") is None
    page.locator(".fm .tools button").nth(1).click()
    page.wait_for_function("(s) => fm.mask.view.span > s", arg=view["span"])
    box = page.locator(".fm .map").bounding_box()
    page.mouse.click(box["x"] + 0.3 * box["width"], box["y"] + 0.9 * box["height"])
    there = page.evaluate("() => [(fm.mask.view.i + fm.mask.view.span / 2) / fm.mask.data.count, fm.mask.view.j]")
    assert there[0] == pytest.approx(0.9, abs=0.06)
    page.locator(".fm .tools button").nth(2).click()
    page.wait_for_function("() => fm.mask.view.span === fm.mask.data.count")


def test_drawn_colours_are_those_of_the_pairs(visit, app):
    page = visit(app + "/masks")
    trace, layer = trace_of(page)
    kept = trace.pattern(layer).tile(0, 0, slice(600, 630), slice(100, 130))
    page.evaluate("() => { fm.mask.view = { i: 600, j: 100, span: 30 }; fm.mask.model.lost = null; fm.mask.paint(); }")
    colours = page.evaluate(
        """() => { const m = fm.mask, c = m.base.getContext('2d'), p = m.place, u = p.side / 30, r = p.ratio, out = [];
          const at = (i, j) => [p.left + (j + 0.16) * u, p.top + (i + 0.16) * u].map((v) => Math.round(v * r));
          for (let i = 0; i < 30; i++) for (let j = 0; j < 30; j++) {
            out.push([...c.getImageData(...at(i, j), 1, 1).data.slice(0, 3)]);
          }
          return [out, m.ink.group, m.ink.dropped]; }"""
    )
    found = np.array(colours[0]).reshape(30, 30, 3)
    assert (found[kept] == colours[1]).all()
    assert (found[~kept] == colours[2]).all()
    assert 0.05 < kept.mean() < 0.95


def test_the_held_pair_and_the_view_survive_a_page_switch_and_a_link(visit, app):
    page = visit(app + "/masks")
    page.mouse.move(*at(page, 0.7, 0.3))
    for _ in range(5):
        page.mouse.wheel(0, -120)
    url_has(page, "part=")
    page.mouse.click(*at(page, 0.5, 0.5))
    url_has(page, "pair=")
    pin, view = page.evaluate("() => [fm.mask.pin, fm.mask.view]")
    page.get_by_role("link", name="Compare").click()
    page.wait_for_selector(".fm", state="detached", timeout=60_000)
    page.get_by_role("link", name="Masks and sparsity").click()
    ready(page)
    page.wait_for_function("() => fm.mask.pin !== null", timeout=20_000)
    assert page.evaluate("() => fm.mask.pin") == pin
    back = page.evaluate("() => fm.mask.view")
    assert all(abs(back[k] - view[k]) <= 1 for k in ("i", "j", "span"))
    url_has(page, f"pair={pin[0] + 1}-{pin[1] + 1}")
    url_has(page, "part=")
    again = visit(f"{app}/masks?{page.url.split('?')[1]}")
    again.wait_for_function("() => fm.mask.pin !== null", timeout=20_000)
    assert again.evaluate("() => fm.mask.pin") == pin
    assert abs(again.evaluate("() => fm.mask.view.span") - view["span"]) <= 1


def test_choosing_a_head_in_the_grid_moves_mask_and_sidebar(visit, app):
    page = visit(app + "/masks")
    page.wait_for_selector(".fg canvas")
    page.evaluate(EXPOSE)
    place = "([l, h]) => { const g = fg.grid, b = g.parts[0].base.getBoundingClientRect(), s = g.size; return [b.left + s.left + (h + .5) * s.w, b.top + s.top + (l + .5) * s.h]; }"  # noqa: E501
    page.locator(".fg").scroll_into_view_if_needed()
    page.mouse.move(*page.evaluate(place, [2, 5]))
    assert "Layer 2, head 5" in page.locator(".fg .tip").inner_text()
    page.mouse.click(*page.evaluate(place, [2, 5]))
    page.wait_for_function("() => fm.mask.data.layer === 2", timeout=20_000)
    page.get_by_text("In layer 2, head 5,").wait_for()
    url_has(page, "layer=2")
    url_has(page, "head=Head+5")
    page.mouse.move(5, 5)
    page.locator(".fg .stage").first.focus()
    for key in ("ArrowUp", "ArrowUp", "ArrowLeft", "Enter"):
        page.keyboard.press(key)
    page.wait_for_function("() => fm.mask.data.layer === 1", timeout=20_000)
    page.get_by_text("In layer 1, head 4,").wait_for()


def test_two_masks_over_each_other(visit, app):
    page = visit(app + "/masks?over=window")
    page.wait_for_function("() => fm.mask.model.other !== null", timeout=20_000)
    assert page.get_by_text("of the pairs are kept by both").is_visible()
    page.mouse.move(*at(page, 0.8, 0.3))
    words = page.locator(".fm .tip").inner_text()
    assert "Focus: " in words
    assert "window 128 + 4: dropped" in words
    assert page.locator(".fm .bar .chip span").all_inner_texts() == [
        "kept by both",
        "only Focus",
        "only window 128 + 4",
        "by none",
    ]
    url_has(page, "over=window")


def test_both_themes_are_designed_and_a_switch_recolours(visit, app):
    inks = {}
    for scheme in ("light", "dark"):
        page = visit(app + "/masks", scheme)
        inks[scheme] = page.evaluate("() => fm.mask.ink")
        assert len(page.screenshot()) > 30_000
    assert np.mean(inks["light"]["paper"]) > 200 > 60 > np.mean(inks["dark"]["paper"])
    for ink in inks.values():
        shades = [ink[k] for k in ("group", "near", "sink", "lost", "dropped", "paper")]
        for a in range(len(shades)):
            for b in range(a):
                assert np.abs(np.subtract(shades[a], shades[b])).max() > 20, (a, b)
    page.emulate_media(color_scheme="light")
    page.wait_for_function("() => fm.mask.ink.paper[0] > 200", timeout=20_000)


def test_token_text_is_only_ever_text(visit, app):
    page = visit(app + "/masks?text=own", kind="")
    page.get_by_text("There is no text to run yet").wait_for()
    page.locator("textarea").first.fill(ATTACK * 40)
    page.locator("textarea").first.press("Control+Enter")
    page.locator(".st-key-run_now button").click()
    page.wait_for_function("() => fm.mask.data.tokens[0] === '<'", timeout=60_000)
    for y in (0.5, 0.7, 0.9):
        page.mouse.move(*at(page, y, 0.2))
    page.mouse.click(*at(page, 0.9, 0.2))
    page.get_by_text("Where the dense attention of token").wait_for()
    assert page.evaluate("() => window.hacked") is None
    assert page.locator(".fm img, .fm script").count() == 0
    assert "hacked" not in page.url


def test_eight_thousand_tokens_are_drawn_and_pointing_leaves_the_picture_alone(browser):
    with served(FAKE_TOKENS="8192") as url:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(url + "/masks")
        ready(page)
        time.sleep(2)
        assert page.evaluate("() => fm.mask.data.count") == 8192
        page.evaluate("""() => { const m = fm.mask, paint = m.paint; window.painted = 0;
          m.paint = function () { window.painted += 1; paint.call(m); };
          for (let k = 0; k < 60; k++) m.point([4000 + 60 * k, 20 + 50 * k], 500, 300); }""")
        page.wait_for_timeout(300)
        assert page.evaluate("() => window.painted") == 0
        page.close()
