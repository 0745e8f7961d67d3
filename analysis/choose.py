"""Which variant for this model, text length and card: what fits, and what was measured, ranked by one thing.

Bytes are counted, since they follow from settings. Speed and quality are recorded results or nothing at all.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.numbers import memory, percent, sig3, times
from analysis.records import ALONE, WHOLE, Record, is_dense, nearest, of_model, same_line
from focus_core.benchmark.entries import counted, layer_shape
from focus_core.variants import Variant

if TYPE_CHECKING:
    import pandas as pd

    from focus_core.models.facts import ModelFacts

BOTTLENECKS = {"prefill": "Prefill time", "decode": "Decode time", "memory": "Memory", "quality": "Quality"}
RULES = {
    "prefill": "Ranked by recorded prefill time against dense in the same run: whole models first, then attention "
    "alone; what was not measured has no rank.",
    "decode": "Ranked by recorded decode time against dense in the same run: whole models first, then attention "
    "alone; what was not measured has no rank.",
    "memory": "Ranked by the bytes that weights, cache and one layer's attention need, which are counted; equal ones "
    "share a rank.",
    "quality": "Ranked by recorded change of perplexity against dense, best first; what was not measured has no rank.",
}
NOT_MEASURED = "not measured"
BASELINE = "1×, the baseline"


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
        speed, quality, pairs: the nearest records; None where none was measured.
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
        nearest([r for r in (scored or mine) if r.kept_pairs is not None and line.variant.computes_pairs], ask.context),
    )
    return choice if choice.why_not else _with(choice, why_not=_too_small(choice, ask, facts))


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


def score(choice: Choice, bottleneck: str) -> tuple[int, float] | None:
    """What ranks a choice, smaller is better: a class, and a number within it; None where nothing was measured."""
    if bottleneck == "memory":
        return None if choice.needs is None else (0, choice.needs)
    if bottleneck == "quality":
        return None if choice.quality is None or choice.quality.quality is None else (0, choice.quality.quality.change)
    if choice.speed is None or choice.speed.speed is None:
        return None
    return (choice.speed.speed.what == ALONE, -choice.speed.speed.faster)


def _ranked(choices: list[Choice], ask: Ask) -> list[Choice]:
    scores = {id(c): s for c in choices if (s := score(c, ask.bottleneck)) is not None}
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


def table(choices: Sequence[Choice], ask: Ask) -> pd.DataFrame:
    """One line a choice, as people read it."""
    import pandas as pd

    return pd.DataFrame(
        [
            {
                "Rank": str(c.rank) if c.rank else "",
                "Variant": c.line.label,
                "Runs here": c.why_not or "yes",
                "Speed": BASELINE if c.line.is_dense else says_speed(c.speed),
                "Perplexity": says_quality(c.quality, dense=c.line.is_dense),
                "Pairs kept": says_pairs(c),
                "Needs": memory(c.needs),
                "Cache a token": memory(c.cache_token),
                "Training": c.line.training,
                "Speed measured": c.speed.where() if c.speed else "",
                "Perplexity measured": c.quality.where() if c.quality else "",
            }
            for c in choices
        ]
    )


def says_speed(record: Record | None) -> str:
    """Times faster than dense, with its spread and what was timed."""
    if record is None or record.speed is None:
        return NOT_MEASURED
    s = record.speed
    what = "" if s.what == WHOLE else ", attention alone"
    return f"{times(s.faster)} ({times(s.low)} to {times(s.high)}){what}"


def says_quality(record: Record | None, *, dense: bool = False) -> str:
    """Change of perplexity against dense; of dense itself the perplexity."""
    if record is None or record.quality is None:
        return "the baseline" if dense else NOT_MEASURED
    if dense:
        return f"{sig3(record.quality.perplexity)}, the baseline"
    return percent(record.quality.change, signed=True)


def says_pairs(choice: Choice) -> str:
    """Share of the pairs kept."""
    if not choice.line.variant.computes_pairs:
        return "computes none"
    if choice.line.is_dense:
        return percent(1.0)
    if choice.pairs is None:
        return NOT_MEASURED
    return percent(choice.pairs.kept_pairs)


def answer(choices: Sequence[Choice], ask: Ask, model: str) -> str:
    """The tab's sentence: the best choice in numbers, and how many could not be ranked."""
    where = f"{model} at {ask.context:,} tokens"
    able = [c for c in choices if not c.why_not]
    if not able:
        why = next((c.why_not for c in choices if c.line.is_dense), "see why beside each")
        return f"Nothing runs {where} as asked: {why.rstrip('.')}."
    ranked = [c for c in able if c.rank]
    unknown = len(able) - len(ranked)
    rest = f" {unknown} of the {len(able)} that run here {'has' if unknown == 1 else 'have'} no such record."
    rest = rest if unknown else ""
    if not any(score(c, ask.bottleneck) for c in ranked):
        return f"For {where} no {BOTTLENECKS[ask.bottleneck].lower()} has been recorded yet."
    best = ranked[0]
    if ask.bottleneck == "memory":
        equal = sum(c.rank == 1 for c in ranked)
        also = f" and {equal - 1} more" if equal > 1 else ""
        return f"For {where}, {best.line.label}{also} needs least: {memory(best.needs)}.{rest}"
    if best.line.is_dense:
        return f"For {where}, {_dense_is_best(ranked, ask)}{rest}"
    if ask.bottleneck == "quality":
        on = f" on {best.quality.text}" if best.quality is not None and best.quality.text else ""
        return (
            f"For {where}, {best.line.label} predicts best: {says_quality(best.quality)} perplexity{on}, "
            f"{says_pairs(best)} of the pairs.{rest}"
        )
    price = says_quality(best.quality)
    at = f", with {price} perplexity" if price != NOT_MEASURED else "; its perplexity was not measured"
    assert best.speed is not None
    assert best.speed.speed is not None
    s = best.speed.speed
    kind = "" if s.what == WHOLE else " (attention alone)"
    unclear = ", no clear difference" if s.low <= 1 else ""
    return (
        f"For {where}, {best.line.label} is fastest: {times(s.faster)} dense's speed{kind} at {best.speed.length:,} "
        f"tokens ({times(s.low)} to {times(s.high)}{unclear}){at}.{rest}"
    )


def _dense_is_best(ranked: Sequence[Choice], ask: Ask) -> str:
    if ask.bottleneck == "quality":
        return "nothing recorded predicts better than dense."
    for c in ranked:
        # After whole models come those whose attention alone was timed.
        if c.speed is not None and c.speed.speed is not None and c.speed.speed.what == ALONE:
            if c.speed.speed.faster > 1:
                return (
                    f"no whole model recorded is faster than dense; of attention alone {c.line.label} is fastest, "
                    + (f"{times(c.speed.speed.faster)} dense's speed at {c.speed.length:,} tokens.")
                )
            break
    return "nothing recorded is faster than dense."


def by_records(names: Iterable[str]) -> list[str]:
    """Names by how often they come, the most first; empty ones are left out."""
    counts = Counter(filter(None, names))
    return sorted(counts, key=lambda name: (-counts[name], name))
