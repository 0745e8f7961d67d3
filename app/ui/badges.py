"""Where a number comes from, in one coloured word with its explanation."""

from __future__ import annotations

import streamlit as st

from app.ui.guard import plain

MEANING = {
    "live": ("green", "Measured now, on this machine, on this text."),
    "recorded": ("blue", "Measured earlier and shipped; a live run replaces it when the model is ready."),
    "code changed since": (
        "orange",
        "The kernel's sources differ from those that were measured: the figure is of the code as it was.",
    ),
    "opened": ("violet", "Read from a Trace file; it was measured where and when the file says."),
    "earlier settings": ("orange", "Belongs to the settings that ran last; the present ones have not run."),
    "not as trained": ("orange", "The settings differ from those that the groups were trained and measured with."),
    "trained on": (
        "orange",
        "The groups were learned from this very text: its figures do not show what they do on a new one.",
    ),
    "leaks": ("red", "Later tokens can change earlier outputs: not a figure that decoding could reach."),
    "masked dense": ("gray", "Computed by hiding pairs from dense attention: right, but it saves no time."),
    "UMAP": ("violet", "Placed by neighbourhood (McInnes, Healy and Melville 2018), keys and queries together."),
    "PCA": ("gray", "Placed along the two directions in which the points differ most."),
    "gold tags": ("green", "Made by people: the Brown corpus."),
    "tagger": ("orange", "Made by the shipped tagger, which is sometimes wrong."),
    "too short to judge": ("gray", "Fewer than 200 scored tokens: chance is larger than the effect."),
}


def badge(word: str, detail: str = "") -> None:
    """Draw one badge; hovering explains it."""
    color, meaning = MEANING[word]
    st.badge(word, color=color, help=f"{meaning} {plain(detail)}".strip())


def badge_text(word: str) -> str:
    """A badge within Markdown."""
    return f":{MEANING[word][0]}-badge[{word}]"
