"""All that is said about a router's groups: by layer, by router, by group, as plain values for a result file."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from focus_core.errors import Cancelled, InvalidInput
from focus_core.interpret.attributes import Attribute, attributes
from focus_core.interpret.chance import like_frequency, most_frequent_group, one_group_a_type, shuffled, uniform
from focus_core.interpret.looks import looked_for
from focus_core.interpret.names import columns, names
from focus_core.interpret.parts import KINDS, RULE
from focus_core.interpret.sample import Sample, members
from focus_core.interpret.scores import MEASURES, Cells, interval, scored
from focus_core.interpret.stability import across_texts, among, between, first_group
from focus_core.interpret.summary import BASELINES, GROUP_FIELDS, SIDES, rounded, summary
from focus_core.interpret.words import log_odds, word_type
from focus_core.jobs.files import read_json, write_json
from focus_core.tags import UNIVERSAL

GAINS = ("kmeans", "untrained", "lookup", "frequency", "matched")
OTHERS = ("kmeans", "untrained")
COMPARED = ("v_measure", "purity")
NOTHING = "nothing found"
BOOTSTRAPS, REPEATS, SEED = 100, 10, 0
FEWEST, TAGGED = 8, 0.1
"""Tagged tokens, and their share of a group's, below which its purity says nothing of the group."""
VERSION = 6
"""Of what a layer's part holds: kept parts of another version are not taken."""


def report(
    sample: Sample,
    sets: Mapping[str, np.ndarray],
    groups: int,
    *,
    window: int,
    against: Mapping[str, np.ndarray] | None = None,
    bootstraps: int = BOOTSTRAPS,
    store: Path | None = None,
    progress: Callable[[float, str], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    """Measure, hold against chance, and name.

    Args:
        sample: the tokens.
        sets: ``layers`` (L,), and (L, R, N) int64 sets ``groups_keys``, ``groups_queries``; the same of ``kmeans`` and
            ``untrained`` where they are to be held against (R may be 1).
        groups: K.
        window: w of the variant, for what is far.
        against: by name, (L, R, N) key sets of other adapters on the same tokens.
        bootstraps: draws of the sentences.
        store: folder where each layer's part is kept; those that are there are not scored again.
        progress: called with (fraction, sentence).
        cancel: asked between layers.

    Returns:
        ``layers``: one entry a layer with, for each side, ``{line: {measure: [value, low, high]}}`` as means over
        routers (95 %: sentences drawn with replacement; of chance, the spread of the draws), the paired ``gain`` over a
        baseline, ``named`` (groups by what they are about), and ``stability``, ``looks``. ``routers``: every router's
        own values. ``groups``: what each group is about, a list for every field; see ``summary.group_rows``.
        ``tags``: rows and columns of ``looks``, which are the far pairs that groups keep over those there are, queries
        by keys. ``summary``: see ``summary.summary``.

    Raises:
        InvalidInput: fewer than two tagged tokens.
        Cancelled: on request.
    """
    use = sample.counted & (sample.parts.tags >= 0)
    if use.sum() < 2:
        raise InvalidInput(f"{int(use.sum())} tokens of the text have a part of speech.", "Give more English text.")
    scorer = _Scorer(sample, use, groups, window, bootstraps)
    directed = not np.array_equal(sets["groups_keys"], sets["groups_queries"])
    sides = SIDES if directed else SIDES[:1]
    layers, routers, rows = [], [], []
    for at, layer in enumerate(sets["layers"].tolist()):
        if cancel is not None and cancel():
            raise Cancelled()
        if progress is not None:
            progress(at / len(sets["layers"]), f"Scoring layer {layer}, and what it is held against")
        mine = {name: each[at] for name, each in sets.items() if name != "layers"}
        theirs = {name: each[at] for name, each in (against or {}).items()}
        place = None if store is None else store / f"{scorer.key(layer, mine, theirs)}.json"
        part = None if place is None else read_json(place)
        if part is None:
            part = scorer.layer(layer, mine, theirs, sides)
            if place is not None:
                write_json(place, part)
        layers.append(part["entry"])
        routers += part["routers"]
        rows += part["rows"]
    return {
        "directed": directed,
        "tokens": len(sample),
        "tagged": int(use.sum()),
        "sentences": scorer.cells.sentences,
        "rule": RULE,
        "tag_source": sample.parts.source,
        "gold": sample.parts.gold,
        "tags": [KINDS[i] for i in scorer.present],
        "measures": {m: MEASURES[m] for m in COMPARED},
        "baselines": BASELINES,
        "layers": layers,
        "routers": routers,
        "groups": {name: [row[i] for row in rows] for i, name in enumerate(GROUP_FIELDS)},
        "summary": summary(layers, rows, sides),
    }


class _Scorer:
    """Scores one layer after another on the same tokens; what does not depend on the layer is made once."""

    def __init__(self, sample: Sample, use: np.ndarray, groups: int, window: int, bootstraps: int) -> None:
        self.sample, self.use, self.groups, self.window = sample, use, groups, window
        _, sentence = np.unique(sample.parts.sentence[use], return_inverse=True)
        _, self.which = np.unique(sample.types[use], return_inverse=True)
        self.cells = Cells(sample.parts.tags[use], sentence)
        count = self.cells.sentences
        draws = np.random.default_rng(SEED).multinomial(count, np.full(count, 1 / count), bootstraps)
        self.weights = np.concatenate([np.ones((1, count)), draws]).astype(np.float32)
        self.naming = _Naming(sample)
        self.present = [i for i in range(len(UNIVERSAL)) if (sample.parts.tags[use] == i).sum() >= 20] or [0]

    def key(self, layer: int, sets: Mapping[str, np.ndarray], against: Mapping[str, np.ndarray]) -> str:
        """Names what this layer's part follows from."""
        digest = hashlib.sha256()
        plain = [VERSION, layer, self.groups, self.window, len(self.weights), self.sample.tokens]
        digest.update(json.dumps([plain, list(sets), list(against)]).encode())
        parts = self.sample.parts
        for array in (*sets.values(), *against.values(), self.sample.position, parts.all_pieces, parts.sentence):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:24]

    def layer(
        self, layer: int, sets: Mapping[str, np.ndarray], against: Mapping[str, np.ndarray], sides: Sequence[str]
    ) -> dict[str, Any]:
        """``entry``, ``routers`` and ``rows`` of one layer; sets are (R, N)."""
        rng = np.random.default_rng([SEED, layer])
        entry: dict[str, Any] = {"layer": layer}
        routers, rows = [], []
        for side in sides:
            joined = members(sets[f"groups_{side}"], self.groups)
            others = {n: members(sets[f"{n}_{side}"], self.groups) for n in OTHERS if f"{n}_{side}" in sets}
            use = self.use
            lines, own = self._lines(joined[:, use], {n: x[:, use] for n, x in others.items()}, rng)
            entry[side] = _layer(lines)
            routers += [{"layer": layer, "router": r, "side": side} | values for r, values in enumerate(own)]
            found = [self.naming.rows(joined[r], layer, r, side, rng) for r in range(len(joined))]
            rows += [row for each in found for row in each]
            about = Counter(row[GROUP_FIELDS.index("about")] or NOTHING for each in found for row in each)
            entry[side]["named"] = dict(about.most_common())
        entry["stability"] = _stability(self.sample, sets, against, self.groups)
        kept, possible = looked_for(
            self.sample, sets["groups_queries"], sets["groups_keys"], len(UNIVERSAL), window=self.window
        )
        entry["looks"] = _looks(kept, possible, self.present)
        return {"entry": entry, "routers": routers, "rows": rows}

    def _lines(
        self, joined: np.ndarray, others: Mapping[str, np.ndarray], rng: np.random.Generator
    ) -> tuple[dict[str, dict[str, np.ndarray]], list[dict[str, float]]]:
        """By line and measure: means over routers, the text itself first and then draws of its sentences.

        ``shuffled`` and ``random`` are drawn on the text itself alone: their mean first, then the draws. Also every
        router's own values.
        """
        found: dict[str, list[dict[str, np.ndarray]]] = {}
        own = []
        for r, mine in enumerate(joined):
            sets = {
                "groups": mine[None],
                **{name: other[min(r, len(other) - 1)][None] for name, other in others.items()},
                "lookup": most_frequent_group(mine, self.which),
                "frequency": one_group_a_type(mine, self.which, REPEATS, rng),
                "matched": like_frequency(mine, self.which, REPEATS, rng),
            }
            for key, each in sets.items():
                found.setdefault(key, []).append(scored(self.cells, each, self.weights))
            for key, drawn in (("shuffled", shuffled(mine, REPEATS, rng)), ("random", uniform(mine, REPEATS, rng))):
                once = [scored(self.cells, each[None], self.weights[:1]) for each in drawn]
                values = {m: np.concatenate([one[m] for one in once]) for m in MEASURES}
                found.setdefault(key, []).append({m: np.concatenate([[v.mean()], v]) for m, v in values.items()})
            now = {key: {m: rounded(found[key][-1][m][0]) for m in COMPARED} for key in found}
            beside = {f"{key}_v_measure": now[key]["v_measure"] for key in ("kmeans", "frequency") if key in now}
            own.append(now["groups"] | beside)
        means = {key: {m: np.mean([e[m] for e in each], axis=0) for m in MEASURES} for key, each in found.items()}
        return means, own


def _layer(lines: dict[str, dict[str, np.ndarray]]) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    for key, values in lines.items():
        entry[key] = {m: _with_interval(v) for m, v in values.items() if m in COMPARED}
    entry["gain"] = {
        key: {m: _with_interval(lines["groups"][m] - lines[key][m]) for m in COMPARED} for key in GAINS if key in lines
    }
    return entry


def _with_interval(values: np.ndarray) -> list[float]:
    low, high = interval(values[None])
    return [rounded(x, 3) for x in (values[0], low[0], high[0])]


# ---- what a group is about -----------------------------------------------------------------------------------------


class _Naming:
    """Names groups of one sample; what does not depend on the groups is made once."""

    def __init__(self, sample: Sample) -> None:
        self.use = sample.counted
        self.known: list[Attribute] = [
            Attribute(a.name, a.values, a.codes[self.use], a.ranged) for a in attributes(sample)
        ]
        self.values = columns(self.known)
        words = np.array([word_type(token) for token in sample.tokens])[self.use]
        self.vocabulary, self.which = np.unique(words, return_inverse=True)
        self.tags = sample.parts.tags[self.use]

    def rows(self, joined: np.ndarray, layer: int, router: int, side: str, rng: np.random.Generator) -> list[list[Any]]:
        """One row of ``GROUP_FIELDS`` a group."""
        joined = joined[self.use]
        found = names(joined, self.known, rng, values=self.values)
        groups = joined.shape[1]
        counts = np.stack(
            [np.bincount(self.which[joined[:, g]], minlength=len(self.vocabulary)) for g in range(groups)]
        )
        z = log_odds(counts)
        rows = []
        for g, name in enumerate(found):
            tagged = np.bincount(self.tags[joined[:, g] & (self.tags >= 0)], minlength=len(UNIVERSAL))
            top = [int(w) for w in np.lexsort((-counts[g], -z[g]))[:2] if counts[g, w] and z[g, w] > 0]
            most = int(tagged.argmax())
            judged = tagged.sum() >= max(FEWEST, TAGGED * joined[:, g].sum())
            purity = (rounded(tagged.max() / tagged.sum(), 2), KINDS[most]) if judged else (None, None)
            about = name.attribute, name.says, rounded(name.explained, 2), rounded(name.covers, 2)
            words = " ".join(str(self.vocabulary[w]) for w in top)
            share = float(f"{joined[:, g].mean():.2g}")
            rows.append([layer, router, side, g, share, *about, *purity, words])
        return rows


# ---- stability and what is looked for -------------------------------------------------------------------------------


def _stability(
    sample: Sample, sets: Mapping[str, np.ndarray], against: Mapping[str, np.ndarray], groups: int
) -> dict[str, Any]:
    use = sample.counted
    mine = first_group(sets["groups_keys"][:, use])
    found: dict[str, Any] = {
        name: rounded(between(mine, first_group(sets[f"{name}_keys"][:, use])))
        for name in OTHERS
        if f"{name}_keys" in sets
    }
    if against:
        found["against"] = {n: rounded(between(mine, first_group(k[:, use]))) for n, k in against.items()}
    if (own := among(mine)) is not None:
        found["routers"] = rounded(own)
    types, text = sample.types[use], sample.text[use]
    across = [x for r in range(len(mine)) if (x := across_texts(mine[r], types, text)) is not None]
    if across:
        found["texts"], found["texts_same"] = (rounded(x) for x in np.mean(across, axis=0))
        mixed = np.random.default_rng(SEED).permutation(len(types))
        chance = [x for r in range(len(mine)) if (x := across_texts(mine[r][mixed], types, text)) is not None]
        found["texts_shuffled"] = rounded(np.mean(chance, axis=0)[0])
    tags = sample.parts.tags
    for t in np.unique(sample.text):
        here = use & (sample.text == t) & (tags >= 0)
        cells = Cells(tags[here], np.zeros(int(here.sum()), np.int64))
        one = np.ones((1, 1), np.float32)
        each = [scored(cells, members(bits[here], groups)[None], one)["v_measure"][0] for bits in sets["groups_keys"]]
        found.setdefault("v_by_text", []).append(rounded(np.mean(each)))
    return found


def _looks(kept: np.ndarray, possible: np.ndarray, present: list[int]) -> dict[str, Any]:
    """Kept over possible far pairs by tag (rows are queries), of all tags, and how much more of one's own tag."""
    rate, pairs = kept[np.ix_(present, present)], possible[np.ix_(present, present)]
    every = float((rate * pairs).sum() / max(1.0, pairs.sum()))
    own = float((np.diag(rate) * np.diag(pairs)).sum() / max(1.0, np.diag(pairs).sum()))
    row = (rate * pairs).sum(1) / np.maximum(pairs.sum(1), 1)
    expected = float((row * np.diag(pairs)).sum() / max(1.0, np.diag(pairs).sum()))
    return {
        "kept": [[rounded(x, 3) for x in line] for line in rate],
        "all": rounded(every),
        "own_tag_lift": rounded(own / max(expected, 1e-9)),
    }
