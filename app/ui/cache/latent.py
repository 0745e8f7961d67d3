"""Latent attention: perplexity by rank of models that were given a latent, and those made with one."""

from __future__ import annotations

from typing import Any

import streamlit as st

from analysis import cache_latent as latent
from app.ui.figure import plot
from app.ui.guard import plain
from app.ui.recorded import documents
from app.ui.runs import model_label
from app.ui.view import Page

PREFIX = "latent-"


def render(page: Page) -> None:
    """Draw the tab."""
    found = documents(PREFIX)
    own = next((d for d in found if d["about"]["model"] == page.model), next(iter(found), None))
    if own is not None:
        _by_rank(own)
    st.markdown("**Models made with a latent from the start**")
    st.dataframe(latent.native_table(), hide_index=True, key="cache_native")
    st.caption(
        f"Published (DeepSeek-V2, arXiv 2405.04434, table 9). Each layer keeps {latent.WIDTH} numbers a token: a "
        f"latent of {latent.LATENT} and one rotated key of {latent.ROTARY} for all heads."
    )


def _by_rank(document: dict[str, Any]) -> None:
    about = document["about"]
    where = about["environment"]
    st.markdown(f"**{plain(model_label(about['model']))}: {plain(latent.sentence(document))}**")
    said = (
        f"{model_label(about['model'])}, {about['text']}, {about['windows']} windows of {about['context']:,} tokens; "
        f"factors from {about['fitted_tokens']:,} tokens of the training novels. Recorded {str(where['time'])[:10]} on "
        f"{where['device']}: {about['command']}"
    )
    plot(
        latent.figure(document),
        key="cache_ranks",
        alt="Perplexity by bytes of cache a token, one point a rank of the latent.",
        name="Perplexity by rank of the latent",
        note=said,
    )
    st.caption(plain(said))
