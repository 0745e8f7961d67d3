"""By layer, recorded: a router's groups beside chance in every layer, named from data, and what looks for what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st

from analysis import by_layer as words
from analysis.by_layer_figures import looks_heatmap, measures_by_layer
from analysis.palette import group_color
from app.ui import links
from app.ui.badges import badge
from app.ui.figure import plot
from app.ui.guard import fragment, plain
from app.ui.recorded import results_folder
from app.ui.view import Page
from focus_core.interpret.parts import RULE
from focus_core.jobs.files import read_json

WHICH, SIDE, MEASURE = "interpreted", "interpreted_side", "interpreted_measure"
LAYER, ROUTER, LOOKS = "interpreted_layer", "interpreted_head", "interpreted_looks"
_MEAN = "Mean of all layers"
_FIRST = "directed-k16"


def render(page: Page) -> None:
    """Draw the tab."""
    fragment(_draw, page)


def _draw(page: Page) -> None:
    names = recordings()
    if not names:
        st.info(
            "No interpretation ships here. Make one: python -m focus_core interpret --adapter NAME --json "
            "data/results/interpret-NAME.json.gz",
            icon=":material/terminal:",
        )
        return
    notices: list[str] = []
    links.check(WHICH, names, next(iter(names)), notices, names.get)
    links.check(SIDE, words.SIDES, "keys", notices, words.SIDES.get)
    links.check(MEASURE, words.MEASURES, "v_measure", notices, words.MEASURES.get)
    found, side, measure = _controls(names)
    layers = [entry["layer"] for entry in found["layers"]]
    best = found["summary"]["keys"]["best_layer"]
    links.check(LAYER, layers, best, notices)
    links.check(ROUTER, range(words.routers(found)), 0, notices)
    links.check(LOOKS, [None, *layers], _MEAN, notices, _layer)
    for notice in notices:
        st.warning(plain(notice), icon=":material/link_off:")
    st.markdown(f"#### {plain(words.answer(found, side))}")
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        badge("recorded", _made(found))
        badge("gold tags" if found["gold"] else "tagger")
        st.caption(
            f"{found['tagged']:,} tagged tokens in {found['sentences']:,} sentences of {len(found['texts'])} texts. "
            "Nothing at the left changes what was recorded."
        )
    plot(
        measures_by_layer(found, side, measure),
        key="by_layer_measures",
        alt=f"Lines over the layers: {words.MEASURES[measure]} of the learned groups; bands are what chance reaches.",
        name=f"groups by layer, {words.title(found)}, {words.SIDES[side].lower()}",
        rows=lambda: words.layers_frame(found, side),
        note=_made(found),
    )
    _named(found, side, layers)
    _looks(found, layers)
    _stable(found)
    _how(found)


def recordings() -> dict[str, str]:
    """Titles of the recorded interpretations by their names; the default adapter's first."""
    found = {}
    for path in sorted(results_folder().glob("interpret-*.json.gz")):
        document = recording(path.name.removeprefix("interpret-").removesuffix(".json.gz"))
        if document is not None:
            found[path.name.removeprefix("interpret-").removesuffix(".json.gz")] = words.title(document)
    return dict(sorted(found.items(), key=lambda item: (item[0] != _FIRST, item[0])))


def recording(name: str) -> dict[str, Any] | None:
    """One recorded interpretation; None where it cannot be read."""
    path = results_folder() / f"interpret-{name}.json.gz"
    return _read(str(path), path.stat().st_mtime) if path.is_file() else None


@st.cache_resource(max_entries=8, show_spinner=False)
def _read(path: str, modified: float) -> dict[str, Any] | None:
    return read_json(Path(path))


def _controls(names: dict[str, str]) -> tuple[dict[str, Any], str, str]:
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        which = st.selectbox(
            "Router",
            list(names),
            format_func=names.get,
            key=WHICH,
            bind="query-params",
            width=360,
        )
        found = recording(which or next(iter(names)))
        assert found is not None
        side = "keys"
        if len(words.sides(found)) > 1:
            side = st.segmented_control(
                "Groups by",
                words.sides(found),
                default="keys",
                required=True,
                format_func=words.SIDES.get,
                key=SIDE,
                bind="query-params",
                help="A directed router sorts every token twice: into the group that others find it in, and into the "
                "groups that it looks into.",
            )
        measure = st.selectbox(
            "Measure",
            list(words.MEASURES),
            format_func=words.MEASURES.get,
            key=MEASURE,
            bind="query-params",
            width=200,
            help="V-measure: 1 when every group is one part of speech and every part of speech one group; it is NMI by "
            "another name. Purity: tokens that have their group's most frequent tag; more groups raise it by "
            "themselves.",
        )
    return found, side or "keys", measure or "v_measure"


def _named(found: dict[str, Any], side: str, layers: list[int]) -> None:
    st.markdown("### What is each group about?")
    st.markdown(plain(words.about(found, side)))
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        best = found["summary"]["keys"]["best_layer"]
        layer = st.selectbox("Layer", layers, index=layers.index(best), key=LAYER, bind="query-params", width=110)
        router = 0
        if (count := words.routers(found)) > 1:
            router = st.selectbox("Router of KV head", range(count), key=ROUTER, bind="query-params", width=160)
    rows = words.groups_frame(found, layers[0] if layer is None else layer, router or 0)
    column = st.column_config
    st.dataframe(
        rows.style.apply(
            lambda c: [f"background-color: {group_color(g)}40" for g in range(len(rows))], subset=["group"]
        ),
        key="by_layer_groups",
        hide_index=True,
        height=min(38 + 35 * len(rows), 640),
        column_config={
            "group": column.TextColumn("", width=44),
            "tokens": column.NumberColumn("Tokens", width=70, format="%.1f %%", help="Share of all tokens."),
            "is about": column.TextColumn(
                "Is about",
                width=120,
                help="The property that tells best who is in the group, above every shuffle of it; nothing where none "
                "removes 5 % of the uncertainty.",
            ),
            "namely": column.TextColumn("Namely", width=220),
            "explained": column.ProgressColumn(
                "Told by it",
                width=100,
                format="%.0f %%",
                min_value=0,
                max_value=100,
                help="Share of the uncertainty about who is in the group that the property removes, beyond shuffled "
                "groups. 100 %: the property is the group.",
            ),
            "of the group": column.NumberColumn("Of the group", width=96, format="%.0f %%", help="Tokens that are so."),
            "purity": column.NumberColumn("Purity", width=70, format="%.0f %%"),
            "purity is of": column.TextColumn("of", width=96),
            "typical": column.TextColumn("Typical", width=110),
            "looked for by": column.TextColumn("Looked for by", width=200),
            "seekers": column.TextColumn("Typical seekers", width=110),
        },
    )


def _looks(found: dict[str, Any], layers: list[int]) -> None:
    st.markdown("### " + ("What do they look for?" if found["directed"] else "Which kinds are put together?"))
    options = [None, *layers]
    layer = st.selectbox(
        "Shown",
        options,
        format_func=_layer,
        key=LOOKS,
        bind="query-params",
        width=200,
        label_visibility="collapsed",
    )
    st.markdown(plain(words.looks_answer(found, layer)))
    plot(
        looks_heatmap(found, layer),
        key="by_layer_looks",
        alt="Heatmap: how often far pairs are kept by part of speech of the query and of the key, against all pairs.",
        name=f"looks for by part of speech, {words.title(found)}",
        note=_made(found),
    )
    both = found["summary"]["same_tag_both_sides"]
    if both:
        st.caption(
            f"In {both['share']:.0%} of {both['groups']:,} groups those in it and those that look for it have the same "
            f"most frequent part of speech; by chance {both['chance']:.0%}.".replace("%", " %")
        )


def _layer(number: int | None) -> str:
    return _MEAN if number is None else f"Layer {number}"


def _stable(found: dict[str, Any]) -> None:
    st.markdown("### Are they the same groups again?")
    st.markdown(plain(words.stability_answer(found)))
    st.dataframe(
        words.stability_frame(found).style.format({"adjusted Rand index": "{:.2f}"}),
        hide_index=True,
        height="content",
        key="by_layer_stability",
        column_config={"adjusted Rand index": st.column_config.NumberColumn(width=150)},
    )
    st.caption("Mean over layers. 1: the same grouping; 0: as alike as chance (Hubert and Arabie 1985).")


def _made(found: dict[str, Any]) -> str:
    where = found["environment"]
    return f"{words.title(found)}; {found['dtype']} on {where['device']}, {where['time'][:10]}: {found['command']}"


def _how(found: dict[str, Any]) -> None:
    with st.expander("How this was measured", icon=":material/rule:"):
        st.markdown(
            f"- **Tokens.** {found['windows']} windows of {found['context']:,} tokens from Brown's "
            f"{', '.join(text.removeprefix('brown ') for text in found['texts'])}. {found['tag_source']} {RULE} Each "
            "window's first tokens, which all see, are left out.\n"
            "- **Bands** are draws of chance. *One random group a word type*: every word keeps one random group, sizes "
            "as the real ones. *Shuffled among words of like frequency*: every group keeps its share of rare and "
            "frequent words. *Shuffled*: sizes alone (even draws lie on it).\n"
            "- **Lines.** *k-means* clusters the hidden states that the router reads. *The router before training* is "
            "its random start. *Lookup by word alone* gives each word the group that most of its tokens have, from the "
            "same tokens, which flatters it.\n"
            "- **Names.** Nine properties of every token: part of speech, punctuation, capitals, position, frequency, "
            "sentence boundary, length, piece of a word, repetition. The one that tells best who is in a group names "
            "it, if it is above every one of 20 shuffles and removes 5 % of the uncertainty; of those nearly as good, "
            "the one with fewest values.\n"
            "- **Looks for.** Far pairs alone: outside the window, not with a first token."
        )
        st.code(found["command"], language=None, wrap_lines=True)
