"""The tab of what adapting a model gains and forgets: recorded probes, and one prompt answered side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import streamlit as st

from analysis import forgetting as words
from analysis.choose_words import GROUPED
from analysis.forgetting_arms import (
    FOCUS_FULL,
    FULL,
    arm_key,
    arm_label,
    family,
    swept,
    telling,
    trained_tokens,
    training,
)
from analysis.forgetting_figures import gain_and_loss
from analysis.forgetting_frontier import frontier
from analysis.numbers import sig3
from app.ui import recorded
from app.ui.badges import badge
from app.ui.compare import answers
from app.ui.figure import plot
from app.ui.guard import plain
from app.ui.view import Page
from focus_core import assets

TRY = "compare_forgotten_try"
_BEST = "Of every sweep the arm that gained most on the novel. "
_TRAINED = " Full fine-tuning computes with a trained copy, whose hash is another one; the copy does not ship."
_PART = {"Part": st.column_config.TextColumn(pinned=True)}


def from_link(page: Page, notices: list[str]) -> None:
    """Take the prompt and its answers from the opening link."""
    answers.from_link(page, notices)


def render(page: Page, say: Callable[[str], None]) -> None:
    """Draw the tab.

    Args:
        page: the page.
        say: draws the page's sentence.
    """
    documents = recorded.documents("probe-")
    dense, others = words.arms([d for d in documents if d.get("model") == page.model] or documents)
    say(words.answer(dense, others))
    best = telling(others)
    if dense is not None:
        _origin(page, dense, others)
        if swept(others):
            _sweeps(dense, others)
        plot(
            gain_and_loss(dense, best),
            key="compare_forgotten",
            alt="For each ability, how much better or worse than dense each adapted model is, with 95 % intervals.",
            name="What is gained and what is forgotten",
            rows=lambda: pd.DataFrame(words.table(dense, best)),
            note=_note(dense),
        )
        st.caption(
            f"{_BEST if swept(others) else ''}"
            "Above the line what was trained on, below it all else: perplexities in %, shares in points, with 95 % "
            f"intervals of the difference on the same items. Long is behind a passage of {dense['sizes']['passage']} "
            "tokens. Hollow marks fit into the window and the first tokens, where Focus is dense attention by "
            "definition: they could not change. A needle is a fact hidden in a text and asked for at its end. "
            f"{GROUPED} {_budget(others)}"
        )
    answers.render(page)
    if dense is not None:
        _details(dense, others, best)
    _explain(page)


def _sweeps(dense: dict[str, Any], others: list[dict[str, Any]]) -> None:
    plot(
        frontier(dense, others),
        key="compare_forgotten_frontier",
        alt="Gain on the novel against change elsewhere, for Focus, LoRA and full fine-tuning at several rates.",
        name="Domain gain against general loss",
        rows=lambda: pd.DataFrame(words.table(dense, others)),
        note=_note(dense),
    )
    st.caption(
        "Every arm that was probed; better is right and up, and the shaded half is forgotten. A dotted line joins the "
        "learning rates of one way to train, named in the first panel; hollow marks are LoRA of another rank. "
        "All weights means full fine-tuning: a trained copy computes, and the model's own weights stay. Needles and "
        "instructions are joined over all lengths and places."
    )


def _origin(page: Page, dense: dict[str, Any], others: list[dict[str, Any]]) -> None:
    commands = " · ".join(f"{d.get('command')} (data/results/{d.get('file')})" for d in (dense, *telling(others)))
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        badge("recorded", commands)
        st.caption(plain(_note(dense)), help=plain(commands))
        if dense["model"] != page.model:
            st.caption(f"Of {plain(dense['model'])}: nothing has been recorded for {plain(page.model)}.")
        same = all(d["weights"]["same"] and d["weights"]["logits_change"] == 0 for d in (dense, *others))
        hashes = {d["weights"][when][:8] for d in (dense, *others) for when in ("before", "after")}
        if same and len(hashes) == 1:
            st.caption(
                f":material/fingerprint: The model's own weights were the same before and after every one: "
                f"{hashes.pop()}",
                help="SHA-256 of all parameters and buffers, before a retrofit, inside it and after it was taken out.",
            )


def _budget(others: list[dict[str, Any]]) -> str:
    """How many tokens each arm was trained on; empty where no record says."""
    shipped = assets.adapters()
    found: dict[int, list[str]] = {}
    for document in others:
        record = (shipped.get(arm_key(document), {}).get("config") or {}).get("record") or {}
        if tokens := trained_tokens(record) or training(document).get("tokens"):
            found.setdefault(tokens, []).append(arm_key(document))
    most = max(map(len, found.values()), default=0)
    said = [
        f"{sig3(tokens / 1e6)} million ({f'each of the other {most}' if most == len(names) > 3 else ', '.join(names)})"
        for tokens, names in sorted(found.items(), key=lambda one: len(one[1]))
    ]
    return f"Tokens trained on: {'; '.join(said)}." if said else ""


def _note(document: dict[str, Any]) -> str:
    where = document["environment"]
    return f"{document['model']}, {document['dtype']}, {where['device']}, {str(where['time'])[:10]}"


def _details(dense: dict[str, Any], others: list[dict[str, Any]], best: list[dict[str, Any]]) -> None:
    names = {arm_key(document): document for document in others}
    with st.expander("All figures", icon=":material/table:"):
        if len(others) > len(best):
            chosen = st.multiselect(
                "Arms",
                list(names),
                default=[arm_key(document) for document in best],
                key="compare_forgotten_arms",
                format_func=lambda key: arm_label(names[key]) if key in names else key,
            )
            best = [names[key] for key in chosen] or best
        st.dataframe(
            pd.DataFrame(words.table(dense, best)),
            hide_index=True,
            key="compare_forgotten_table",
            column_config={"What": st.column_config.TextColumn(pinned=True, width=230)},
        )
    with st.expander("Grammar, phenomenon by phenomenon", icon=":material/spellcheck:"):
        where = st.segmented_control(
            "Sentences",
            [words.BEHIND, words.BARE],
            default=words.BEHIND,
            required=True,
            key="compare_forgotten_where",
            format_func={words.BEHIND: "Behind a passage", words.BARE: "Alone"}.get,
            label_visibility="collapsed",
        )
        pairs = words.parts(dense, best, "pairs", where or words.BEHIND)
        st.dataframe(pd.DataFrame(pairs), hide_index=True, key="compare_forgotten_pairs", column_config=_PART)
        st.caption("Pairs that a model gets right, with Wilson's 95 % interval. They are generated.")
    lengths = sorted({r["where"] for r in dense["rows"] if r["task"] == "needle"}, key=int)
    if lengths:
        with st.expander("Needles, depth by depth", icon=":material/search:"):
            length = st.segmented_control(
                "Tokens",
                lengths,
                default=lengths[-1],
                required=True,
                key="compare_forgotten_length",
                format_func=lambda n: f"{int(n):,} tokens",
                label_visibility="collapsed",
            )
            found = words.parts(dense, best, "needle", length or lengths[-1])
            st.dataframe(pd.DataFrame(found), hide_index=True, key="compare_forgotten_needles", column_config=_PART)
            st.caption(
                "A depth of 0.1 is near the beginning, farthest from the question. Found: the right answer is the "
                "likeliest of all that stand to choose from, which is rank 1; said outright: also the likeliest of all "
                "words."
            )
    with st.expander("The weights' hashes", icon=":material/fingerprint:"):
        st.dataframe(
            pd.DataFrame(words.hashes(dense, others)),
            hide_index=True,
            key="compare_forgotten_hashes",
            column_config={"Arm": st.column_config.TextColumn("Model with", pinned=True)},
        )
        st.caption(
            "A retrofit never writes to the model: taken out, it gives the same logits bit for bit. That the weights "
            "are kept says nothing of what is computed while it is inside."
            f"{_TRAINED if any(family(d) in (FULL, FOCUS_FULL) for d in others) else ''}"
        )


def _explain(page: Page) -> None:
    with st.expander("What am I looking at?", icon=":material/help:"):
        st.markdown(
            "Each arm was trained on the same five novels; the base model stays as it was. A mark at the right of "
            "zero does something better than the untouched model, one at the left has forgotten it. A prompt that "
            "fits into Focus's window tells nothing of Focus, so most tests stand behind a passage that is longer."
        )
        st.latex(
            r"\text{better} = 1 - \frac{\text{PPL}}{\text{PPL}_\text{dense}} \quad\text{or}\quad "
            r"\frac{\#\{\text{won}\} - \#\{\text{lost}\}}{n}"
        )
        st.button(
            "Try: one prompt, behind a passage",
            key=TRY,
            icon=":material/lightbulb:",
            on_click=answers.set_prompt,
            args=("fruits", True),
        )


def keys() -> tuple[str, ...]:
    """Parameters of the address that are this tab's."""
    return (answers.PROMPT, answers.BEHIND, f"{answers.RUN.slot}_run")
