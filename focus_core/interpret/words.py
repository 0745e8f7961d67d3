"""Words as types, and which of them are typical of a group."""

from __future__ import annotations

import numpy as np


def word_type(token: str) -> str:
    """A token without the space before it, in lower case; white space as visible marks."""
    if bare := token.strip():
        return bare.lower()
    return token.replace("\n", "↵").replace("\t", "⇥").replace(" ", "␣") or "∅"


def log_odds(counts: np.ndarray) -> np.ndarray:
    """How typical each type is of each group against all others: z-scores of log-odds with an informative prior.

    Monroe, Colaresi and Quinn 2008, "Fightin' Words", equations 16, 18 and 20-22; the prior is the whole text's
    distribution with the weight of one observation a type, so that rare types do not win by chance.

    Args:
        counts: (K, V) occurrences of V types in K groups.

    Returns:
        (K, V) z-scores, positive where a type is more frequent in the group than outside it.
    """
    counts = np.asarray(counts, float)
    whole = counts.sum(0)
    prior = np.maximum(whole / max(1.0, whole.sum()) * len(whole), 1e-9)
    inside, outside = counts + prior, whole - counts + prior
    rest_in = np.maximum(inside.sum(1, keepdims=True) - inside, 1e-9)
    rest_out = np.maximum(outside.sum(1, keepdims=True) - outside, 1e-9)
    difference = np.log(inside / rest_in) - np.log(outside / rest_out)
    return difference / np.sqrt(1 / inside + 1 / outside)
