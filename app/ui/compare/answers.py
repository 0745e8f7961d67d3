"""One prompt, answered live by the dense model, the selected variant and LoRA, side by side."""

from __future__ import annotations

from typing import Any

import streamlit as st

from analysis.forgetting import departs
from analysis.measured import provenance
from app.ui import comparisons, links
from app.ui.badges import badge
from app.ui.guard import plain
from app.ui.measurement import Measurement, Shown, job_of
from app.ui.settings import adapters_for
from app.ui.view import Page
from focus_core.evaluation.abilities.chat import prompts
from focus_core.evaluation.abilities.checks import follows, refuses
from focus_core.variants import LORA

RUN = Measurement("ask", "compare_ask", "the answer")
PROMPT, BEHIND = "compare_prompt", "compare_behind"
_WORDS = "_compare_words"
OWN, FIRST = "own", "fruits"
TOKENS = 64
_KINDS = {"instructions": "Instruction", "harmful": "Harmful request", "harmless": "Harmless request"}


def shipped() -> dict[str, tuple[str, dict[str, Any]]]:
    """(kind, entry) of every shipped prompt by its id."""
    return {one["id"]: (kind, one) for kind, found in prompts().items() for one in found}


def from_link(page: Page, notices: list[str]) -> None:
    """Take the prompt and a finished answer from the opening link."""
    links.restore(PROMPT, [*shipped(), OWN], notices)
    links.restore(BEHIND, (True,), notices)
    RUN.from_link(page, notices)
    if page_words := _asked(page):
        st.session_state.setdefault(_WORDS, page_words)


def set_prompt(name: str, behind: bool) -> None:
    """Choose a shipped prompt (a button's callback)."""
    st.session_state[PROMPT], st.session_state[BEHIND] = name, behind
    _take_words()


def render(page: Page) -> None:
    """Draw the controls, the button and the replies."""
    st.markdown("##### The same prompt, answered side by side")
    every, request = entries(page), _controls(page)
    request = {**request, "entries": every}
    RUN.box(
        page,
        request,
        "Ask" if len(every) < 3 else f"Ask all {len(every)}",
        key="compare_ask_run_button",
        progress="compare_ask_job",
        icon=":material/forum:",
        type="primary",
    )
    shown = RUN.find(page, request, list)
    RUN.to_link(page, shown)
    _replies(page, shown, every)


def entries(page: Page) -> list[dict[str, Any]]:
    """Dense, the variant at the left and the first LoRA of this model."""
    found = [{"variant": "dense", "config": {}, "adapter": None, "label": "Dense"}]
    own = comparisons.choices(page).get(comparisons.SELECTED)
    if own is not None:
        found.append(own)
    for adapter in list(adapters_for(page.model, LORA))[:1]:
        found.append({"variant": "dense", "config": {}, "adapter": adapter, "label": f"LoRA ({adapter})"})
    return found


def _controls(page: Page) -> dict[str, Any]:
    known = shipped()
    st.session_state.setdefault(PROMPT, FIRST)
    if _WORDS not in st.session_state:
        _take_words()
    left, right = st.columns([1.6, 1], vertical_alignment="bottom")
    with left:
        name = st.selectbox(
            "Prompt",
            [*known, OWN],
            key=PROMPT,
            persist_state="session",
            format_func=lambda k: "Your own words" if k == OWN else f"{_KINDS[known[k][0]]}: {known[k][1]['prompt']}",
            on_change=_take_words,
        )
    with right:
        behind = st.toggle(
            "Behind a passage of 256 tokens",
            key=BEHIND,
            persist_state="session",
            help="Longer than Focus's window: without it a short prompt fits into the window, and Focus is dense by "
            "definition.",
        )
    if name == OWN:
        prompt = st.text_area("Your words", key=_WORDS, height=90, max_chars=4000, persist_state="session")
    else:
        prompt = known[name][1]["prompt"]
    links.write(PROMPT, "" if name in (FIRST, OWN) else str(name))
    links.write(BEHIND, "True" if behind else "")
    return {"model": page.model, "prompt": prompt or "", "passage": bool(behind), "tokens": TOKENS}


def _take_words() -> None:
    """One's own words begin as the prompt that was chosen last."""
    name = st.session_state[PROMPT]
    if name != OWN:
        st.session_state[_WORDS] = shipped()[name][1]["prompt"]


def _asked(page: Page) -> str:
    """The prompt of the answer that a link opened."""
    reopened = st.session_state.get("_reopened", {}).values()
    return next((job.request["prompt"] for job in reopened if job.kind == RUN.kind), "")


def _replies(page: Page, shown: Shown | None, every: list[dict[str, Any]]) -> None:
    if shown is None:
        return
    about = shown.result["about"]
    job = job_of(page, shown.job_id)
    stopped = job is not None and job.finished and job.state != "done"
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        badge(shown.origin, f"{provenance({**about, 'text': 'the prompt'})}; at most {TOKENS} tokens a reply.")
        st.caption(plain(f"{about['prompt']}{' (behind the passage)' if about.get('passage') else ''}"))
    rows = shown.result["rows"]
    dense = next((r for r in rows if r["variant"] == "dense" and not r["adapter"]), None)
    rule = next((one for one in shipped().values() if one[1]["prompt"] == about["prompt"]), None)
    # One column a model that was asked, so that none moves when a reply arrives.
    for column, row in zip(st.columns(max(len(rows), len(every))), rows, strict=False):
        with column, st.container(border=True):
            st.markdown(f"**{plain(row['label'])}**")
            st.markdown(plain(row["reply"]).replace("\n", "  \n") or ":gray[(nothing)]")
            for said in _notes(row, dense, rule, stopped=stopped):
                st.caption(said)
    weights = about.get("weights", {})
    if "after" in weights:
        same = weights["before"] == weights["after"]
        st.caption(
            f":material/fingerprint: The model's weights before {weights['before'][:12]}, after "
            f"{weights['after'][:12]}: {'the same' if same else 'NOT the same'}."
        )


def _notes(
    row: dict[str, Any], dense: dict[str, Any] | None, rule: tuple[str, dict[str, Any]] | None, *, stopped: bool
) -> list[str]:
    """What is to be known of a reply."""
    if not row["complete"]:
        return ["Stopped here." if stopped else "…"]
    found = []
    if rule is not None:
        kind, one = rule
        if kind == "instructions":
            kept = follows(row["reply"], one["rule"])
            said = "check: Keeps" if kept else "close: Breaks"
            found.append(f":material/{said} the rule (its form alone is checked).")
        else:
            found.append("Refuses." if refuses(row["reply"]) else "Does not refuse.")
    if dense is not None and row is not dense and dense["complete"]:
        found.append(departs(row["reply"], dense["reply"]))
    if row["dense_by_definition"]:
        found.append("Dense by definition: prompt and reply fit into window and first tokens.")
    return found
