"""How much text training takes."""

from __future__ import annotations

from typing import Any

from focus_core.errors import InvalidInput, TooLarge

_HELD_BACK = 0.1


def check_window(context: int, loaded: Any) -> None:
    """Refuse windows for which the model has no positions.

    Args:
        context: tokens a window.
        loaded: what ``load_model`` returned.

    Raises:
        TooLarge: with both lengths.
    """
    if context > loaded.facts.context:
        raise TooLarge(
            f"A window of {context:,} tokens is asked for, and {loaded.name} reads {loaded.facts.context:,}.",
            f"Use a context of {loaded.facts.context:,} or less.",
        )


def hold_back(ids: Any, context: int) -> tuple[Any, Any]:
    """A text without its last tenth, and that tenth, which has a window at least.

    Args:
        ids: (T,) token ids.
        context: tokens a window.

    Raises:
        InvalidInput: the text has not a window for each.
    """
    if len(ids) < 2 * context:
        raise InvalidInput(
            f"The text has {len(ids):,} tokens; a window to train on and one held back take {2 * context:,}.",
            "Use a longer text or a smaller context.",
        )
    count = max(context, int(len(ids) * _HELD_BACK))
    return ids[:-count], ids[-count:]
