"""Is it grammar? Agreement of groups with parts of speech by layer, held against baselines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from analysis.agreement import MEASURES, REPEATS, Agreement, agreement
from analysis.captions import what_ran
from analysis.grammar import verdict
from analysis.group_figures import NAMES, agreement_curve
from analysis.parts import Parts
from app.ui import selection, settings
from app.ui.badges import badge
from app.ui.figure import plot
from app.ui.groups import shown as page_state
from app.ui.groups.shown import MEASURE, SCOPE, SCOPES, SIDE_NAMES, Shown
from app.ui.groups.table import side_control
from app.ui.guard import fragment, plain
from app.ui.jobs import begin, job_status, priced
from app.ui.strip.data import router_count
from app.ui.view import Page
from focus_core.errors import FocusError
from focus_core.trace import Trace

PIECES = "pieces"
NO_KMEANS = (
    "k-means is left out here: it puts a token into one group, a token looks into several, and sets of different "
    "sizes cannot be compared."
)


def render(page: Page) -> None:
    """Draw the tab."""
    fragment(_draw, page)


def _draw(page: Page) -> None:
    shown = page_state.shown(page)
    if shown is None:
        page_state.no_groups(page)
        return
    if shown.parts is None:
        st.info("This run has no words to tag, so there is nothing to agree with.", icon=":material/label_off:")
        return
    side, router, measure, pieces = _controls(shown)
    clusters, origin = kmeans_of(page, shown) if side == "keys" else (None, "")
    with st.spinner("Scoring every layer, and its baselines …"):
        found = _scored(shown.identity, side, router, pieces, clusters is not None, shown.trace, shown.parts, clusters)
    if found is None:
        st.info("Fewer than two tokens of this text have a tag.", icon=":material/label_off:")
        return
    st.markdown(f"#### {plain(verdict(found, measure))}")
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        badge("gold tags" if found.gold else "tagger")
        if origin:
            badge(origin, "The k-means line.")
        st.caption(f"{found.tokens:,} tagged tokens in {found.sentences:,} sentences. {found.rule}")
    plot(
        agreement_curve(found, measure, shown.layer),
        key="groups_agreement",
        alt=f"Lines over the layers: {MEASURES[measure]} of the learned groups and of the baselines.",
        name=f"agreement with parts of speech, {SIDE_NAMES[side].lower()}",
        rows=lambda: frame(found),
        note=what_ran(shown.trace),
    )
    if side == "keys":
        _kmeans_offer(page, shown, clusters)
    else:
        st.caption(NO_KMEANS)
    _at_layer(found, shown)
    _how(found, shown)


def _controls(shown: Shown) -> tuple[str, int | None, str, bool]:
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        side = side_control(shown)
        scope = "mean"
        if router_count(shown.trace) > 1:
            scope = st.segmented_control(
                "Routers",
                list(SCOPES),
                default="mean",
                required=True,
                format_func=SCOPES.get,
                key=SCOPE,
                bind="query-params",
                label_visibility="collapsed",
            )
        measure = st.selectbox(
            "Measure",
            list(MEASURES),
            format_func=MEASURES.get,
            key=MEASURE,
            bind="query-params",
            label_visibility="collapsed",
            width=200,
            help="V-measure: the harmonic mean of homogeneity (a group has one tag) and completeness (a tag is in one "
            "group); it is normalised mutual information, NMI, by another name. Purity: tokens that have their "
            "group's most frequent tag; more groups raise it by themselves.",
        )
        pieces = st.toggle(
            "All pieces of a word",
            key=PIECES,
            bind="query-params",
            help="Off: only a word's first piece has its tag, so that a rare word in four pieces counts once.",
        )
    return side, None if scope != "one" else shown.router, measure or "v_measure", bool(pieces)


@st.cache_resource(max_entries=24, show_spinner=False)
def _scored(
    identity: str,
    side: str,
    router: int | None,
    pieces: bool,
    clustered: bool,
    _trace: Trace,
    _parts: Parts,
    _clusters: np.ndarray | None,
) -> Agreement | None:
    return agreement(_trace, _parts, side=side, router=router, pieces=pieces, kmeans=_clusters)


def frame(found: Agreement) -> pd.DataFrame:
    """Every line of every measure as a table."""
    rows = []
    for measure, curves in found.curves.items():
        for key, curve in curves.items():
            for i, layer in enumerate(curve.layers):
                row = {"measure": measure, "line": NAMES[key], "layer": int(layer), "value": float(curve.value[i])}
                if curve.low is not None:
                    row |= {"low": float(curve.low[i]), "high": float(curve.high[i])}
                rows.append(row)
    return pd.DataFrame(rows)


# ---- k-means --------------------------------------------------------------------------------------------------------


def kmeans_of(page: Page, shown: Shown) -> tuple[np.ndarray | None, str]:
    """(L, 1, N) k-means clusters of the same tokens and where they come from; None when there are none yet."""
    trace = shown.trace
    if "kmeans_bits" in trace.arrays:
        return trace.arrays["kmeans_bits"], page.source.kind
    recorded = page.source.recorded
    if recorded is not None and "kmeans_bits" in recorded.arrays and len(recorded) == len(trace):
        return recorded.arrays["kmeans_bits"], "recorded"
    request = _request(page, shown)
    job_id = selection.asked(request) if request else None
    job = page.engine.get(job_id) if job_id else None
    if job is not None and job.state == "done" and job.result:
        other = Trace.load(job.result["trace"])
        if len(other) == len(trace) and "key_bits" in other.arrays:
            return other.arrays["key_bits"], "live"
    return None, ""


def _request(page: Page, shown: Shown) -> dict[str, Any] | None:
    """The run of the k-means variant on this text; None where no clusters ship for the model."""
    adapter = next(iter(settings.adapters_for(page.model, "kmeans")), None)
    if adapter is None or not page.source.current:
        return None
    serve = settings.serve_defaults(adapter)
    return {**page.request(layers=[shown.layer]), "variant": "kmeans", "adapter": adapter, "config": serve}


def _kmeans_offer(page: Page, shown: Shown, clusters: np.ndarray | None) -> None:
    request = _request(page, shown)
    if clusters is not None or request is None:
        return
    job_id = selection.asked(request)
    job = page.engine.get(job_id) if job_id else None
    with st.container(key="groups_kmeans"):
        if job is not None:
            job_status(page.engine, job_id, key="kmeans_job", what="the k-means run", session=page.session)
            if not job.finished:
                return
        try:
            cost = page.engine.estimate("trace", request)
        except FocusError as error:
            st.caption(f"{error.message} {error.hint}".strip())
            return
        if st.button(priced("Add the k-means line", cost), key="kmeans_now", icon=":material/add_chart:"):
            begin(page, "trace", request)


_SIZES = {"keys": "the same sizes as far as whole words allow", "queries": "about the same sizes"}


# ---- words ----------------------------------------------------------------------------------------------------------


def _at_layer(found: Agreement, shown: Shown) -> None:
    """All measures in the shown layer, with the gain over one group a word type."""
    if shown.layer not in found.layers:
        return
    at = int(np.flatnonzero(found.layers == shown.layer)[0])
    rows = []
    for key in NAMES:
        if key not in found.curves["v_measure"]:
            continue
        row: dict[str, Any] = {"in layer " + str(shown.layer): NAMES[key]}
        for measure, name in MEASURES.items():
            curve = found.curves[measure][key]
            value = f"{curve.value[at]:.3f}"
            row[name] = value if curve.low is None else f"{value}  ({curve.low[at]:.3f} to {curve.high[at]:.3f})"
        rows.append(row)
    st.dataframe(pd.DataFrame(rows), hide_index=True, height="content", key="groups_scores")


def _how(found: Agreement, shown: Shown) -> None:
    with st.expander("How this is tested", icon=":material/rule:"):
        st.markdown(
            f"- **Tags.** {shown.parts.source}\n"
            f"- **Tokens.** {found.rule} The first tokens, which all see, are left out. A token in several groups "
            "counts once in each.\n"
            "- **One random group a word type**: every word keeps one random group wherever it stands, in groups of "
            f"{_SIZES[found.side]} ({REPEATS} draws). Above it, words of one part of speech are put together more "
            "often than words grouped at random; context need play no part: in layer 0 a token's group follows from "
            "the word alone, and can pass.\n"
            "- **Lookup by word alone**: every word in the group that most of its tokens have here. It is made from "
            "the tokens it is scored on, which flatters it; groups above it use more than the word.\n"
            "- **Shuffled**: the same sets on other tokens. **Random**: even draws. **k-means**: clusters of the "
            "hidden states, with nothing learned; they may agree more with parts of speech and still serve the model "
            "worse, which the page Compare measures as perplexity.\n"
            "- **Intervals** (95 %): sentences drawn with replacement, each time beside another draw of the random "
            f"groups. A layer passes when its gain over them is above zero; "
            f"by chance alone about {0.025 * len(found.layers):.1g} of {len(found.layers)} would."
        )
