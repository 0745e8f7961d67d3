"""From texts to the sample that groups are judged on, and the windows that the model reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from focus_core.assets import Text
from focus_core.capture import check_length, first_tokens
from focus_core.errors import InvalidInput, NotAvailable
from focus_core.interpret.parts import tagged_parts
from focus_core.interpret.sample import Piece, Sample, join


def sample_of(loaded: Any, texts: Sequence[Text], context: int, windows: int, sinks: int) -> tuple[Sample, np.ndarray]:
    """The first whole windows of every text.

    Args:
        loaded: what ``load_model`` returned.
        texts: the texts.
        context: C, tokens a window.
        windows: most windows of each text.
        sinks: first tokens of a window that all see.

    Returns:
        The sample and (W, C) int64 token ids of all windows.

    Raises:
        InvalidInput: a text has less than one window.
        TooLarge: a window is longer than the model reads.
        NotAvailable: there is no tagger for a text without tags.
    """
    check_length(context, loaded.facts.context)
    pieces, ids = [], []
    for text in texts:
        shown, tokens = first_tokens(loaded.tokenizer, text.text, windows * context)
        whole = len(tokens) // context * context
        if not whole:
            raise InvalidInput(
                f"{text.name} has {len(tokens):,} tokens, less than one window of {context:,}.",
                f"Use --context {len(tokens)} or less, or a longer text.",
            )
        parts = tagged_parts(shown, tokens.span, text)
        if parts is None:
            raise NotAvailable(f"{text.name} has no tags, and the tagger's file is missing.", "Use a Brown text.")
        pieces.append(Piece(tokens.text[:whole], tokens.word[:whole], parts.first(whole), context))
        ids.append(np.asarray(tokens.ids[:whole], np.int64).reshape(-1, context))
    return join(pieces, sinks), np.concatenate(ids)
