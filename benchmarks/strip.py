"""Times the token strip in a real browser at 8,192 tokens: build, hover, hold-to-server-and-back.

``python -m benchmarks.strip`` prints one JSON document. Wall times want an idle machine; ``cpu``
figures (script, style, layout and paint of the page's main thread) also hold on a busy one.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np

from tests.browser.serving import chromium, served

_FIND = """() => { const seek = (root) => { for (const e of root.querySelectorAll('*')) {
    if (e.classList && e.classList.contains('fl') && e.strip) return e;
    if (e.shadowRoot) { const f = seek(e.shadowRoot); if (f) return f; } } return null; };
  window.fl = seek(document); return !!window.fl; }"""
_REBUILD = """(times) => { const s = window.fl.strip, out = [];
  for (let i = 0; i < times; i++) { const t = performance.now(); s.build(s.data); s.dress(s.data);
    s.box.offsetHeight; s.box.lastChild.getBoundingClientRect(); out.push(performance.now() - t); }
  s.light(null); return out; }"""
_WATCH = """() => { window.hovers = []; window.fl.strip.box.addEventListener('mousemove', () => {
    const t = performance.now(); requestAnimationFrame(() => { const c = new MessageChannel();
      c.port1.onmessage = () => window.hovers.push(performance.now() - t); c.port2.postMessage(0); }); }, true); }"""
_LIGHT = """async (times) => { const s = window.fl.strip; for (let i = 0; i < times; i++) {
    s.light(s.total - 1 - 37 * i); await new Promise((done) => requestAnimationFrame(done)); } s.light(null); }"""
_HOLD = """(token) => new Promise((done) => { const s = window.fl.strip, t = performance.now(); s.setPin(token);
  const look = () => s.data.lost && s.data.lost.query === token ? done(performance.now() - t)
    : performance.now() - t > 10000 ? done(NaN) : requestAnimationFrame(look); look(); })"""


class _Cpu:
    """Milliseconds of the page's main thread: what a busy machine does not stretch."""

    def __init__(self, page: Any) -> None:
        self._session = page.context.new_cdp_session(page)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})
        self._last = 0.0
        self.spent()

    def spent(self) -> float:
        """Since the last call."""
        metrics = self._session.send("Performance.getMetrics")["metrics"]
        now = 1e3 * next(m["value"] for m in metrics if m["name"] == "TaskDuration")
        before, self._last = self._last, now
        return now - before


def measure(tokens: int, hovers: int = 150, holds: int = 12) -> dict:
    """Medians and 95th percentiles in milliseconds."""
    with served(FAKE_TOKENS=str(tokens)) as url, chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(url)
        page.wait_for_selector(".fl .text span.c", timeout=60_000)
        page.wait_for_timeout(3000)
        assert page.evaluate(_FIND)
        cpu = _Cpu(page)
        build = page.evaluate(_REBUILD, 7)
        build_cpu = cpu.spent() / 7
        page.evaluate("() => { window.fl.strip.box.scrollTop = 1e9; }")
        page.wait_for_timeout(500)
        cpu.spent()
        page.evaluate(_LIGHT, 40)
        light_cpu = cpu.spent() / 40
        page.evaluate(_WATCH)
        box = page.locator(".fl .text").bounding_box()
        rng = np.random.default_rng(0)
        for x, y in rng.uniform(0.05, 0.95, (hovers, 2)):
            page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
            time.sleep(0.03)
        page.wait_for_timeout(300)
        hover = page.evaluate("() => window.hovers")
        page.mouse.move(5, 5)
        scroll = page.evaluate("() => window.fl.strip.box.scrollTop")
        built = page.evaluate("() => window.fl.dataset.built")
        held = [page.evaluate(_HOLD, tokens - 50 - 37 * i) for i in range(holds)]
        kept = page.evaluate("() => [window.fl.strip.box.scrollTop, window.fl.dataset.built, window.fl.isConnected]")
        return {
            "tokens": page.evaluate("() => window.fl.strip.total"),
            "build_ms": _summary(build),
            "build_cpu_ms": round(build_cpu, 1),
            "light_cpu_ms": round(light_cpu, 1),
            "hover_ms": _summary(hover),
            "hold_ms": _summary(held),
            "kept_scroll": kept[0] == scroll,
            "kept_dom": kept[1] == built and kept[2],
        }


def _summary(values: list[float]) -> dict[str, float]:
    return {
        "count": len(values),
        "median": round(float(np.median(values)), 1),
        "p95": round(float(np.quantile(values, 0.95)), 1),
        "max": round(float(np.max(values)), 1),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8192)
    print(json.dumps(measure(parser.parse_args().tokens), indent=1))
