"""Whether a variant is faster than dense: only where the spread of the paired ratio leaves no doubt.

A spread is ``{median, p10, p90, n}`` of a variant's time over dense's in the same repeat.
"""

from __future__ import annotations

import math

from analysis.numbers import sig3, times

FASTER, SLOWER, UNCLEAR = "faster", "slower", "unclear"
FEWEST = 3
"""Repeats below which a spread tells nothing."""
Spread = dict[str, float]


def verdict(ratio: Spread | None) -> str | None:
    """``faster`` or ``slower`` where the 10th to 90th percentile lies on one side of 1, else ``unclear``; None untimed.

    With fewer than three repeats it is always unclear.
    """
    if not ratio:
        return None
    if ratio["n"] < FEWEST:
        return UNCLEAR
    return SLOWER if ratio["p10"] > 1 else FASTER if ratio["p90"] < 1 else UNCLEAR


def too_close(ratio: Spread) -> str:
    """What is said of an unclear ratio."""
    if ratio["n"] < FEWEST:
        return f"too few repeats to judge the time ({times(ratio['median'])})"
    return f"no clear difference in time ({times(ratio['p10'])} to {times(ratio['p90'])})"


def crossover(ratios: dict[int, Spread]) -> float | None:
    """The length from which on a variant is faster than dense, by log-linear interpolation of the medians.

    Args:
        ratios: spread at each measured length, ascending.

    Returns:
        The length; None unless a length at which it is clearly slower is followed by none but clearly faster ones.
    """
    sizes, found = list(ratios), [verdict(r) for r in ratios.values()]
    last = max((i for i, v in enumerate(found) if v != FASTER), default=None)
    if last is None or last == len(sizes) - 1 or found[last] != SLOWER:
        return None
    (one, above), (two, below) = ((n, ratios[n]["median"]) for n in sizes[last : last + 2])
    a, b = math.log(one), math.log(two)
    return math.exp(a + (above - 1) / (above - below) * (b - a))


def line_verdict(label: str, ratios: dict[int, Spread]) -> str:
    """One sentence on where a variant is slower than dense, where faster, and where neither is clear.

    Args:
        label: the variant.
        ratios: spread at each measured length, ascending.
    """
    at: dict[str | None, list[int]] = {SLOWER: [], UNCLEAR: [], FASTER: []}
    for length, ratio in ratios.items():
        at[verdict(ratio)].append(length)
    cross, longest = crossover(ratios), max(ratios)
    if cross is not None and not at[UNCLEAR] and max(at[SLOWER]) < min(at[FASTER]):
        return (
            f"{label} is slower than dense below about {sig3(cross)} tokens and faster above, "
            f"up to the {longest:,} measured."
        )
    if len(at[FASTER]) == len(ratios):
        return f"{label} is faster than dense at every length measured."
    if len(at[SLOWER]) == len(ratios):
        return f"{label} is slower than dense at every length measured, up to {longest:,} tokens."
    parts = [f"{word} than dense at {_listed(at[word])} tokens" for word in (SLOWER, FASTER) if at[word]]
    if at[UNCLEAR]:
        parts.append(f"not clearly different in time at {_listed(at[UNCLEAR])} tokens")
    if len(at[UNCLEAR]) == 1:
        low, high = (times(ratios[at[UNCLEAR][0]][end]) for end in ("p10", "p90"))
        parts[-1] += f" ({low} to {high})"
    return f"{label} is {_listed(parts)}."


def _listed(items: list) -> str:
    words = [f"{i:,}" if isinstance(i, int) else i for i in items]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
