"""Numbers as people read them: three significant figures and a unit."""

from __future__ import annotations

import math
from collections.abc import Callable

NONE = "–"


def sig3(value: float | None, figures: int = 3) -> str:
    """Significant figures, three unless told, never in exponent form; a dash when there is no number."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == 0:
        return "0"
    digits = figures - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, digits)
    digits = figures - 1 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{max(0, digits)}f}"


def percent(share: float | None, *, signed: bool = False) -> str:
    """A share as per cent, for example ``31.4 %``, or ``+2.05 %`` when ``signed``."""
    if share is None or not math.isfinite(share):
        return NONE
    sign = "+" if signed and share > 0 else "−" if share < 0 else ""
    return f"{sign}{sig3(abs(share) * 100)} %"


def spread(share: float) -> str:
    """A standard error as per cent, ``± 1.2 %``: a spread is itself known to two figures at most."""
    return f"± {sig3(share * 100, 2)} %"


def signed(value: float, decimals: int = 2) -> str:
    """A number with its sign and a fixed number of decimals, for example ``−0.25``."""
    return f"{value:+.{decimals}f}".replace("-", "−")


def with_spread(spread: dict[str, float] | None, show: Callable[[float | None], str]) -> str:
    """A measured median with its 10th and 90th percentile, ``0.745× (0.71× to 0.78×)``; as ``show`` says nothing.

    Args:
        spread: ``{median, p10, p90}``; None where nothing was measured.
        show: a number as people read it.
    """
    if not spread:
        return show(None)
    return f"{show(spread['median'])} ({show(spread['p10'])} to {show(spread['p90'])})"


def times(ratio: float | None) -> str:
    """A ratio, for example ``0.745×``."""
    return NONE if ratio is None or not math.isfinite(ratio) else f"{sig3(ratio)}×"


def length(count: int) -> str:
    """A length on an axis: ``8k``, ``1M``; odd ones in full."""
    if count % (1 << 20) == 0:
        return f"{count >> 20}M"
    return f"{count >> 10}k" if count % 1024 == 0 else f"{count:,}"


def duration(milliseconds: float | None) -> str:
    """Milliseconds in the unit that reads best."""
    if milliseconds is None or not math.isfinite(milliseconds):
        return NONE
    if milliseconds < 1:
        return f"{sig3(milliseconds * 1e3)} µs"
    if milliseconds < 1e3:
        return f"{sig3(milliseconds)} ms"
    if milliseconds < 120e3:
        return f"{sig3(milliseconds / 1e3)} s"
    return f"{sig3(milliseconds / 60e3)} min"


def memory(count: float | None) -> str:
    """Bytes in the decimal unit that reads best, as everywhere in the app."""
    if count is None or not math.isfinite(count):
        return NONE
    for unit in ("B", "kB", "MB"):
        if abs(count) < 1e3:
            return f"{sig3(count)} {unit}"
        count /= 1e3
    return f"{sig3(count)} GB"


def operations(count: float | None) -> str:
    """Operations, for example ``12.3 GFLOP``."""
    if count is None or not math.isfinite(count):
        return NONE
    for unit in ("FLOP", "kFLOP", "MFLOP", "GFLOP"):
        if abs(count) < 1e3:
            return f"{sig3(count)} {unit}"
        count /= 1e3
    return f"{sig3(count)} TFLOP"
