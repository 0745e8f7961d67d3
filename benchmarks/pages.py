"""Times the pages in a real browser: first paint, page switches, bytes a page, and clicks while heavy work runs.

``python -m benchmarks.pages`` starts the real app and prints a table (``--json`` one document). Wall times want an idle
machine. A switch ends when the page's title and its main picture are there and the script has ended.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np

from app.ui.view import discover
from tests.browser.serving import chromium, served

LIMITS = {"switch_s": 1.0, "payload_mb": 3.0, "click_p95_ms": 300.0}
PICTURES = {
    "overview": ".fl .text span.c",
    "groups": ".fl canvas",
    "masks": ".fl canvas",
    "xattention": ".fl canvas",
    "features": ".js-plotly-plot .point",
    "cache": ".js-plotly-plot .point",
    "compare": "[data-testid=stDataFrame] canvas",
}
_DONE = """selector => {
  const seek = (root) => [...root.querySelectorAll('*')].some((e) => e.matches(selector)
    || (e.shadowRoot && seek(e.shadowRoot)));
  const app = document.querySelector('[data-testid=stApp]');
  return app && app.dataset.testScriptState !== 'running' && seek(document); }"""
_OTHER = "title => { const h = document.querySelector('h1'); return h && h.innerText !== title; }"
_CLICK = """() => new Promise((done) => {
  const find = (root, wanted) => { for (const e of root.querySelectorAll('*')) { if (e.matches(wanted)) return e;
    if (e.shadowRoot) { const f = find(e.shadowRoot, wanted); if (f) return f; } } return null; };
  const strip = find(document, '.fl.damage, .fl'), was = strip.classList.contains('damage');
  const buttons = [...document.querySelectorAll('button')];
  const button = buttons.find((b) => b.textContent.trim() === (was ? 'Who sees whom' : 'Where it hurts'));
  const began = performance.now(); button.click();
  const look = () => strip.classList.contains('damage') !== was ? done(performance.now() - began)
    : performance.now() - began > 20000 ? done(NaN) : requestAnimationFrame(look); look(); })"""


class _Bytes:
    """Bytes that the server has sent over the page's socket."""

    def __init__(self, page: Any) -> None:
        self.count = 0
        page.on("websocket", lambda socket: socket.on("framereceived", self._add))

    def _add(self, frame: Any) -> None:
        self.count += len(frame if isinstance(frame, (bytes, str)) else frame["payload"])


def measure(clicks: int = 40) -> dict[str, Any]:
    """Seconds, megabytes and milliseconds; see the module."""
    views = discover()
    with served(FOCUS_LAB_ENGINE="") as url, chromium() as browser:
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        received = _Bytes(page)
        began = time.perf_counter()
        page.goto(url)
        _ready(page, views[0].key)
        found: dict[str, Any] = {"first_paint_s": round(time.perf_counter() - began, 2)}
        found["overview_payload_mb"] = round(received.count / 1e6, 2)
        page.get_by_text("live", exact=True).first.wait_for(timeout=300_000)
        page.wait_for_timeout(4000)
        rows: dict[str, dict[str, Any]] = {view.key: {"page": view.key} for view in views}
        for turn in ("first", "second", "third"):
            for view in [*views[1:], views[0]]:
                before = received.count
                rows[view.key][f"{turn}_s"] = round(_switch(page, view), 2)
                page.wait_for_timeout(700)
                rows[view.key].setdefault("payload_mb", round((received.count - before) / 1e6, 2))
        found["pages"] = list(rows.values())
        found["clicks"] = {"idle": _clicks(page, clicks), "busy": _busy(page, views, clicks)}
    return found


def _ready(page: Any, key: str) -> None:
    page.wait_for_function(_DONE, arg=PICTURES.get(key, "h1"), timeout=60_000)


def _switch(page: Any, view: Any) -> float:
    page.mouse.move(700, 5)
    title = page.locator("h1").first.inner_text()
    began = time.perf_counter()
    page.get_by_role("link", name=view.title, exact=True).click()
    page.wait_for_function(_OTHER, arg=title, timeout=60_000)
    _ready(page, view.key)
    return time.perf_counter() - began


def _clicks(page: Any, count: int) -> dict[str, float]:
    page.evaluate(_CLICK)
    times = []
    for _ in range(count):
        times.append(page.evaluate(_CLICK))
        page.wait_for_timeout(120)
    return {
        "count": count,
        "median_ms": round(float(np.median(times)), 1),
        "p95_ms": round(float(np.quantile(times, 0.95)), 1),
    }


def _busy(page: Any, views: list[Any], count: int) -> dict[str, float]:
    """Clicks on the Overview while a comparison at three lengths runs in the engine."""
    of = {view.key: view for view in views}
    _switch(page, of["compare"])
    page.get_by_role("tab", name="Measure").click()
    page.get_by_role("button", name="2,048").click()
    page.get_by_text("Read the novel Persuasion").click()
    page.wait_for_timeout(1500)
    page.locator(".st-key-compare_run button").click()
    page.get_by_role("button", name="Stop").wait_for(timeout=20_000)
    page.wait_for_timeout(2000)
    _switch(page, of["overview"])
    page.wait_for_timeout(1000)
    result = _clicks(page, count)
    _switch(page, of["compare"])
    page.get_by_role("tab", name="Measure").click()
    page.get_by_role("button", name="Stop").click(timeout=20_000)
    return result


def table(found: dict[str, Any]) -> str:
    """The measurement as people read it, with the limits that the app sets itself."""
    lines = [f"first paint with the strip: {found['first_paint_s']} s, {found['overview_payload_mb']} MB"]
    lines.append(f"{'page':12}{'first':>8}{'second':>8}{'third':>8}{'payload':>10}")
    for row in found["pages"]:
        times = "".join(f"{row[f'{turn}_s']:7.2f}s" for turn in ("first", "second", "third"))
        lines.append(f"{row['page']:12}{times}{row['payload_mb']:7.2f} MB")
    for name, clicks in found["clicks"].items():
        lines.append(f"clicks, {name}: median {clicks['median_ms']} ms, 95th percentile {clicks['p95_ms']} ms")
    switch, payload, click = LIMITS.values()
    lines.append(f"limits: switch {switch} s, payload {payload} MB, a click while busy {click} ms")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--clicks", type=int, default=40)
    arguments = parser.parse_args()
    measured = measure(arguments.clicks)
    print(json.dumps(measured, indent=1) if arguments.json else table(measured))
