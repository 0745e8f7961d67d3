"""Files of what is drawn: the Save menu round any figure, and pages that work with the network off."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from html import escape
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from analysis.tables import figure_rows
from app.ui import save

Rows: TypeAlias = pd.DataFrame | Callable[[], pd.DataFrame]
FAMILY = "Source Sans"
_BUTTONS = 34
THEMES = {
    "light": {"background": "#ffffff", "text": "#1c2230", "primary": "#2a6fd0", "secondary": "#f3f5f9"},
    "dark": {"background": "#11141b", "text": "#e5e8ef", "primary": "#4c8ff0", "secondary": "#1b202a"},
}
"""The colours of ``.streamlit/config.toml``, for pages that stand alone."""


@contextmanager
def saveable(*, key: str, name: str, page: Callable[[], str] | None = None, rows: Rows | None = None) -> Iterator[None]:
    """Give what is drawn inside a Save menu; for a component, one line round its call.

    A picture is taken of the component's element with the class ``fl``. One that draws itself otherwise sets
    ``element.saveSvg = (background) => svg text`` (or a promise of it). Pictures look as the app does when they are
    saved, on white in the light theme and on the dark background in the dark one. The page of a Plotly figure does too;
    that of a component follows its reader's theme.

    Args:
        key: of what is drawn; the menu's own key follows from it.
        name: what the files are called.
        page: makes the standalone HTML, when it is asked for; see :func:`component_page`.
        rows: the data, as a table or a function that makes it when it is asked for.
    """
    makers: dict[str, Callable[[bool], str]] = {}
    if page is not None:
        makers["html"] = lambda dark: page()
    if rows is not None:
        makers["csv"] = lambda dark: csv(rows)
    with st.container(key=save.area_key(key), gap=None):
        yield
        save.menu(key, name, makers)


def csv(rows: Rows) -> str:
    """The table as CSV text."""
    table = rows() if callable(rows) else rows
    return table.map(lambda cell: ", ".join(map(str, cell)) if isinstance(cell, list) else cell).to_csv(index=False)


def figure_makers(figure: go.Figure, name: str, rows: Rows | None, note: str = "") -> dict[str, Callable[[bool], str]]:
    """What makes a Plotly figure's page and table, when they are asked for."""
    return {
        "html": lambda dark: figure_page(figure, name, dark=dark, note=note),
        "csv": lambda dark: csv(rows if rows is not None else figure_rows(figure)),
    }


def figure_page(figure: go.Figure, title: str, *, dark: bool = False, note: str = "") -> str:
    """A page with one Plotly figure; plotly.js and the font are in it (about 5 MB). ``note`` is a line below it."""
    theme = THEMES["dark" if dark else "light"]
    copy = go.Figure(figure)
    copy.update_layout(
        template="plotly_dark" if dark else "plotly_white",
        paper_bgcolor=theme["background"],
        plot_bgcolor="rgba(0, 0, 0, 0)",
        font={"family": f'"{FAMILY}", sans-serif', "color": theme["text"]},
    )
    # Plotly's buttons lie at the top right, over whatever the figure has there: they get a strip of their own.
    top = copy.layout.margin.t
    copy.update_layout(margin_t=(100 if top is None else top) + _BUTTONS, height=(copy.layout.height or 450) + _BUTTONS)
    div = copy.to_html(include_plotlyjs=True, full_html=False, config={"displaylogo": False, "responsive": True})
    css = (
        f":root{{color-scheme:{'dark' if dark else 'light'}}}"
        f"body{{background:{theme['background']};color:{theme['text']}}}"
    )
    return document(title[:1].upper() + title[1:], div, css, note=note)


def component_page(title: str, *, html: str, css: str, js: str, data: dict[str, Any], note: str = "") -> str:
    """A page with one component (v2) as the app draws it, still alive: its files, its data, and what plays the app.

    Args:
        title: heading of the page.
        html: the component's HTML.
        css: its styles; ``:host`` and the ``--st-`` colours work as in the app, in light and dark.
        js: its module, with a default export.
        data: what the app would send it; JSON values.
        note: a line below.
    """
    return document(title, component_part(html=html, css=css, js=js, data=data), note=note)


def component_part(*, html: str, css: str, js: str, data: dict[str, Any], place: str = "component") -> str:
    """The component within a page of :func:`document`; ``place`` is unique in it."""
    script = re.sub(r"^export default ", "const show = ", js, flags=re.MULTILINE)
    script = re.sub(r"^export (?=const|let|function|class|async)", "", script, flags=re.MULTILINE)
    driver = (
        f"const place = document.getElementById({_json(place)});"
        # Styles of one component must not reach another: each is closed off, as in the app.
        'const root = place.attachShadow({ mode: "open" });'
        'root.append(place.querySelector("template").content);'
        f"const data = JSON.parse(document.getElementById({_json(place + '-data')}).textContent);"
        "const none = () => {};"
        "show({ data, key: place.id, name: place.id, parentElement: root, "
        "setStateValue: none, setTriggerValue: none });"
    )
    return (
        f'<div id="{escape(place)}"><template><style>{css}</style>{html}</template></div>'
        f'<script type="application/json" id="{escape(place)}-data">{_json(data)}</script>'
        f'<script type="module">{{{_closed(script)}\n{_closed(driver)}}}</script>'
    )


def document(title: str, body: str, css: str = "", *, note: str = "") -> str:
    """A whole HTML page round ``body``: font and theme in it, nothing loaded; ``note`` is a line below."""
    dark = ";".join(_variables("dark"))
    light = ";".join(_variables("light"))
    foot = f"<footer>{escape(note)}</footer>" if note else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{font_face()}"
        f":root{{color-scheme:light dark;{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"
        f"{_PAGE}{css}</style></head><body><main><h1>{escape(title)}</h1>{body}{foot}</main></body></html>"
    )


@cache
def font_face() -> str:
    """The app's font as a style that holds it; empty where it is not found."""
    folder = Path(st.__file__).parent / "static" / "static" / "media"
    found = sorted(folder.glob("SourceSansVF-Upright*.woff2"))
    if not found:
        return ""
    data = base64.b64encode(found[0].read_bytes()).decode()
    source = f'url(data:font/woff2;base64,{data}) format("woff2")'
    return f'@font-face{{font-family:"{FAMILY}";font-weight:200 900;src:{source}}}'


def _variables(theme: str) -> list[str]:
    colors = THEMES[theme]
    return [
        f"--st-background-color:{colors['background']}",
        f"--st-secondary-background-color:{colors['secondary']}",
        f"--st-text-color:{colors['text']}",
        f"--st-primary-color:{colors['primary']}",
        f'--st-font:"{FAMILY}",sans-serif',
        "--st-base-font-size:16px",
        "--st-base-radius:.5rem",
    ]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")


def _closed(script: str) -> str:
    return script.replace("</script", "<\\/script")


_PAGE = """body{margin:0;background:var(--st-background-color);color:var(--st-text-color);font-family:var(--st-font);
line-height:1.5}main{max-width:1200px;margin:0 auto;padding:2rem 1.5rem 3rem}h1{font-size:1.5rem;font-weight:650}
footer{margin-top:1rem;font-size:.85rem;opacity:.7}"""
