"""How far groups agree with tags, from tables of groups x tags, and the chance groupings they are held against.

A token that is in several groups counts once in each, with its tag. Scores are of whole tables, so that thousands of
resampled ones cost one pass; a test holds them against scikit-learn's.
"""

from __future__ import annotations

import numpy as np

MEASURES = {
    "v_measure": "V-measure (= NMI)",
    "purity": "Purity",
    "homogeneity": "Homogeneity",
    "completeness": "Completeness",
}


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


def interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """95 % interval of (n, 1 + bootstraps): the draws' spread around their own mean, laid around the estimate."""
    estimate, draws = values[:, 0], values[:, 1:]
    low, high = np.quantile(draws - draws.mean(1, keepdims=True), [0.025, 0.975], axis=1)
    return estimate + low, estimate + high


class Cells:
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


def scored(cells: Cells, sets: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
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
