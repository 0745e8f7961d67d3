"""Parts of speech for the tokens of a Trace; see ``focus_core.interpret.parts``."""

from __future__ import annotations

from focus_core import assets
from focus_core.interpret.parts import KINDS, PIECE, RULE, RULE_ALL, SPACE, Parts, align, tagged_parts
from focus_core.trace import Trace

__all__ = ["KINDS", "PIECE", "RULE", "RULE_ALL", "SPACE", "Parts", "align", "parts_of"]


def parts_of(trace: Trace) -> Parts | None:
    """The parts of speech of a Trace's tokens; None when the Trace has no byte spans or no tags can be had.

    Gold tags are used where the shipped text has them and the Trace's text is that text or its beginning.
    """
    spans = trace.arrays.get("byte_span")
    if spans is None:
        return None
    name = trace.provenance.get("text_name")
    return tagged_parts(trace.text, spans, assets.load_text(name) if name in assets.text_names() else None)
