"""Tab: XAttention without a causal mask on the tokens of an image, a small stand-in for the paper's video case."""

from __future__ import annotations

import streamlit as st

from analysis import vision_sweep as words
from analysis import vision_training
from app.ui.badges import badge
from app.ui.figure import plot
from app.ui.guard import plain
from app.ui.vision.training import COMMAND, records


def render() -> None:
    """Draw the tab."""
    found = [(run, document) for document in records() for run in words.sweeps(document)]
    st.caption(
        "A small stand-in: XAttention's video case (a diffusion transformer over tens of thousands of tokens, without "
        "a causal mask, its first steps dense) does not fit here. The same scoring and choice of blocks act on the "
        "tokens of one image in a trained softmax ViT, with the first layers dense. It shows what is lost, not what "
        "time is saved."
    )
    if not found:
        st.info(f"No such run was recorded on this machine yet: `{COMMAND}` does it.", icon=":material/grid_on:")
        return
    run, document = found[0]
    note = vision_training.about(document, run)
    st.markdown(f"**{plain(words.sweep_sentence(run))}**")
    badge("recorded", note)
    plot(
        words.sweep_figure(run),
        key="vision_fewer",
        alt="Accuracy against the share of pairs that XAttention keeps.",
        name="XAttention on an image's tokens",
        rows=lambda: words.sweep_table(run),
        note=note,
    )
    first = run["xattention"][0]
    st.caption(f"{run['tokens']:,} tokens an image, stride {first['stride']}, blocks of {first['block']} tokens.")
    st.dataframe(words.sweep_table(run), hide_index=True, key="vision_fewer_table")
