"""Do groups agree with parts of speech, and more than baselines do? Scores from tables of groups x tags.

A token that is in several groups counts once in each, with its tag. Scores are of whole tables, so that thousands of
resampled ones cost one pass; a test holds them against scikit-learn's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.groups import far_from_sinks, group_count, has_groups, members, word_types
from analysis.parts import RULE, RULE_ALL, Parts
from focus_core.trace import Trace

MEASURES = {
    "v_measure": "V-measure (= NMI)",
    "purity": "Purity",
    "homogeneity": "Homogeneity",
    "completeness": "Completeness",
}
BASELINES = {
    "lookup": "Lookup by word alone",
    "frequency": "One random group a word type",
    "shuffled": "Shuffled, same sizes",
    "random": "Random groups",
}
INTERVALS = ("groups", "kmeans", "lookup", "frequency")
BOOTSTRAPS, REPEATS, SEED = 200, 20, 0


def scores(tables: np.ndarray) -> dict[str, np.ndarray]:
    """Agreement of groups with tags.

    V-measure (Rosenberg and Hirschberg 2007) with beta = 1 is normalised mutual information with the arithmetic mean.

    Args:
        tables: (..., G, T) counts of tokens by group and tag.

    Returns:
        For each of ``MEASURES`` an array (...), 0 to 1. Homogeneity is 1 where every group has one tag, completeness
        where every tag is in one group; both are 1 where there is nothing to tell apart, as in scikit-learn.
    """
    tables = np.asarray(tables, float)
    total = np.maximum(tables.sum((-1, -2)), 1e-12)
    of_group, of_tag = tables.sum(-1), tables.sum(-2)
    groups, tags = _entropy(of_group, total), _entropy(of_tag, total)
    joint = _entropy(tables.reshape(*tables.shape[:-2], -1), total)
    mutual = np.maximum(groups + tags - joint, 0.0)
    homogeneity = np.where(tags > 1e-12, mutual / np.maximum(tags, 1e-12), 1.0)
    completeness = np.where(groups > 1e-12, mutual / np.maximum(groups, 1e-12), 1.0)
    both = homogeneity + completeness
    return {
        "v_measure": np.where(both > 0, 2 * homogeneity * completeness / np.maximum(both, 1e-12), 0.0),
        "purity": tables.max(-1).sum(-1) / total,
        "homogeneity": homogeneity,
        "completeness": completeness,
    }


def _entropy(counts: np.ndarray, total: np.ndarray) -> np.ndarray:
    share = counts / total[..., None]
    return -(share * np.log(np.where(share > 0, share, 1.0))).sum(-1)


def shuffled(joined: np.ndarray, repeats: int, rng: np.random.Generator) -> np.ndarray:
    """(repeats, N, K) the same sets, each at another token: sizes stay, meaning goes."""
    return np.stack([joined[rng.permutation(len(joined))] for _ in range(repeats)])


def uniform(joined: np.ndarray, repeats: int, rng: np.random.Generator) -> np.ndarray:
    """(repeats, N, K) as many groups a token as it has, drawn evenly."""
    noise = rng.random((repeats, *joined.shape))
    rank = noise.argsort(-1).argsort(-1)
    return rank < joined.sum(-1)[None, :, None]


def one_group_a_type(joined: np.ndarray, which: np.ndarray, repeats: int, rng: np.random.Generator) -> np.ndarray:
    """(repeats, N, K) each word TYPE gets one random group, with the sizes of the real groups.

    Frequent types choose first, each with a chance in proportion to the room that is left in a group, so that sizes
    match as well as whole types allow. Types of tokens with several groups get as many different ones.

    Args:
        joined: (N, K) the real memberships.
        which: (N,) type of each token, from 0.
        repeats: number of draws.
        rng: source of chance.
    """
    n, k = joined.shape
    each = max(1, round(joined.sum() / max(1, n)))
    counts = np.bincount(which)
    room = np.repeat(joined.sum(0)[None].astype(float), repeats, axis=0)
    of_type = np.zeros((repeats, len(counts), k), bool)
    rows = np.arange(repeats)[:, None]
    for w in np.lexsort((rng.random(len(counts)), -counts)):
        fits = np.where(room >= counts[w], room, 0.0)
        weight = np.where((fits > 0).sum(1, keepdims=True) >= each, fits, np.maximum(room, 0.0)) + 1e-6
        chance = np.log(weight) - np.log(-np.log(rng.random(weight.shape)))
        chosen = np.argpartition(-chance, each - 1, axis=1)[:, :each]
        of_type[rows, w, chosen] = True
        room[rows, chosen] -= counts[w]
    return of_type[:, which]


def most_frequent_group(joined: np.ndarray, which: np.ndarray) -> np.ndarray:
    """(1, N, K) each word type gets the group that most of its tokens have: what a lookup by word alone reaches.

    It is taken from the same tokens that are scored, and a word that occurs once keeps the group it has; so this is
    from above. Types of tokens with several groups get as many, the most frequent ones.

    Args:
        joined: (N, K) the real memberships.
        which: (N,) type of each token, from 0.
    """
    n, k = joined.shape
    each = max(1, round(joined.sum() / max(1, n)))
    counts = np.zeros((int(which.max()) + 1, k))
    np.add.at(counts, which, joined)
    of_type = np.zeros(counts.shape, bool)
    np.put_along_axis(of_type, np.argsort(-counts, axis=1, kind="stable")[:, :each], True, axis=1)
    return of_type[which][None]


@dataclass(frozen=True)
class Curve:
    """One line over the layers.

    Attributes:
        key: ``groups``, ``kmeans`` or one of ``BASELINES``.
        layers: (n,) layer numbers.
        value: (n,) the measure. low, high: (n,) ends of the 95 % interval; None where it is a mean of draws alone.
    """

    key: str
    layers: np.ndarray
    value: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


@dataclass(frozen=True)
class Agreement:
    """Agreement by layer for one side of the router, with what it is held against.

    Attributes:
        side: ``keys`` or ``queries``. router: the router, None for the mean over routers.
        curves: by measure, then by key of ``Curve``.
        gain: by measure, then ``frequency``, ``lookup`` or ``kmeans``: (value, low, high) arrays of the paired
            difference.
        tokens: number of tagged tokens behind it. sentences: resampled units.
        rule: to which token a word's tag goes. gold: whether people made the tags.
    """

    side: str
    router: int | None
    curves: dict[str, dict[str, Curve]]
    gain: dict[str, dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]]
    tokens: int
    sentences: int
    rule: str
    gold: bool

    @property
    def layers(self) -> np.ndarray:
        """Layers that have groups."""
        return self.curves["v_measure"]["groups"].layers


def agreement(
    trace: Trace,
    parts: Parts,
    *,
    side: str = "keys",
    router: int | None = None,
    pieces: bool = False,
    kmeans: np.ndarray | None = None,
    layers: list[int] | None = None,
    bootstraps: int = BOOTSTRAPS,
) -> Agreement | None:
    """Score every layer's groups, and the baselines, on the same tokens.

    Intervals: sentences are drawn with replacement, the same ones for everything that is compared, each time beside
    another draw of the random groups; the spread of the scores is laid around the score of the text itself, since
    drawing with replacement alone raises it.

    Args:
        trace: the run.
        parts: the tokens' parts of speech.
        side: ``keys`` for what tokens are, ``queries`` for what they look for.
        router: one router; None for the mean over routers.
        pieces: give a word's tag to all its pieces.
        kmeans: (L, R or 1, N) sets of k-means clusters of the same tokens, to be held against; None without. Not for
            queries: learned ones are in several groups, clusters in one.
        layers: which layers; None for all that have groups.
        bootstraps: number of draws.

    Returns:
        None when no layer has groups or fewer than two tokens have a tag.
    """
    tags = parts.of(pieces=pieces)
    use = far_from_sinks(trace) & (tags >= 0)
    every = range(int(trace.provenance["layers"])) if layers is None else layers
    shown = [layer for layer in every if has_groups(trace, layer)] if "key_bits" in trace.arrays else []
    if not shown or use.sum() < 2:
        return None
    rng = np.random.default_rng(SEED)
    _, which = np.unique(np.array(word_types(trace))[use], return_inverse=True)
    _, sentence = np.unique(parts.sentence[use], return_inverse=True)
    cells = _Cells(tags[use], sentence)
    draws = rng.multinomial(cells.sentences, np.full(cells.sentences, 1 / cells.sentences), bootstraps)
    weights = np.concatenate([np.ones((1, cells.sentences)), draws]).astype(np.float32)
    routers = range(trace.arrays["key_bits"].shape[1]) if router is None else [router]
    found: dict[str, list[dict[str, np.ndarray]]] = {}
    for layer in shown:
        for key, each in _layer(trace, layer, routers, side, use, which, cells, weights, kmeans, rng).items():
            found.setdefault(key, []).append(each)
    curves: dict[str, dict[str, Curve]] = {}
    gain: dict[str, dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]] = {}
    at = np.array(shown)
    for measure in MEASURES:
        values = {key: np.stack([each[measure] for each in per_layer]) for key, per_layer in found.items()}
        curves[measure] = {
            key: Curve(key, at, v[:, 0], *(_interval(v) if key in INTERVALS else (None, None)))
            for key, v in values.items()
        }
        gain[measure] = {}
        for key in ("frequency", "lookup", "kmeans"):
            if key in values:
                difference = values["groups"] - values[key]
                gain[measure][key] = (difference[:, 0], *_interval(difference))
    rule = RULE_ALL if pieces else RULE
    return Agreement(side, router, curves, gain, int(use.sum()), cells.sentences, rule, parts.gold)


def _layer(
    trace: Trace,
    layer: int,
    routers: range | list[int],
    side: str,
    use: np.ndarray,
    which: np.ndarray,
    cells: _Cells,
    weights: np.ndarray,
    kmeans: np.ndarray | None,
    rng: np.random.Generator,
) -> dict[str, dict[str, np.ndarray]]:
    """By curve and measure, (1 + bootstraps,) means over routers and repeats; the first is of the text itself."""
    found: dict[str, list[dict[str, np.ndarray]]] = {}
    for router in routers:
        joined = members(trace, layer, router, side)[use]
        lines = {
            "groups": joined[None],
            "lookup": most_frequent_group(joined, which),
            "frequency": one_group_a_type(joined, which, REPEATS, rng),
            "shuffled": shuffled(joined, REPEATS, rng),
            "random": uniform(joined, REPEATS, rng),
        }
        if kmeans is not None:
            bits = kmeans[layer, min(router, kmeans.shape[1] - 1)][use]
            lines["kmeans"] = ((bits[:, None] >> np.arange(group_count(trace), dtype=np.int64)) & 1 != 0)[None]
        for key, sets in lines.items():
            found.setdefault(key, []).append(_scored(cells, sets, weights if key in INTERVALS else weights[:1]))
    return {key: {m: np.mean([e[m] for e in each], axis=0) for m in MEASURES} for key, each in found.items()}


def _scored(cells: _Cells, sets: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
    """(1 + bootstraps,) by measure: the mean over the sets on the text itself, then each draw with the sets in turn.

    So the spread over draws holds the chance of the random sets as well as that of the sentences.
    """
    count = len(sets)
    parts = [
        scores(cells.tables(each, np.concatenate([weights[:1], weights[1:][i::count]]))) for i, each in enumerate(sets)
    ]
    out = {}
    for measure in MEASURES:
        values = np.zeros(len(weights))
        values[0] = np.mean([part[measure][0] for part in parts])
        for i, part in enumerate(parts):
            values[1:][i::count] = part[measure][1:]
        out[measure] = values
    return out


class _Cells:
    """Turns memberships into tables of groups x tags, for many weightings of the sentences at once."""

    def __init__(self, tags: np.ndarray, sentence: np.ndarray) -> None:
        self.present, self.tag = np.unique(tags, return_inverse=True)
        self.sentence, self.sentences = sentence, int(sentence.max()) + 1

    def tables(self, joined: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """(W, K, T) for (W, sentences) weights and (N, K) memberships."""
        k, t = joined.shape[1], len(self.present)
        token, group = np.nonzero(joined)
        flat = (self.sentence[token] * k + group) * t + self.tag[token]
        counts = np.bincount(flat, minlength=self.sentences * k * t).astype(np.float32)
        return (weights @ counts.reshape(self.sentences, k * t)).reshape(len(weights), k, t)


def _interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """95 % interval of (n, 1 + bootstraps): the draws' spread around their own mean, laid around the estimate."""
    estimate, draws = values[:, 0], values[:, 1:]
    low, high = np.quantile(draws - draws.mean(1, keepdims=True), [0.025, 0.975], axis=1)
    return estimate + low, estimate + high
