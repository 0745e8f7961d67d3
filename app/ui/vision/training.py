"""Tab: what training the arms gave: accuracy, parameters, time, memory, loss, and mass on the object."""

from __future__ import annotations

from functools import partial
from typing import Any

import streamlit as st

from analysis import vision_memory
from analysis import vision_training as words
from app.ui.badges import badge
from app.ui.figure import plot
from app.ui.guard import plain
from app.ui.recorded import documents

PREFIX = "vision-"
COMMAND = "python -m data.build.vision all --data DIR"


def records() -> list[dict[str, Any]]:
    """The recorded trainings, Fashion-MNIST's first."""
    found = [d for d in documents(PREFIX) if d.get("summary")]
    return sorted(found, key=lambda d: "digits" in {row["size"] for row in d["summary"]})


def render() -> None:
    """Draw the tab."""
    found = records()
    if not found:
        st.info(f"No training was recorded on this machine yet: `{COMMAND}` does it.", icon=":material/model_training:")
        return
    for place, document in enumerate(found):
        if place:
            st.divider()
        _one(document, "vision" if not place else f"vision_{place + 1}")


def _one(document: dict[str, Any], key: str) -> None:
    note = words.about(document)
    st.markdown(f"**{plain(words.sentence(document))}**")
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        badge("recorded", note)
        st.caption(plain(words.made_on(document)), help=plain(note))
    for said in (words.arms_sentence(document), words.rates_sentence(document)):
        if said:
            st.markdown(plain(said))
    plot(
        words.accuracy_figure(document),
        key=f"{key}_accuracy",
        alt="Accuracy by attention and size; a dot a seed.",
        name="Accuracy by attention",
        rows=lambda: words.table(document),
        note=note,
    )
    st.caption(
        "Marks are means over seeds with their standard deviation, small dots single seeds, dotted softmax's mean of "
        "the same size. G3B: 3 frequencies (G1B: 1, G5B: 5), rank 12, operators of every layer's own; G3U: shared by "
        "all layers; simplex: rows, or the low-rank vector z, projected so that none is negative and the sum is 1; "
        "B-splines, wavelets, fractal: other functions than sines, in as many parameters."
    )
    st.dataframe(
        words.table(document),
        hide_index=True,
        height="content",
        key=f"{key}_table",
        column_config={
            "attention": st.column_config.TextColumn(pinned=True),
            "size": st.column_config.TextColumn(width=52),
            "seeds": st.column_config.NumberColumn(width=52),
            "roughness": st.column_config.TextColumn(
                width=84,
                help="How much the training loss jumps: over the last half, the standard deviation of its distance "
                "from the median of the 25 steps before.",
            ),
            "against softmax": st.column_config.TextColumn(
                help="Points of the mean accuracy, and two standard errors of the difference over seeds."
            ),
            "step": st.column_config.TextColumn(help="Median time of a training step, on the machine named above."),
            "memory": st.column_config.TextColumn(help="Most memory that a training step takes."),
            "on the object": st.column_config.TextColumn(
                help="Share of the class token's attention, without its sign, that lies on the object's pixels: mean "
                "of all heads, layers and images."
            ),
        },
    )
    if captured := words.step_sentence(document):
        st.caption(plain(captured))
    if made := words.made_sentence(document):
        st.caption(plain(made))
    panels = [partial(_loss, document, key, size) for size in words.sizes(document)] + [partial(_mass, document, key)]
    if (document.get("cost") or {}).get("memory_by_rank"):
        panels.append(partial(_memory, document, key))
    for first in range(0, len(panels), 2):
        for column, draw in zip(st.columns(2, gap="medium"), panels[first : first + 2], strict=False):
            with column:
                draw()


def _loss(document: dict[str, Any], key: str, size: str) -> None:
    st.markdown(f"**Loss, {size}.** {plain(words.loss_sentence(document, size))}")
    plot(
        words.loss_figure(document, size),
        key=f"{key}_loss_{size}",
        alt="Training loss by step.",
        name=f"Training loss, {size}",
        note=words.about(document),
    )


def _mass(document: dict[str, Any], key: str) -> None:
    st.markdown(f"**Sharper maps?** {plain(words.mass_sentence(document))}")
    plot(
        words.mass_figure(document),
        key=f"{key}_mass",
        alt="Attention mass on the object by attention.",
        name="Attention on the object",
        note=words.about(document),
    )


def _memory(document: dict[str, Any], key: str) -> None:
    st.markdown(f"**Memory.** {plain(vision_memory.rank_sentence(document))}")
    plot(
        vision_memory.rank_figure(document),
        key=f"{key}_rank",
        alt="Peak memory of a training step by rank.",
        name="Memory by rank",
        note=words.about(document),
    )
