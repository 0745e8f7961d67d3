"""By layer and number format: how far decoding is from dense's, and what a variant says of its own layers."""

from __future__ import annotations

from typing import Any

import streamlit as st

from analysis.cache import GATE, GRADES, dtypes, error_text, grade, layer_table, others
from analysis.cache_figures import layer_errors, layer_map
from analysis.measured import provenance
from analysis.numbers import NONE, sig3
from app.ui.figure import plot
from app.ui.guard import plain

ROW = "cache_row"


def render(result: dict[str, Any], dtype: str) -> None:
    """Draw the tab; ``dtype`` is the number format that is shown."""
    rows, formats = [r for r in others(result) if r.get("layers")], dtypes(result)
    if not rows:
        st.markdown("Layer by layer nothing has been measured yet: press Run.")
        return
    note = provenance(result["about"])
    plot(
        layer_map(result, dtype),
        key="cache_map",
        alt=f"Error of every cache by layer in {dtype}.",
        name=f"Error by layer in {dtype}",
        rows=lambda: layer_table(result),
        note=note,
    )
    labels = {row["key"]: row["label"] for row in rows}
    if st.session_state.get(ROW) not in labels:
        st.session_state[ROW] = rows[0]["key"]
    chosen = st.selectbox("Cache", list(labels), format_func=labels.get, key=ROW, width=360)
    row = next(r for r in rows if r["key"] == chosen)
    st.markdown(f"**{plain(_said(result, row, formats))}**", help=" ".join(f"{k}: {v}" for k, v in GRADES.items()))
    plot(
        layer_errors(result, chosen),
        key="cache_layers",
        alt=f"Error of {row['label']} by layer, a line a number format, dense's own rounding dotted.",
        name=f"Error by layer of {row['label']}",
        note=note,
    )
    about = result["about"]
    st.caption(
        f"Every layer is run alone on the input that it had with dense attention ({about['replayed']} tokens, the last "
        f"{about['replay_steps']} decoded from the cache), so that no error is handed on. The error is the length of "
        "the difference of the attention's output over the length of dense's in the model's own format; weights and "
        "inputs are rounded to the format shown, and dotted is what that does to dense itself."
    )
    _gate(row, about, dtype)


def _said(result: dict[str, Any], row: dict[str, Any], formats: list[str]) -> str:
    found = [(dtype, grade(result, row, dtype)) for dtype in formats]
    return f"{row['label']} is " + ", ".join(f"{g.word} in {d}" for d, g in found if g is not None) + "."


def _gate(row: dict[str, Any], about: dict[str, Any], dtype: str) -> None:
    """Slim's gate: how well a layer's matrices invert, what is made again of each form, and which form passes."""
    import pandas as pd

    if not row.get("layer_report") or not about.get("gate"):
        return
    st.markdown(f"**Slim's gate in {dtype}: what each layer can make again**")
    taken = {said["layer"]: said["form"] for said in row["layer_report"]}
    lines = []
    for layer in about["gate"]:
        errors = layer["errors"][dtype]
        lines.append(
            {
                "Layer": layer["layer"],
                "cond(W_K)": sig3(layer["condition_k"]),
                "cond(W_V)": sig3(layer["condition_v"]),
                "max |W_K⁻¹ W_V|": sig3(layer["largest_kv"]),
                **{f"Error, {name}": _passes(errors.get(form)) for form, name in _FORMS.items()},
                "Kept here": _KEPT.get(taken.get(layer["layer"], ""), ""),
                "The gate would keep": _KEPT.get(layer["forms"][dtype], ""),
                "Why": layer["reasons"][dtype],
            }
        )
    st.dataframe(pd.DataFrame(lines), hide_index=True, key="cache_gate")
    st.caption(
        "Values made from keys (K), from the layer's input (X), or keys made from values (V), from this text's own "
        "activations in this format, against double precision. ✕: an error above 5 %, the limit of Slim's authors; the "
        "gate then takes the next form that passes. Weights alone do not tell: keys' rounding grows with cond(W_K)."
    )


def _passes(error: float | None) -> str:
    return NONE if error is None else f"{error_text(error)} {'✓' if error <= GATE else '✕'}"


_FORMS = {"k": "K-cache", "x": "X-cache", "v": "V-cache"}
_KEPT = {**_FORMS, "dense": "keys and values"}
