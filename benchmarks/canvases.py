"""Times the two canvases, mask and map, in a real browser at 8,192 tokens: build, full paint, zoom and hover.

``python -m benchmarks.canvases`` prints one JSON document of milliseconds. Hover is what one pointer move costs the
page's main thread, drawing included. Wall times want an idle machine.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np

from tests.browser.serving import chromium, served

_FIND = """(name) => { const seek = (root) => { for (const e of root.querySelectorAll('*')) {
    if (e.classList && e.classList.contains('fm') && e[name]) return e;
    if (e.shadowRoot) { const f = seek(e.shadowRoot); if (f) return f; } } return null; };
  window.fm = seek(document); return !!window.fm; }"""
_MASK = """() => { const m = fm.mask, n = m.data.count, hover = [], paint = [], zoom = [];
  const read = (canvas) => canvas.getContext('2d').getImageData(0, 0, 1, 1);
  for (let k = 0; k < 100; k++) { const t = performance.now();
    m.point([n / 2 + 30 * k, 20 + 25 * k], 500, 300); read(m.over); hover.push(performance.now() - t); }
  for (let k = 0; k < 7; k++) { const t = performance.now();
    m.paint(); read(m.base); paint.push(performance.now() - t); }
  for (let k = 0; k < 20; k++) { const t = performance.now();
    m.zoom(k < 10 ? 0.7 : 1 / 0.7, 0.8, 0.3); m.paint(); read(m.base); zoom.push(performance.now() - t); }
  return { build: [Number(fm.dataset.buildMs)], paint, zoom, hover }; }"""
_MAP = """() => { const m = fm.map, box = m.stage.getBoundingClientRect(), hover = [], zoom = [];
  for (let k = 0; k < 100; k++) { const [x, y] = m.at((k * 83) % m.n), t = performance.now();
    m.stage.dispatchEvent(new PointerEvent('pointermove', { clientX: box.left + x, clientY: box.top + y }));
    m.paintOver(); hover.push(performance.now() - t); }
  const canvas = m.stage.querySelector('canvas');
  for (let k = 0; k < 20; k++) { const t = performance.now();
    m.stage.dispatchEvent(new WheelEvent('wheel', { deltaY: k < 10 ? -120 : 120, clientX: box.left + 300,
      clientY: box.top + 200, cancelable: true, bubbles: true }));
    m.paintPoints(); canvas.getContext('2d').getImageData(0, 0, 1, 1); zoom.push(performance.now() - t); }
  return { zoom, hover }; }"""


def measure(tokens: int) -> dict[str, Any]:
    """Median, 95th percentile and largest of each."""
    found: dict[str, Any] = {"tokens": tokens}
    with served(FAKE_TOKENS=str(tokens)) as url, chromium() as browser:
        for name, path, script in (("mask", "masks", _MASK), ("map", "groups", _MAP)):
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(f"{url}/{path}")
            page.wait_for_selector(".fm canvas", timeout=90_000)
            page.wait_for_timeout(4000)
            assert page.evaluate(_FIND, name)
            found[name] = {what: _summary(times) for what, times in page.evaluate(script).items()}
            page.close()
    return found


def _summary(values: list[float]) -> dict[str, float]:
    quantiles = np.quantile(values, [0.5, 0.95, 1.0])
    return dict(zip(("median", "p95", "max"), (round(float(x), 1) for x in quantiles), strict=True))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8192)
    print(json.dumps(measure(parser.parse_args().tokens), indent=1))
