"""Which variant for this model, text length and card: what fits, and what was measured, ranked by one thing.

Bytes are counted, since they follow from settings. Speed and quality are recorded results or nothing at all.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.numbers import memory
from analysis.records import ALONE, WHOLE, Record, is_dense, nearest, of_model, same_line
from focus_core.benchmark.entries import counted, layer_shape
from focus_core.variants import Variant

if TYPE_CHECKING:
    from focus_core.models.facts import ModelFacts

BOTTLENECKS = {"prefill": "Prefill time", "decode": "Decode time", "memory": "Memory", "quality": "Quality"}


@dataclass(frozen=True)
class Ask:
    """What is looked for: tokens, sequences, the card's bytes (None: any), what hurts most, bytes a number.

    ``device`` and ``text`` limit whose speed and which text's quality are shown; None takes all.
    """

    context: int
    batch: int = 1
    card: float | None = None
    bottleneck: str = "prefill"
    itemsize: int = 4
    device: str | None = None
    text: str | None = None


@dataclass(frozen=True)
class Line:
    """A variant as it would run.

    Attributes:
        key, label: identify it, and what people read.
        variant: the config.
        config: its settings in full, as records have them.
        adapter: the adapter's name; None without one.
        adapter_bytes: of the adapter's file.
        refused: why it cannot run on this model; empty when it can.
        training: what it needs to learn, in words.
    """

    key: str
    label: str
    variant: Variant
    config: dict[str, Any]
    adapter: str | None = None
    adapter_bytes: int = 0
    refused: str = ""
    training: str = "none"

    @property
    def is_dense(self) -> bool:
        """Whether this is dense attention as it is, which all others are held against."""
        return is_dense(self.variant.name, self.adapter)


@dataclass(frozen=True)
class Choice:
    """A line with what is known of it.

    Attributes:
        line: the line.
        rank: 1 for the best; None where nothing ranks it.
        why_not: why it cannot be taken; empty when it can.
        weights, cache, workspace: bytes; None where the model's shape is not known.
        cache_token: bytes of cache a token over all layers, and the record that measured them, if one did.
        speed, quality, pairs: the records of the asked length, else the nearest; None where none was measured.
    """

    line: Line
    rank: int | None
    why_not: str
    weights: float | None
    cache: float | None
    workspace: float | None
    cache_token: float | None
    cache_record: Record | None
    speed: Record | None
    quality: Record | None
    pairs: Record | None

    @property
    def needs(self) -> float | None:
        """All bytes."""
        if self.weights is None or self.cache is None or self.workspace is None:
            return None
        return self.weights + self.cache + self.workspace


def choose(
    lines: Sequence[Line],
    found: Iterable[Record],
    ask: Ask,
    *,
    model: str,
    weights: int | None,
    facts: ModelFacts | None,
) -> list[Choice]:
    """Rank lines for what is asked: ranked ones first, then those without a rank, then those that cannot be taken.

    Args:
        lines: what there is.
        found: recorded results of any model.
        ask: what is looked for.
        model: the model's name.
        weights: its number of weights; None where it is not known.
        facts: its shape; None where it is not known: bytes then stay empty.
    """
    shape = None if facts is None else (facts.heads, facts.kv_heads, facts.head_dim)
    own = [r for r in found if r.served and of_model(r, model, shape)]
    choices = [_known(line, own, ask, weights, facts) for line in lines]
    return _ranked(choices, ask)


def speeds(found: Iterable[Record], phase: str) -> list[Record]:
    """The records that have a time of this phase."""
    return [r for r in found if r.speed is not None and r.speed.phase == phase]


def phase_of(bottleneck: str) -> str:
    """The phase whose time is shown."""
    return "decode" if bottleneck == "decode" else "prefill"


def _known(line: Line, own: list[Record], ask: Ask, weights: int | None, facts: ModelFacts | None) -> Choice:
    mine = [r for r in own if same_line(r, line.variant.name, line.config, line.adapter)]
    timed = [r for r in speeds(mine, phase_of(ask.bottleneck)) if ask.device in (None, r.device)]
    # A time of the whole model says more than one of its attention alone, also at another length.
    whole = [r for r in timed if r.speed is not None and r.speed.what == WHOLE]
    scored = [r for r in mine if r.quality is not None and ask.text in (None, r.text)]
    cached = [r for r in mine if r.cache_bytes is not None and _bytes_of(r.dtype) == ask.itemsize]
    cache_record = nearest(cached, ask.context)
    sizes = _sizes(line, ask, weights, facts, cache_record)
    choice = Choice(
        line,
        None,
        line.refused,
        *sizes,
        cache_record,
        nearest(whole or timed, ask.context, ask.batch),
        nearest(scored, ask.context),
        _paired(line, scored, mine, ask.context) if line.variant.computes_pairs else None,
    )
    return choice if choice.why_not else _with(choice, why_not=_too_small(choice, ask, facts))


def _paired(line: Line, scored: list[Record], mine: list[Record], context: int) -> Record | None:
    """Whose pairs are shown: of the perplexity's run, unless only another has the asked length.

    Groups that stand in for an adapter's keep other pairs than it does, and are taken where nothing else is.
    """
    own = [r for r in mine if r.adapter == line.adapter]
    for some in (scored, own):
        if found := [r for r in some if r.kept_pairs is not None and r.length == context]:
            return nearest(found, context)
    return nearest([r for r in (scored or mine) if r.kept_pairs is not None], context)


def _sizes(
    line: Line, ask: Ask, weights: int | None, facts: ModelFacts | None, measured: Record | None
) -> tuple[float | None, float | None, float | None, float | None]:
    """Bytes of weights, cache and workspace, and of cache a token."""
    if facts is None or line.refused:
        return (None if weights is None else weights * ask.itemsize, None, None, None)
    one = layer_shape(facts, ask.context, ask.itemsize, ask.batch)
    token = counted(line.variant, facts, ask.context, ask.itemsize).kv_bytes_per_token
    if measured is not None and measured.cache_bytes is not None:
        token = measured.cache_bytes
    held = None if weights is None else float(weights * ask.itemsize + line.adapter_bytes)
    return held, token * ask.context * ask.batch, line.variant.cost(one).bytes, token


def _too_small(choice: Choice, ask: Ask, facts: ModelFacts | None) -> str:
    if facts is not None and ask.context > facts.context:
        return f"the model reads at most {facts.context:,} tokens"
    if ask.card is None or choice.needs is None or choice.needs <= ask.card:
        return ""
    return f"needs {memory(choice.needs)}, and the card has {memory(ask.card)}"


def score(choice: Choice, ask: Ask) -> tuple[int, float] | None:
    """What ranks a choice, smaller is better: a class, and a number within it; None where nothing was measured.

    A whole model's time comes before one of attention alone, and the asked length before any other.
    """
    if ask.bottleneck == "memory":
        return None if choice.needs is None else (0, choice.needs)
    if ask.bottleneck == "quality":
        record = choice.quality
        if record is None or record.quality is None:
            return None
        return (int(record.length != ask.context), record.quality.change)
    record = choice.speed
    if record is None or record.speed is None:
        return None
    return (2 * (record.speed.what == ALONE) + (record.length != ask.context), -record.speed.faster)


def _ranked(choices: list[Choice], ask: Ask) -> list[Choice]:
    scores = {id(c): s for c in choices if (s := score(c, ask)) is not None}
    for c in choices:
        # Every record is against dense in the same run: dense stands at 1 among them.
        if c.line.is_dense and scores and ask.bottleneck != "memory":
            best = min(one for one, _ in scores.values())
            scores[id(c)] = (best, -1.0 if ask.bottleneck in ("prefill", "decode") else 0.0)
    able = [c for c in choices if not c.why_not]
    ranked = sorted((c for c in able if id(c) in scores), key=lambda c: scores[id(c)])
    firsts: dict[tuple[int, float], int] = {}
    for place, c in enumerate(ranked, 1):
        firsts.setdefault(scores[id(c)], place)
    with_rank = [_with(c, rank=firsts[scores[id(c)]]) for c in ranked]
    return [*with_rank, *(c for c in able if id(c) not in scores), *(c for c in choices if c.why_not)]


def _with(choice: Choice, **changes: Any) -> Choice:
    return dataclasses.replace(choice, **changes)


def _bytes_of(dtype: str) -> int:
    return {"float32": 4, "bfloat16": 2, "float16": 2}.get(dtype, 0)


def by_records(names: Iterable[str]) -> list[str]:
    """Names by how often they come, the most first; empty ones are left out."""
    counts = Counter(filter(None, names))
    return sorted(counts, key=lambda name: (-counts[name], name))
