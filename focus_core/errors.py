"""Errors that a person can act on: what is wrong, and what would work."""

from __future__ import annotations

import errno
import re


class FocusError(Exception):
    """Base of every error this package raises on purpose.

    Args:
        message: one sentence that says what is wrong, with the numbers.
        hint: one sentence that says what would work; empty when nothing would.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message} {hint}".strip())
        self.message = message
        self.hint = hint


class InvalidInput(FocusError, ValueError):
    """An argument, a text or a file that cannot be used as given."""


class Unsupported(FocusError):
    """A model, a cache or a combination that a variant cannot serve faithfully."""


class TooLarge(FocusError):
    """A request that does not fit; the hint names the nearest one that does."""


class NotAvailable(FocusError):
    """Something that is not on this machine (a model, a package) and how to get it."""


class Cancelled(FocusError):
    """The work was stopped on request."""

    def __init__(self, message: str = "Cancelled.", hint: str = "") -> None:
        super().__init__(message, hint)


def out_of_memory(error: BaseException) -> str:
    """One sentence when an error says that memory ran out, with what was asked for where it says; else empty."""
    text = str(error)
    signs = ("out of memory", "DefaultCPUAllocator", "can't allocate memory")
    if not isinstance(error, MemoryError) and not any(sign in text for sign in signs):
        return ""
    asked = re.search(r"tried to allocate ([\d.]+) ?(bytes|[KMG]iB)", text, re.IGNORECASE)
    if asked is None:
        return "Memory ran out while this ran."
    number, unit = asked.groups()
    size = f"{int(number) / 1e9:,.3g} GB" if unit == "bytes" else f"{number} {unit}"
    return f"Memory ran out while this ran: {size} more could not be had."


def disk_full(error: BaseException) -> str:
    """One sentence when an error says that the disk is full; else empty."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    # The writer of safetensors wraps the system's error into one of its own.
    return "The disk is full." if full or "No space left on device" in str(error) else ""
