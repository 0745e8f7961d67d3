"""The tab of what was recorded on a GPU, beside what this machine's comparison shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import streamlit as st

from analysis import gpu_results
from analysis.choose_words import GROUPED
from analysis.gpu_figures import (
    PICTURES,
    above_limit,
    by_length,
    model_bars,
    model_cases,
    series_of,
    stage_bars,
    starting,
)
from analysis.gpu_results import Row, Run
from analysis.gpu_targets import answer, outcomes
from analysis.numbers import percent, sig3, times
from app.ui import comparisons, links, recorded
from app.ui.badges import badge
from app.ui.compare import measure
from app.ui.figure import plot
from app.ui.guard import plain
from app.ui.view import Page

PICTURE = "compare_gpu"
_CALLED = (
    "Filled points: as it is called, one kernel started after another. Open points: as a CUDA graph, where one launch "
    "starts all kernels; dense is timed the same way."
)


def from_link(notices: list[str]) -> None:
    """Take the picture from the opening link."""
    links.check(PICTURE, PICTURES, "speed", notices, PICTURES.__getitem__)


def render(page: Page, say: Callable[[str], None]) -> None:
    """Draw the tab.

    Args:
        page: the page.
        say: draws the page's sentence.
    """
    rows = gpu_results.rows_of(recorded.documents("bench-"))
    say(answer(rows))
    if not rows:
        return
    _origin(rows)
    _picture(page, rows)
    st.caption("Nothing at the left changes what was recorded on a GPU.")
    with st.expander("What was aimed at, and what was reached", icon=":material/flag:"):
        _targets(rows)
    if any(row.method == "model" for row in rows):
        with st.expander("Whole models", icon=":material/deployed_code:"):
            _models(rows)
    _explain()


def runs_of(rows: list[Row]) -> list[Run]:
    """The runs behind the rows, latest first."""
    found = list(dict.fromkeys(row.run for row in rows))
    return sorted(found, key=lambda run: run.time, reverse=True)


def _origin(rows: list[Row]) -> None:
    """Where the numbers come from, in one line; whether the code of those that are drawn has changed since."""
    found = runs_of(rows)
    commands = " · ".join(f"{run.date}, {run.card}: {run.command} (data/results/{run.file})" for run in found)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        badge("recorded", commands)
        _changed([row for _, line in series_of(rows) for row in line])
        cards = ", ".join(dict.fromkeys(run.card for run in found))
        days = sorted({run.date for run in found})
        when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
        versions = "; or ".join(dict.fromkeys(run.versions() for run in found))
        st.caption(plain(f"{cards}, {versions}, {when}"), help=plain(commands))


def _changed(rows: list[Row]) -> None:
    """A badge where the code of what is drawn has changed since it was measured."""
    files = sorted({row.run.file for row in rows if row.run.changed})
    if files:
        badge("code changed since", ", ".join(files))


def _picture(page: Page, rows: list[Row]) -> None:
    picture = st.segmented_control(
        "Picture",
        list(PICTURES),
        default="speed",
        required=True,
        format_func=PICTURES.get,
        key=PICTURE,
        bind="query-params",
        label_visibility="collapsed",
    )
    note = ", ".join(dict.fromkeys(f"{run.card}, {run.date}, {run.command}" for run in runs_of(rows)))
    name = f"On a GPU: {PICTURES[picture or 'speed'].lower()}"
    if picture == "stages":
        alt = "Share of planning, gathering, group pass and window pass in the time of each forward."
        plot(stage_bars(rows), key="compare_gpu_stages", alt=alt, name=name, note=note)
        st.caption(
            f"Each stage by itself, as a CUDA graph unless said. {plain(starting(rows))} The merge is part of the "
            "window pass. The longer the text, the more of the time goes to the pairs that are kept. "
            f"{GROUPED}"
        )
        return
    shown = measure.RUN.find(page, None, lambda: comparisons.shipped("compare"))
    cpu, origin = (shown.result, "recorded" if shown.recorded else "live") if shown else (None, "")
    figure = by_length(rows, picture or "speed", cpu, origin)
    alt = f"{PICTURES[picture or 'speed']} by length, one line a shape and setting."
    plot(figure, key=f"compare_gpu_{picture}", alt=alt, name=name, note=note)
    if picture == "limit":
        st.caption(
            "The pair limit is what the kept pairs alone would give at the dense kernel's rate; above 100 % they are "
            f"computed at a higher rate than that kernel's. {_CALLED} {GROUPED}"
        )
    else:
        st.caption(
            f"{_CALLED} Dotted is what the kept pairs alone would give at the dense kernel's rate. "
            f"{plain(above_limit(rows))} "
            "One attention layer, bf16; Focus with random groups on random numbers, XAttention on a model's own; "
            "planning, sorting, gathering, selecting and merging are in the time. "
            f"Dense is the fastest of {', '.join(gpu_results.dense_kernels(rows))}. Crosses are the comparison of "
            f"the tab Measure: attention and routing of a whole model on a CPU. {GROUPED}"
        )


def _targets(rows: list[Row]) -> None:
    table = [
        {
            "State": one.state,
            "What": one.target.what,
            "Measured": one.measured.partition("; ")[0],
            "Aimed at": one.target.aim,
            "How": one.measured.partition("; ")[2],
            "Where the time goes": one.profile,
            "Recorded": f"{one.row.run.date}{', code changed since' if one.row.run.changed else ''}" if one.row else "",
        }
        for one in outcomes(rows)
    ]
    st.dataframe(
        pd.DataFrame(table),
        hide_index=True,
        key="compare_gpu_targets",
        column_config={
            "State": st.column_config.TextColumn(pinned=True),
            "What": st.column_config.TextColumn(width="large"),
            "Measured": st.column_config.TextColumn(width="small"),
            "Aimed at": st.column_config.TextColumn(width="medium"),
            "How": st.column_config.TextColumn(width="large"),
        },
    )
    st.caption(
        "`docs/performance.md` has the same with the error, the memory and the command of each, and why what is "
        "missed is missed."
    )


def _models(rows: list[Row]) -> None:
    cases = model_cases(rows)
    if cases:
        _changed([row for row in rows if row.method == "model"])
        case = st.segmented_control(
            "Model",
            list(cases),
            default=next(iter(cases)),
            required=True,
            key="compare_gpu_model",
            label_visibility="collapsed",
        )
        plot(
            model_bars(rows, *cases[case or next(iter(cases))]),
            key="compare_gpu_whole",
            alt="Attention, cache and all else in the time of a whole model, as a share of dense's.",
            name=f"Whole model on a GPU: {case}",
        )
    found = [row for row in rows if row.method == "model" and row["phase"] is not None]
    table: list[dict[str, Any]] = [
        {
            "Model": row["model"],
            "Phase": row["phase"],
            "Tokens": row["tokens"],
            "Attention": row["line"],
            "Milliseconds": sig3(row.median("ms")),
            "Runs": row["repeats"],
            "Attention's share": percent(row["attention_share"]),
            "Whole model": times(row["speedup"]),
            "Attention alone": times(row["attention_speedup"]),
            "Positions": row["positions"],
        }
        for row in found
    ]
    st.dataframe(
        pd.DataFrame(table),
        hide_index=True,
        key="compare_gpu_models",
        column_config={
            "Model": st.column_config.TextColumn(pinned=True),
            "Tokens": st.column_config.NumberColumn(format="localized"),
            "Whole model": st.column_config.TextColumn(help="Times faster than the same model with dense attention."),
        },
    )
    st.caption(
        "A ratio of kernels is no ratio of serving: a model gains only in the share of its time that attention takes. "
        "Batch 1, one forward a token, kernels started one by one; decode as a graph is the same with each token one "
        "CUDA graph, dense too."
    )


def _explain() -> None:
    with st.expander("What am I looking at?", icon=":material/help:"):
        st.markdown(
            "Recorded on one card with the command that the badge names, against the fastest dense kernel that was "
            "timed in the same run, interleaved. Dotted is what the kept pairs alone would give at the dense "
            "kernel's rate; what a line lacks of it is planning, sorting, gathering, merging and, as it is called, "
            "starting kernels. A line crosses it where the kept pairs are computed at a higher rate than dense's. "
            "Below the dashed line a variant is slower than dense attention, and short texts are there."
        )
        st.latex(
            r"\begin{aligned}\text{faster} &= "
            r"\frac{t_\text{dense}}{t_\text{plan} + t_\text{gather} + t_\text{groups} + t_\text{window}}"
            r" \\[.6em] &\lesssim \frac{N^2 / 2}{\text{pairs kept}}"
            r" \cdot \frac{\text{rate on kept pairs}}{\text{dense's rate}}\end{aligned}"
        )
        st.button(
            "Try: where does the time go?", key="compare_gpu_try", icon=":material/lightbulb:", on_click=_try_stages
        )


def _try_stages() -> None:
    st.session_state[PICTURE] = "stages"
