"""The Choose tab in words: its table, its sentence, and what each number was measured on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.choose import BOTTLENECKS, Ask, Choice, score
from analysis.numbers import memory, percent, sig3, times
from analysis.records import ALONE, WHOLE, Record

if TYPE_CHECKING:
    import pandas as pd

_SPEED_RULE = (
    "Ranked by recorded {} time against dense in the same run: whole models first, attention alone below them, since "
    "it is only a part of a model's time; other lengths below the asked one; what was not measured has no rank."
)
RULES = {
    "prefill": _SPEED_RULE.format("prefill"),
    "decode": _SPEED_RULE.format("decode"),
    "memory": "Ranked by the bytes that weights, cache and one layer's attention need, which are counted; equal ones "
    "share a rank.",
    "quality": "Ranked by recorded change of perplexity against dense, best first, other lengths below the asked one; "
    "what was not measured has no rank.",
}
NOT_MEASURED = "not measured"
BASELINE = "1×, the baseline"
RUNS = "Runs here"
GROUPED = "K=16 q4k1: 16 groups; a query looks into 4 of them, a key is in 1."
NAMES = f"{GROUPED} q0–8: by head. 128 + 4: the nearest 128 tokens and the first 4. In brackets: the adapter."
"""How to read a line's name."""
_FIRST = {
    "prefill": ("Speed", "Perplexity"),
    "decode": ("Speed", "Perplexity"),
    "memory": ("Needs", "Cache a token", "Perplexity"),
    "quality": ("Perplexity", "Pairs kept"),
}
"""What stands right after the name: what ranks, and its price."""


def table(choices: Sequence[Choice], ask: Ask) -> pd.DataFrame:
    """One line a choice, as people read it; what ranks stands first, and who may run only where not all do."""
    import pandas as pd

    rows = [
        {
            "Rank": str(c.rank) if c.rank else "",
            "Variant": c.line.label,
            "Speed": BASELINE if c.line.is_dense else says_speed(c.speed, ask),
            "Perplexity": says_quality(c.quality, ask, dense=c.line.is_dense),
            "Needs": memory(c.needs),
            "Cache a token": memory(c.cache_token),
            "Pairs kept": says_pairs(c, ask),
            RUNS: c.why_not or "yes",
            "Training": c.line.training,
            "Speed measured": c.speed.where() if c.speed else "",
            "Perplexity measured": measured_on(c.quality),
        }
        for c in choices
    ]
    head = ["Rank", "Variant", *_FIRST[ask.bottleneck]]
    left_out = () if any(c.why_not for c in choices) else (RUNS,)
    columns = [*head, *(name for name in (rows[0] if rows else ()) if name not in (*head, *left_out))]
    return pd.DataFrame(rows, columns=columns)


def measured_on(record: Record | None) -> str:
    """Windows and tokens behind a perplexity, its text, card and day."""
    if record is None or record.quality is None:
        return ""
    # Of every window but the first token is scored.
    windows = max(1, round(record.quality.scored / max(1, record.length - 1)))
    many = f"{windows:,} windows" if windows > 1 else "1 window"
    return f"{many}, {record.quality.scored:,} tokens scored; windows of {record.where()}"


def says_speed(record: Record | None, ask: Ask) -> str:
    """Times faster than dense, with its spread, what was timed, and the length where it is not the asked one."""
    if record is None or record.speed is None:
        return NOT_MEASURED
    s = record.speed
    what = "" if s.what == WHOLE else ", attention alone"
    return f"{times(s.faster)} ({times(s.low)} to {times(s.high)}){what}{_at(record, ask)}"


def says_quality(record: Record | None, ask: Ask, *, dense: bool = False) -> str:
    """Change of perplexity against dense; of dense itself the perplexity; the length where it is not the asked one."""
    if record is None or record.quality is None:
        return "the baseline" if dense else NOT_MEASURED
    other = _windows(record, ask)
    if dense:
        return f"{sig3(record.quality.perplexity)}, the baseline{other}"
    return f"{percent(record.quality.change, signed=True)}{other}"


def says_pairs(choice: Choice, ask: Ask) -> str:
    """Share of the pairs kept; the length where it is not the asked one."""
    if not choice.line.variant.computes_pairs:
        return "computes none"
    if choice.line.is_dense:
        return percent(1.0)
    if choice.pairs is None:
        return NOT_MEASURED
    return f"{percent(choice.pairs.kept_pairs)}{_windows(choice.pairs, ask)}"


def _windows(record: Record, ask: Ask) -> str:
    return f" (windows of {record.length:,})" if record.length != ask.context else ""


def _at(record: Record, ask: Ask) -> str:
    return f" at {record.length:,} tokens" if record.length != ask.context else ""


def answer(choices: Sequence[Choice], ask: Ask, model: str) -> str:
    """The tab's sentence: the best choice in numbers, its price, and how many could not be ranked."""
    where = f"{model} at {ask.context:,} tokens"
    able = [c for c in choices if not c.why_not]
    if not able:
        why = next((c.why_not for c in choices if c.line.is_dense), "see why beside each")
        return f"Nothing runs {where} as asked: {why.rstrip('.')}."
    ranked = [c for c in able if c.rank]
    unknown = len(able) - len(ranked)
    rest = f" {unknown} of the {len(able)} that run here {'has' if unknown == 1 else 'have'} no such record."
    rest = rest if unknown else ""
    if not any(score(c, ask) for c in ranked):
        return f"For {where} no {BOTTLENECKS[ask.bottleneck].lower()} has been recorded yet."
    said = {"memory": _least, "quality": _best}.get(ask.bottleneck, _fastest)(ranked, ask)
    return f"For {where}, {said}.{rest}"


def _least(ranked: Sequence[Choice], ask: Ask) -> str:
    best, equal = ranked[0], sum(c.rank == 1 for c in ranked) - 1
    also = f"; {equal} more need{'s' if equal == 1 else ''} as little" if equal else ""
    # Dense has no change against itself.
    price = "" if best.line.is_dense else _price(best, ask)
    return f"{best.line.label} needs least: {memory(best.needs)}{price}{also}"


def _best(ranked: Sequence[Choice], ask: Ask) -> str:
    best = ranked[0]
    if best.line.is_dense or best.quality is None or best.quality.quality is None:
        return "nothing recorded predicts better than dense"
    on = f" on {best.quality.text}" if best.quality.text else ""
    high = best.quality.quality.high
    unclear = ", no clear difference" if high is not None and high >= 0 else ""
    at = f" in windows of {best.quality.length:,} tokens" if best.quality.length != ask.context else ""
    change = percent(best.quality.quality.change, signed=True)
    kept = best.pairs is not None and best.line.variant.computes_pairs
    pairs = f", {percent(best.pairs.kept_pairs)} of the pairs" if kept and best.pairs is not None else ""
    return f"{best.line.label} predicts best: {change} perplexity{on}{at}{unclear}{pairs}"


def _fastest(ranked: Sequence[Choice], ask: Ask) -> str:
    whole = [c for c in ranked if _faster_than_dense(c, WHOLE)]
    if whole:
        return _lead(whole, ask, "is the fastest whole model", "no whole model is clearly faster than dense")
    any_whole = any(c.speed is not None and c.speed.speed is not None and c.speed.speed.what == WHOLE for c in ranked)
    alone = [c for c in ranked if _faster_than_dense(c, ALONE)]
    if not alone:
        return "nothing recorded is faster than dense"
    before = "no whole model recorded is faster than dense" if any_whole else "no whole model was timed"
    said = _lead(alone, ask, "is the fastest", "none is clearly faster than dense")
    return f"{before}; of attention alone {said}"


def _faster_than_dense(choice: Choice, what: str) -> bool:
    speed = choice.speed.speed if choice.speed is not None else None
    return not choice.line.is_dense and speed is not None and speed.what == what and speed.faster > 1


def _lead(found: Sequence[Choice], ask: Ask, first: str, none: str) -> str:
    """The first that is clearly faster; where there is none, that and the first of all."""
    clear = next((c for c in found if c.speed and c.speed.speed and c.speed.speed.low > 1), None)
    best = clear or found[0]
    assert best.speed is not None
    assert best.speed.speed is not None
    s = best.speed.speed
    numbers = f"{times(s.faster)} dense's speed{_at(best.speed, ask)} ({times(s.low)} to {times(s.high)})"
    if clear is None:
        return f"{none}: {best.line.label} measured {numbers}{_price(best, ask)}"
    if clear is not found[0]:
        first = f"{first} that is clearly faster than dense"
    return f"{best.line.label} {first}: {numbers}{_price(best, ask)}"


def _price(choice: Choice, ask: Ask) -> str:
    said = says_quality(choice.quality, ask)
    if said == NOT_MEASURED:
        return "; its perplexity was not measured"
    change, _, other = said.partition(" (")
    return f", with {change} perplexity{f' ({other}' if other else ''}"
