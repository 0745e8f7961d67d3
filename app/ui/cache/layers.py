"""By layer and number format: how far decoding is from dense's, and what a variant says of its own layers."""

from __future__ import annotations

import math
from typing import Any

import streamlit as st

from analysis.cache import GATE, GRADES, dtypes, error_text, grade, layer_table, others, provenance
from analysis.cache_figures import layer_errors, layer_map
from analysis.numbers import sig3
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
    _report(row, formats)


def _said(result: dict[str, Any], row: dict[str, Any], formats: list[str]) -> str:
    found = [(dtype, grade(result, row, dtype)) for dtype in formats]
    return f"{row['label']} is " + ", ".join(f"{g.word} in {d}" for d, g in found if g is not None) + "."


def _report(row: dict[str, Any], formats: list[str]) -> None:
    """What the variant says of its layers, such as how well a matrix inverts, beside the errors and the 5 % gate."""
    import pandas as pd

    if not row.get("layer_report"):
        return
    st.markdown(f"**{plain(row['label'])}, layer by layer**")
    lines = []
    for n, said in enumerate(row["layer_report"]):
        line = {_NAMES.get(k, k.replace("_", " ")): sig3(v) if isinstance(v, float) else v for k, v in said.items()}
        for dtype in formats:
            error = row["layers"][dtype]["error"][n]
            passes = error is not None and error < GATE
            line[f"error, {dtype}"] = f"{error_text(math.inf if error is None else error)} {'✓' if passes else '✕'}"
        lines.append(line)
    st.dataframe(pd.DataFrame(lines), hide_index=True, key="cache_report")
    st.caption("✕: an error of 5 % or more, the limit that Slim's authors set; such a layer needs another form.")


_NAMES = {
    "condition_k": "cond(W_K)",
    "condition_v": "cond(W_V)",
    "largest_kv": "max |W_K⁻¹ W_V|",
    "largest_vk": "max |W_V⁻¹ W_K|",
    "form": "kept",
}
