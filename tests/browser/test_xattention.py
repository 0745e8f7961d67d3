from __future__ import annotations

import re

import pytest

from tests.browser.serving import served

pytestmark = pytest.mark.browser

SEEK = """(name) => { const seek = (root) => { for (const e of root.querySelectorAll('*')) {
    if (e.classList && e.classList.contains('fl') && (e.blocks || e.paint)) { if (e[name]) return e; }
    if (e.shadowRoot) { const f = seek(e.shadowRoot); if (f) return f; } } return null; };
  window.fx = seek(document); return !!window.fx; }"""
CELL = """([i, j]) => { const m = fx.blocks.map, b = m.base.getBoundingClientRect(), p = m.place;
  return [b.left + p.left + (j + .5) * p.cell, b.top + p.top + (i + .5) * p.cell]; }"""


@pytest.fixture(scope="module")
def app():
    with served() as url:
        yield url


def url_has(page, part):
    page.wait_for_function("(part) => location.href.includes(part)", arg=part, timeout=10_000)


def test_blocks_are_picked_told_and_kept_in_the_link_and_a_pattern_is_painted(new_page, app):
    page = new_page("dark", 1280, 1000, requests=True)
    page.goto(app + "/xattention?head=1")
    page.wait_for_selector(".fx canvas.base", timeout=90_000)
    page.get_by_text("live", exact=True).first.wait_for(timeout=60_000)
    page.wait_for_function(SEEK, arg="blocks")
    # Pointing tells and redraws nothing; a click picks, and the block is shown from near.
    page.mouse.move(*page.evaluate(CELL, [9, 4]))
    tip = page.locator(".fx .tip")
    assert "tokens 577 to 640" in tip.inner_text()
    assert "sampled attention" in tip.inner_text()
    page.mouse.click(*page.evaluate(CELL, [9, 4]))
    page.locator(".fx .head", has_text="Queries of block 9, keys of block 5").wait_for()
    url_has(page, "xa_block_at=10-5")
    why = page.locator(".fx .why").inner_text()
    kept = page.evaluate("() => !!(fx.blocks.data.marks[9 * fx.blocks.data.n + 4] & 1)")
    assert ("Dropped" in why) == (not kept)
    # Arrow keys move on, and it is spoken.
    page.locator(".fx .stage.map").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    url_has(page, "xa_block_at=11-6")
    assert "keys: tokens 321 to 384" in page.locator(".fx .sr").inner_text()
    # The curve's bars are blocks of the same row, and pick them.
    first = page.evaluate("() => fx.blocks.curve.curve.order[1]")
    box = page.locator(".fx .cut canvas.base").bounding_box()
    place = page.evaluate("() => fx.blocks.curve.place")
    page.mouse.click(box["x"] + place["left"] + 1.5 * place["wide"], box["y"] + place["top"] + place["tall"] - 4)
    url_has(page, f"xa_block_at=11-{first + 1}")
    # The threshold moves the kept set; nothing else is drawn anew.
    before = page.evaluate("() => fx.blocks.data.marks.filter((m) => m & 1).length")
    slider = page.get_by_role("slider", name="Threshold")
    slider.focus()
    for _ in range(12):
        page.keyboard.press("ArrowLeft")
    page.wait_for_function("(n) => fx.blocks.data.marks.filter((m) => m & 1).length < n", arg=before)
    assert page.evaluate("() => fx.blocks.picked.join()") == f"10,{first}"
    url_has(page, "xa_threshold=0.78")
    # Another page and back: the same block.
    again = new_page("light", 800, 1200)
    again.goto(f"{app}/xattention?{page.url.split('?')[1]}")
    again.wait_for_selector(".fx canvas.base", timeout=60_000)
    again.wait_for_function(SEEK, arg="blocks")
    again.wait_for_function("(p) => fx.blocks.picked.join() === p", arg=f"10,{first}")
    assert float(again.evaluate("() => fx.blocks.data.threshold")) == pytest.approx(0.78)
    # What is painted is judged.
    page.get_by_role("tab", name="Paint a pattern").click()
    page.get_by_text("The antidiagonals miss it").wait_for()
    page.wait_for_function(SEEK, arg="paint")
    page.get_by_title("An empty canvas").click()
    page.get_by_text("Your own pattern.").wait_for()
    page.locator(".fp .easel").scroll_into_view_if_needed()
    box, side = page.locator(".fp .easel canvas.base").bounding_box(), page.evaluate("() => fx.paint.side")

    def at(i, j):
        return box["x"] + 30 + (j + 0.5) * side / 64, box["y"] + 2 + (i + 0.5) * side / 64

    page.mouse.move(*at(40, 10))
    page.mouse.down()
    page.mouse.move(*at(63, 10), steps=6)
    page.mouse.up()
    page.get_by_text(re.compile("The antidiagonals find it")).wait_for()
    # A brush of two by two, over 24 rows.
    assert page.evaluate("() => fx.paint.cells.filter((c) => c > 0).length") == 48
