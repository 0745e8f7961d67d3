"""The tab of thresholds: one a head, fitted; and the paper's dynamic programme on a small grid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from analysis.xattention import thresholds as words
from app.ui import recorded, settings
from app.ui.badges import badge
from app.ui.export import document, saveable
from app.ui.figure import plot
from app.ui.grid import Panel, grid_data, head_grid, part
from app.ui.guard import plain
from app.ui.mask.heads import choose
from app.ui.view import Page
from app.ui.xattention import fitting

CHOICE = "xa_fitted"
KIND = "thresholds"
RECORDED = "xattention-programme.json"
COMMAND = "data/build/adapters.sh thresholds"
"""Made the shipped fit, its evaluations and the recorded programme."""


def render(page: Page) -> None:
    """Draw the tab."""
    st.markdown("##### Every head at its own threshold")
    _fitted(page)
    fitting.fit_box(page)
    st.markdown(
        "##### The paper's dynamic programme",
        help="It lowers one threshold after another by a tenth wherever that costs least. Its code was not published, "
        "nor what it measures: here that is the likelihood of the text, and a step lowers a layer.",
    )
    _programme(page)
    fitting.programme_box(page)


# ---- fitted thresholds ----------------------------------------------------------------------------------------------


def _fitted(page: Page) -> None:
    found = settings.adapters_for(page.model, KIND)
    if not found:
        st.caption("None is fitted for this model yet: the button below fits one, and it is shown here.")
        return
    names = list(found)
    newest = (fitting.result_of(page, "fit") or {}).get("name")
    if newest in names and st.session_state.get("_xa_newest") != newest:
        st.session_state["_xa_newest"] = st.session_state[CHOICE] = newest
    if st.session_state.get(CHOICE) not in (None, *names):
        st.session_state.pop(CHOICE)
    name = names[0]
    if len(names) > 1:
        name = st.selectbox(
            "Fit",
            names,
            format_func=settings.adapter_label,
            key=CHOICE,
            persist_state="session",
            width=420,
        )
    entry = found[name]
    config = entry["config"]
    record = config.get("record") or {}
    values = _thresholds(str(entry["path"]), (entry["path"] / "focus_adapter.safetensors").stat().st_mtime)
    if values is None:
        st.caption("Its file cannot be read.")
        return
    st.markdown(f"**{words.sentence(values, record)}**")
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        badge("live" if entry.get("user") else "recorded", "Fitted here." if entry.get("user") else "Ships.")
        st.caption(plain(_how(config) + ("" if entry.get("user") else f" · {COMMAND}")))
    _grid(page, name, values, record, config)
    _evaluations(entry)


def _grid(page: Page, name: str, values: np.ndarray, record: dict[str, Any], config: dict[str, Any]) -> None:
    panels = [Panel("Threshold", "Share of a row's sampled attention that is kept.", "", values, 0.0, 1.0)]
    for title, field, meaning in (
        ("Dense attention kept", "recall_by_head", "On the text it was fitted on."),
        ("Blocks kept", "blocks_by_head", "Of those that hold a pair."),
    ):
        table = record.get(field)
        if table:
            shares = np.array([row or [np.nan] * values.shape[1] for row in table], float)
            panels.append(
                Panel(title, meaning, "%", shares, float(min(0.5, np.nanmin(shares))) if "Dense" in title else 0.0, 1.0)
            )
    picked = (page.layer, page.head) if page.layer < len(values) else None
    data = grid_data(panels, picked)
    title = f"Thresholds of every head, {name}"
    with saveable(
        key="xa_thresholds",
        name=title,
        page=lambda: document(title, part(data), note=_how(config)),
        rows=lambda: _rows(values, record),
    ):
        head_grid(data, key="xa_thresholds", on_pick=choose)


def _evaluations(entry: dict[str, Any]) -> None:
    """What the adapter's own evaluations say, where they lie beside it."""
    folder = Path(entry["path"])
    plain_ = recorded.document("eval-plain.json", folder)
    for file, name in (("eval-fitted.json", "fitted"), ("eval-fitted-88.json", "fitted to 88 %")):
        found = recorded.document(file, folder)
        if found and plain_:
            st.markdown(f"- {words.judged(found, plain_, name)}")


def _rows(values: np.ndarray, record: dict[str, Any]) -> pd.DataFrame:
    """One row a head."""
    layers, heads = values.shape
    rows = pd.DataFrame({"layer": np.repeat(np.arange(layers), heads), "head": np.tile(np.arange(heads), layers)})
    rows["threshold"] = values.ravel()
    for field in ("recall_by_head", "blocks_by_head"):
        if table := record.get(field):
            rows[field.removesuffix("_by_head")] = np.array([row or [np.nan] * heads for row in table], float).ravel()
    return rows


def _how(config: dict[str, Any]) -> str:
    record, serve = config.get("record") or {}, config.get("serve") or {}
    return (
        f"{record.get('method', 'fitted')}; {record.get('windows', '–')} × {record.get('context', 0):,} tokens of "
        f"{record.get('texts', 'a text')}; blocks of {serve.get('block')}, stride {serve.get('stride')}"
    )


@st.cache_resource(max_entries=8, show_spinner=False)
def _thresholds(path: str, modified: float) -> np.ndarray | None:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return load_file(Path(path) / "focus_adapter.safetensors")["thresholds"].astype(float)
    except (SafetensorError, KeyError, OSError):
        return None


# ---- the programme --------------------------------------------------------------------------------------------------


def _programme(page: Page) -> None:
    live = fitting.result_of(page, "programme")
    shipped = recorded.document(RECORDED) or {}
    record = live["record"] if live else shipped.get("record") if shipped.get("model") == page.model else None
    if record is None:
        st.caption("It has not run for this model yet.")
        return
    st.markdown(f"**{words.programme_sentence(record)}**")
    note = f"{record['windows']} × {record['context']:,} tokens of {record['texts']}"
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        badge("live" if live else "recorded")
        where = "" if live else f" · {shipped['environment']['time'][:10]} · {COMMAND}"
        st.caption(plain(note + where))
    left, right = st.columns([1.6, 1], gap="medium")
    with left:
        plot(
            words.programme_figure(record),
            key="xa_programme",
            alt="Perplexity of the programme's best states by layers considered and layers lowered.",
            name="The dynamic programme's table",
            rows=lambda: words.cells(record["programme"]),
            note=note,
        )
    with right:
        st.dataframe(
            words.steps(record["programme"]),
            hide_index=True,
            key="xa_programme_steps",
            column_config={
                "Lowered": st.column_config.NumberColumn(width="small"),
                "Perplexity": st.column_config.NumberColumn(format="%.4f"),
                "Pairs kept, %": st.column_config.NumberColumn(format="%.2f"),
            },
        )
