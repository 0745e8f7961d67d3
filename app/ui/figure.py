"""Every Plotly figure of the app is drawn here: quiet, with a Save menu below it."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import streamlit as st

from app.ui import save
from app.ui.export import Rows, figure_makers


def plot(
    fig: go.Figure,
    *,
    key: str,
    alt: str,
    name: str,
    rows: Rows | None = None,
    height: int | None = None,
    note: str = "",
    **plotly_kwargs: Any,
) -> Any:
    """Draw a figure with its Save menu: PNG, SVG, HTML and CSV.

    Args:
        fig: the figure.
        key: of the chart; the menu's key follows from it.
        alt: what it shows, for those who do not see it.
        name: what its files are called, and the title of its page.
        rows: its data for the CSV, as a table or a function that makes it when it is asked for; None takes what the
            figure draws.
        height: pixels; None keeps the figure's own.
        note: the line under its page: what was measured, where and when; see :func:`analysis.captions.what_ran`.
        **plotly_kwargs: further arguments of ``st.plotly_chart``.

    Returns:
        What ``st.plotly_chart`` returns.
    """
    if height is not None:
        plotly_kwargs["height"] = height
    plotly_kwargs.setdefault("config", {"displayModeBar": False})
    with st.container(key=save.area_key(key), gap=None):
        event = st.plotly_chart(fig, key=key, alt=alt, **plotly_kwargs)
        save.menu(key, name, figure_makers(fig, name, rows, note))
    return event
