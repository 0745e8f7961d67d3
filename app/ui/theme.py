"""The few styles beyond Streamlit's own theme (``.streamlit/config.toml`` holds the colours of light and dark)."""

from __future__ import annotations

import streamlit as st

_STYLE = """<style>
[data-testid="stMainBlockContainer"]{padding:2.6rem 3rem 3rem;max-width:1500px}
[data-testid="stMainBlockContainer"] h1{padding:0 0 .35rem}
[data-testid="stMainBlockContainer"] h4{padding:0 0 .6rem;font-weight:500}
.st-key-headline_earlier h4{opacity:.65}
[data-testid="stMetricValue"]{font-variant-numeric:tabular-nums;font-weight:600;font-size:1.9rem;line-height:1.25}
[data-testid="stMetricDelta"]{background:none;padding:0}
[data-testid="stSidebarUserContent"]{padding-top:.5rem}
[data-testid="stApp"]:has([data-testid="stExpandSidebarButton"]) [data-testid="stMainBlockContainer"]{padding-top:4rem}
@media (max-width:1050px){
[data-testid="stMain"] [data-testid="stHorizontalBlock"]:has(>[data-testid="stColumn"]){flex-wrap:wrap}
[data-testid="stMain"] [data-testid="stColumn"]{min-width:100%}
}
</style>"""


def apply_theme() -> None:
    """Tighten the page so that its picture is on the first screen."""
    st.html(_STYLE)
