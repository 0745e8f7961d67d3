"""What a launcher (`accelerate launch`, torchrun) told this process in its environment; nothing here imports torch."""

from __future__ import annotations

import os

from focus_core.errors import InvalidInput

_HINT = "`accelerate launch` and torchrun set it: start the command by them, or unset it."


def number(name: str, default: int) -> int:
    """A number from the environment; ``default`` where it is not set or empty.

    Args:
        name: of the variable, such as ``WORLD_SIZE``.
        default: what holds without a launcher.

    Raises:
        InvalidInput: it is no whole number from 0.
    """
    text = os.environ.get(name) or str(default)
    if not (text.isascii() and text.isdigit()):
        raise InvalidInput(f"The environment's {name} is {text[:40]!r}, which is no number from 0.", _HINT)
    return int(text)


def processes() -> tuple[int, int]:
    """Number of this process, from 0, and how many the launcher started; 0 and 1 without one.

    Raises:
        InvalidInput: the environment tells of several processes and not which one this is.
    """
    count = number("WORLD_SIZE", 1)
    if count < 2:
        return 0, 1
    if not os.environ.get("RANK"):
        raise InvalidInput(f"The environment's WORLD_SIZE is {count}, and RANK is not set.", _HINT)
    if (rank := number("RANK", 0)) >= count:
        raise InvalidInput(f"The environment's RANK is {rank}, and WORLD_SIZE is {count}.", "RANK counts from 0.")
    return rank, count
