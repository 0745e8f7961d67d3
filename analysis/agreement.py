"""Do a Trace's groups agree with parts of speech, and more than baselines do?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.groups import far_from_sinks, group_count, has_groups, members, word_types
from analysis.parts import RULE, RULE_ALL, Parts
from focus_core.interpret.chance import most_frequent_group, one_group_a_type, shuffled, uniform
from focus_core.interpret.scores import MEASURES, Cells, interval, scored
from focus_core.trace import Trace

BASELINES = {
    "lookup": "Lookup by word alone",
    "frequency": "One random group a word type",
    "shuffled": "Shuffled, same sizes",
    "random": "Random groups",
}
INTERVALS = ("groups", "kmeans", "lookup", "frequency")
BOOTSTRAPS, REPEATS, SEED = 200, 20, 0


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
    cells = Cells(tags[use], sentence)
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
            key: Curve(key, at, v[:, 0], *(interval(v) if key in INTERVALS else (None, None)))
            for key, v in values.items()
        }
        gain[measure] = {}
        for key in ("frequency", "lookup", "kmeans"):
            if key in values:
                difference = values["groups"] - values[key]
                gain[measure][key] = (difference[:, 0], *interval(difference))
    rule = RULE_ALL if pieces else RULE
    return Agreement(side, router, curves, gain, int(use.sum()), cells.sentences, rule, parts.gold)


def _layer(
    trace: Trace,
    layer: int,
    routers: range | list[int],
    side: str,
    use: np.ndarray,
    which: np.ndarray,
    cells: Cells,
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
            found.setdefault(key, []).append(scored(cells, sets, weights if key in INTERVALS else weights[:1]))
    return {key: {m: np.mean([e[m] for e in each], axis=0) for m in MEASURES} for key, each in found.items()}
