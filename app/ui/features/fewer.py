"""Tab: codes inside kept pairs, each alone and both together."""

from __future__ import annotations

import streamlit as st

from analysis.features import pairs as words
from app.ui.badges import badge
from app.ui.figure import plot
from app.ui.recorded import document
from app.ui.settings import variant_label

NAME = "fewer-pairs-smollm2.json"


def render() -> None:
    """Draw the tab."""
    result = document(NAME)
    if result is None or not result["rows"]:
        st.info("Nothing was recorded: `python -m data.build.fewer_pairs` does.", icon=":material/straighten:")
        return
    st.markdown(f"**{words.pairs_sentence(result)}**")
    one = result["rows"][0]
    about = one["environment"]
    badge("recorded", f"{about['time']}, {about['device']}; python -m data.build.fewer_pairs.")
    plot(
        words.pairs_figure(result),
        key="features_pairs",
        alt="Loss of fewer pairs, of codes, their sum, and of both together.",
        name="Codes inside kept pairs",
        rows=lambda: words.pairs_table(result),
        note="python -m data.build.fewer_pairs",
    )
    st.caption(
        f"SmolLM2-135M-Instruct, not adapted to codes, {one['windows']} x {one['context']:,} tokens of Persuasion; "
        "bars show two standard errors of the paired difference. XAttention keeps earlier queries in its cache as well."
    )
    table = words.pairs_table(result)
    table["attention"] = [variant_label(name) for name in table["attention"]]
    st.dataframe(
        table,
        hide_index=True,
        key="features_pairs_table",
        column_config={"perplexity": st.column_config.NumberColumn("perplexity", format="%.2f")},
    )
