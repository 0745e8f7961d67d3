"""What one router's groups hold: sizes, typical tokens, a name taken from the data, who may see whom."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from analysis.palette import group_label
from analysis.parts import KINDS, Parts
from focus_core.interpret.words import log_odds, word_type
from focus_core.trace import Trace

SIDES = ("keys", "queries")
"""What tokens ARE, and what they LOOK FOR. They are the same sets where the router is shared."""

ALMOST_ALL = 0.95


@dataclass(frozen=True)
class Group:
    """One group of one router.

    Attributes:
        number: index of the group; ``palette.group_label`` is its letter.
        size: number of tokens in it, first tokens (sinks) not counted.
        share: of all tokens, 0 to 1. load: share over the fair share (memberships a token / groups).
        typical: ``(token, count, z)`` most typical tokens first, z of the log-odds against all other groups.
        name: from the data, for example ``determiners: the, a, his``.
        kind: index into ``KINDS`` of the most frequent kind; None while nothing is known.
        purity: share of its tagged tokens that have its most frequent tag; NaN without tagged tokens.
        tag: that tag, an index into ``UNIVERSAL`` and into ``KINDS``; None without tagged tokens. It need not be
            ``kind``, which counts spaces and word pieces too. tagged: number of tagged tokens.
    """

    number: int
    size: int
    share: float
    load: float
    typical: tuple[tuple[str, int, float], ...]
    name: str
    kind: int | None
    purity: float
    tag: int | None = None
    tagged: int = 0


def has_groups(trace: Trace, layer: int) -> bool:
    """Whether this layer has groups: not for dense, window and native sliding-window layers."""
    return "key_bits" in trace.arrays and trace.provenance["native"][layer] is None


def group_count(trace: Trace) -> int:
    """K: as the run was told, and enough for every set that occurs."""
    bits = trace.arrays["key_bits"], trace.arrays["query_bits"]
    used = int(np.bitwise_or.reduce([np.bitwise_or.reduce(b, axis=None) for b in bits])) & ((1 << 64) - 1)
    return max(int(trace.provenance.get("groups") or 1), used.bit_length())


def is_directed(trace: Trace) -> bool:
    """Whether what tokens look for is another set than what they are."""
    return not np.array_equal(trace.arrays["key_bits"], trace.arrays["query_bits"])


def members(trace: Trace, layer: int, router: int, side: str = "keys") -> np.ndarray:
    """(N, K) bool: which groups each token is in, or looks into."""
    bits = trace.arrays["key_bits" if side == "keys" else "query_bits"][layer, router]
    return (bits[:, None] >> np.arange(group_count(trace), dtype=np.int64)) & 1 != 0


def far_from_sinks(trace: Trace) -> np.ndarray:
    """(N,) bool: tokens that count; the first ones (sinks) are seen by all, whatever their group."""
    return np.arange(len(trace)) >= int(trace.provenance.get("sinks") or 0)


def word_types(trace: Trace) -> list[str]:
    """Each token as a type: without the space before it, in lower case; white space as visible marks."""
    return [word_type(token) for token in trace.tokens]


def group_table(trace: Trace, layer: int, router: int, parts: Parts | None, side: str = "keys") -> list[Group]:
    """Every group of a router, in the order of their letters.

    Args:
        trace: the run.
        layer: shown layer.
        router: shown router.
        parts: parts of speech of the tokens; None when there are none.
        side: ``keys`` for what tokens are, ``queries`` for what they look for.
    """
    counted = far_from_sinks(trace)
    joined = members(trace, layer, router, side)[counted]
    types = np.array(word_types(trace), object)[counted]
    vocabulary, which = np.unique(types.astype(str), return_inverse=True)
    kinds = parts.kinds[counted] if parts else np.full(len(types), -1)
    tags = parts.tags[counted] if parts else np.full(len(types), -1)
    n, k = joined.shape
    fair = joined.sum() / max(1, n) / k
    counts = np.stack([np.bincount(which[joined[:, g]], minlength=len(vocabulary)) for g in range(k)])
    z = log_odds(counts)
    table = []
    for g in range(k):
        inside = joined[:, g]
        size = int(inside.sum())
        order = [int(w) for w in np.lexsort((-counts[g], -z[g])) if counts[g, w] and z[g, w] > 0][:12]
        typical = tuple((str(vocabulary[w]), int(counts[g, w]), float(z[g, w])) for w in order)
        of_kind = Counter(int(x) for x in kinds[inside] if x >= 0)
        tagged = Counter(int(x) for x in tags[inside] if x >= 0)
        ((tag, most),) = tagged.most_common(1) or ((None, math.nan),)
        judged = sum(tagged.values())
        share = size / max(1, n)
        kind = of_kind.most_common(1)[0][0] if of_kind else None
        load = share / fair if fair else 0.0
        name = name_of(of_kind, typical) if share < ALMOST_ALL else "almost every token"
        table.append(Group(g, size, share, load, typical, name, kind, most / max(1, judged), tag, judged))
    return table


def name_of(kinds: Counter[int], typical: tuple[tuple[str, int, float], ...]) -> str:
    """A name from the data: the kinds that make up half of the group or more, and its three most typical tokens."""
    words = ", ".join(word for word, _, _ in typical[:3])
    total = sum(kinds.values())
    if not total:
        return words or "empty"
    ranked = kinds.most_common(3)
    first = ranked[0][1] / total
    if first >= 0.5:
        said = KINDS[ranked[0][0]]
    elif len(ranked) > 1 and (ranked[0][1] + ranked[1][1]) / total >= 0.5:
        said = f"{KINDS[ranked[0][0]]} and {KINDS[ranked[1][0]]}"
    else:
        said = "mixed"
    return f"{said}: {words}" if words else said


@dataclass(frozen=True)
class Sight:
    """Who may see whom, by the key group of the query token (rows) and the group it looks into (columns).

    Attributes:
        may: (K, K) share of the tokens of a key group that look into a group, 0 to 1.
        pairs: (K, K) far pairs that are kept: a later token of the row's group and an earlier token of the column's.
        possible: (K, K) far pairs there are, kept or not.
    """

    may: np.ndarray
    pairs: np.ndarray
    possible: np.ndarray


def who_sees_whom(trace: Trace, layer: int, router: int) -> Sight:
    """The directed matrix of one router. Far: outside the window and not a first token, where groups decide."""
    keys, queries = members(trace, layer, router, "keys"), members(trace, layer, router, "queries")
    n, k = keys.shape
    window = int(trace.provenance["window"])
    counted = keys & far_from_sinks(trace)[:, None]
    before = np.zeros((n + 1, k), np.int64)
    before[1:] = np.cumsum(counted, axis=0)
    reach = np.clip(np.arange(n) - window + 1, 0, n)
    far = before[reach]
    possible = keys.T.astype(np.int64) @ far
    pairs = np.zeros((k, k), np.int64)
    # A key in several of the groups that a query looks into is one pair in each of those columns.
    for g in range(k):
        pairs[g] = (queries[keys[:, g]] * far[keys[:, g]]).sum(0)
    size = counted.sum(0)
    may = (counted.T.astype(float) @ queries) / np.maximum(size, 1)[:, None]
    return Sight(may, pairs, possible)


def kinds_by_group(trace: Trace, layer: int, router: int, parts: Parts, side: str = "keys") -> np.ndarray:
    """(K, kinds) number of tokens of each kind in each group, first tokens (sinks) not counted."""
    counted = far_from_sinks(trace) & (parts.kinds >= 0)
    joined = members(trace, layer, router, side)[counted]
    kinds = np.eye(len(KINDS), dtype=np.int64)[parts.kinds[counted]]
    return joined.T.astype(np.int64) @ kinds


def describe(trace: Trace, token: int, layer: int, router: int) -> str:
    """One token in words: the groups it is in and the groups it looks into."""
    own = [group_label(g) for g in np.flatnonzero(members(trace, layer, router)[token])]
    asks = [group_label(g) for g in np.flatnonzero(members(trace, layer, router, "queries")[token])]
    return f"is in {' '.join(own) or 'none'} and looks for {' '.join(asks) or 'none'}"
