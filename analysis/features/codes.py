"""Codes of queries and keys as ``focus_core.kernels.sfa`` makes them, in numpy for the app's process."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from focus_core.trace import Trace

SAMPLED_ROWS = 256
"""Most queries of which a whole head's change is counted."""


@dataclass(frozen=True)
class Codes:
    """How codes are made.

    Attributes:
        features: k, how many dimensions survive.
        select: ``features`` (largest by magnitude), ``pairs`` (largest rotary pairs) or ``first``.
        sparse: ``both``, or ``keys`` alone.
        no_overlap: a pair without a shared feature has score 0 (``zero``) or is dropped (``exclude``).
    """

    features: int = 16
    select: str = "features"
    sparse: str = "both"
    no_overlap: str = "zero"


@dataclass(frozen=True)
class Head:
    """Queries and keys of one head (N, D) in fp32, and how its scores become attention.

    ``plain`` is the model's own head where these went through an adapter's maps: dense attention is always its.
    """

    queries: np.ndarray
    keys: np.ndarray
    scale: float
    softcap: float | None = None
    window: int | None = None
    plain: Head | None = None

    def mapped(self, query_map: np.ndarray, key_map: np.ndarray) -> Head:
        """The same head after the maps (D, D) of an adapter."""
        return replace(self, queries=self.queries @ query_map, keys=self.keys @ key_map, plain=self)


@dataclass(frozen=True)
class Overlap:
    """Two tokens' codes.

    Attributes:
        query, key: (D,) dense values.
        query_kept, key_kept: (D,) bool.
        products: (D,) what each dimension gives the score, scale included; of those that both keep alone.
        dense_products: (D,) the same of all dimensions.
        dense_score: the model's own score, before any soft cap.
    """

    query: np.ndarray
    key: np.ndarray
    query_kept: np.ndarray
    key_kept: np.ndarray
    products: np.ndarray
    dense_products: np.ndarray
    dense_score: float

    @property
    def shared(self) -> np.ndarray:
        """(D,) bool: the dimensions that both keep."""
        return self.query_kept & self.key_kept

    @property
    def score(self) -> float:
        """Sum of the shared products; 0 without any."""
        return float(self.products.sum())


@dataclass(frozen=True)
class Row:
    """One query over the keys that it may see: (query + 1,) each.

    Attributes:
        shared: features shared with each key.
        dense, sparse: attention weights.
    """

    shared: np.ndarray
    dense: np.ndarray
    sparse: np.ndarray


@dataclass(frozen=True)
class Change:
    """What codes do to a whole head, over the rows that were looked at.

    Attributes:
        moved: share of the attention that lands on other keys (total variation), mean.
        shared: features that a pair shares, mean.
        empty: share of pairs that share none.
        rows: queries that were looked at.
    """

    moved: float
    shared: float
    empty: float
    rows: int


def head_of(trace: Trace, layer: int, head: int) -> Head | None:
    """A head's dense queries and keys; None where the Trace does not hold them."""
    if f"queries.{layer}" not in trace.arrays:
        return None
    queries, keys = trace.arrays[f"queries.{layer}"], trace.arrays[f"keys.{layer}"]
    p = trace.provenance
    share = queries.shape[0] // keys.shape[0]
    return Head(
        queries[head].astype(np.float32),
        keys[head // share].astype(np.float32),
        float(p["scale"]),
        p["softcap"],
        p["native"][layer],
    )


def support(x: np.ndarray, codes: Codes) -> np.ndarray:
    """(..., D) bool: which dimensions survive; equal magnitudes from the lowest dimension on, as the kernel does."""
    count, dim = codes.features, x.shape[-1]
    kept = np.zeros(x.shape, bool)
    if codes.select == "first":
        kept[..., :count] = True
        return kept
    if codes.select == "pairs":
        half = dim // 2
        first = _largest(np.hypot(x[..., :half], x[..., half:]), count // 2)
        chosen = np.concatenate([first, first + half], -1)
    else:
        chosen = _largest(np.abs(x), count)
    np.put_along_axis(kept, chosen, True, -1)
    return kept


def _largest(size: np.ndarray, count: int) -> np.ndarray:
    return np.argsort(-size, axis=-1, kind="stable")[..., :count]


def supports(head: Head, codes: Codes, rows: slice | np.ndarray = slice(None)) -> tuple[np.ndarray, np.ndarray]:
    """What queries (of some rows) and all keys keep."""
    queries = head.queries[rows]
    wanted = np.ones(queries.shape, bool) if codes.sparse == "keys" else support(queries, codes)
    return wanted, support(head.keys, codes)


def overlap(head: Head, query: int, key: int, codes: Codes) -> Overlap:
    """Two tokens' codes and their products."""
    q, k = head.queries[query], head.keys[key]
    wanted = np.ones(q.shape, bool) if codes.sparse == "keys" else support(q, codes)
    held = support(k, codes)
    products = q * k * np.float32(head.scale)
    own = head.plain or head
    dense = float(own.queries[query] @ own.keys[key]) * head.scale
    return Overlap(q, k, wanted, held, np.where(wanted & held, products, 0), products, dense)


def row(head: Head, query: int, codes: Codes) -> Row:
    """Attention of one query, dense and with codes."""
    found = _weights(head, np.array([query]), codes)
    return Row(*(x[0, : query + 1] for x in found))


def strongest_pair(head: Head, words: np.ndarray, rows: int = 64) -> tuple[int, int] | None:
    """A query and an earlier key between which dense attention is strong, both words and not neighbours.

    Args:
        head: the head.
        words: (N,) bool: which tokens may be picked.
        rows: most queries that are looked at, the later two thirds of the text.

    Returns:
        The query and the key; None where no such pair exists.
    """
    late = np.flatnonzero(words)
    late = late[late >= max(2, len(words) // 3)]
    if not len(late):
        return None
    at = np.unique(late[np.linspace(0, len(late) - 1, min(rows, len(late))).astype(int)])
    own = head.plain or head
    dense = _softmax(head, own.queries[at] @ own.keys.T, _seen(head, at))
    key = np.arange(len(words))
    dense = np.where(words & (key > 0) & (key < at[:, None] - 1), dense, 0)
    best = int(dense.argmax())
    if not dense.flat[best]:
        return None
    return int(at[best // len(words)]), best % len(words)


def change(head: Head, codes: Codes, rows: int = SAMPLED_ROWS) -> Change:
    """What codes do to the head, from evenly spread queries."""
    count = len(head.queries)
    at = np.unique(np.linspace(0, count - 1, min(rows, count)).astype(int))
    shared, dense, sparse = _weights(head, at, codes)
    seen = _seen(head, at)
    pairs = seen.sum()
    return Change(
        moved=float(np.abs(dense - sparse).sum(1).mean() / 2),
        shared=float((shared * seen).sum() / pairs),
        empty=float(((shared == 0) & seen).sum() / pairs),
        rows=len(at),
    )


def _seen(head: Head, at: np.ndarray) -> np.ndarray:
    distance = at[:, None] - np.arange(len(head.keys))[None, :]
    return (distance >= 0) & (distance < (head.window or len(head.keys)))


def _weights(head: Head, at: np.ndarray, codes: Codes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(rows, N) shared features, dense weights and weights with codes."""
    wanted, held = supports(head, codes, at)
    shared = wanted.astype(np.float32) @ held.T.astype(np.float32)
    seen = _seen(head, at)
    own = head.plain or head
    dense = _softmax(head, own.queries[at] @ own.keys.T, seen)
    kept = seen & (shared > 0) if codes.no_overlap == "exclude" else seen
    sparse = _softmax(head, (head.queries[at] * wanted) @ (head.keys * held).T, kept)
    return shared, dense, sparse


def _softmax(head: Head, scores: np.ndarray, kept: np.ndarray) -> np.ndarray:
    scores = scores * np.float32(head.scale)
    if head.softcap is not None:
        scores = head.softcap * np.tanh(scores / head.softcap)
    scores = np.where(kept, scores, -np.inf)
    top = scores.max(1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = weights.sum(1, keepdims=True)
    return weights / np.where(total == 0, 1, total)


def use_entropy(kept: np.ndarray) -> float:
    """Entropy of which dimensions are used (N, D), as a share of log D: 1 where all are used alike."""
    used = kept.sum(0) / max(1, kept.sum())
    used = used[used > 0]
    return float(-(used * np.log(used)).sum() / np.log(kept.shape[1]))
