"""Charts that open at once: Streamlit's chart script is fetched and run while nobody waits for it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import streamlit as st

AFTER_MS = 1500
"""After the page has drawn its picture; the script takes a quarter of a second of the browser's time."""
_SCRIPT = """<script>
if (!window.focusLabCharts) {{
  window.focusLabCharts = true;
  const idle = window.requestIdleCallback || ((run) => setTimeout(run, 1));
  setTimeout(() => idle(() => {{
    const own = document.querySelector('script[type="module"][src*="/js/"]');
    if (own) import(new URL("./{name}", own.src)).catch(() => undefined);
  }}), {after});
}}
</script>"""


@cache
def _chunk() -> str:
    """File name of the script that draws Plotly charts; empty where this Streamlit has none of that name."""
    folder = Path(st.__file__).parent / "static" / "static" / "js"
    return next((path.name for path in sorted(folder.glob("PlotlyChart.*.js"))), "")


def preload_charts() -> None:
    """Fetch the chart script a moment after the first paint, once a browser page."""
    if _chunk():
        st.html(_SCRIPT.format(name=_chunk(), after=AFTER_MS), unsafe_allow_javascript=True)
