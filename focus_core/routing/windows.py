"""The windows of a text that something is fitted on."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from focus_core.errors import InvalidInput


def spread_windows(ids: torch.Tensor | Sequence[int], context: int, most: int) -> torch.Tensor:
    """(W, N) windows of ``context`` tokens, at most so many, evenly spread through a text's tokens (T,).

    Raises:
        InvalidInput: the text is shorter than one window.
    """
    ids = torch.as_tensor(ids)
    count = len(ids) // context
    if not count:
        raise InvalidInput(f"The text has {len(ids)} tokens and a window takes {context}.", "Use a longer text.")
    spread = torch.linspace(0, count - 1, min(count, most)).long()
    return ids[: count * context].view(count, context)[spread]
