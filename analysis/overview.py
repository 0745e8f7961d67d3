"""What the Overview says about one Trace: figures, the answer in one sentence, the worst losses."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from analysis.numbers import percent, sig3, spread
from focus_core import assets
from focus_core.errors import FocusError
from focus_core.trace import Trace
from focus_core.variants import make

MIN_JUDGED = 200
"""Scored tokens under which a perplexity change says nothing."""
PARTIAL_SHARE = 0.2


@dataclass(frozen=True)
class Figures:
    """The three figures of a run, means over layers and heads.

    Attributes:
        kept_pairs: kept over causal pairs, 0 to 1.
        mass_kept: dense attention mass on kept pairs, 0 to 1; None when it was not recorded.
        ppl: perplexity with the variant. dense_ppl: without. scored: number of tokens behind both.
        spread: standard error of the relative change, from the paired differences of tokens.
    """

    kept_pairs: float
    mass_kept: float | None
    ppl: float
    dense_ppl: float
    scored: int
    spread: float

    @property
    def change(self) -> float:
        """Relative change of perplexity against dense."""
        return self.ppl / self.dense_ppl - 1

    @property
    def judged(self) -> bool:
        """False when the text is too short for the change to mean anything."""
        return self.scored >= MIN_JUDGED


def trained_on(trace: Trace) -> bool:
    """Whether the run's groups were learned from the text that it shows, as far as their record tells."""
    p = trace.provenance
    entry = assets.adapters().get(str(p.get("adapter") or ""))
    name = p.get("text_name")
    if entry is None or name not in assets.text_names():
        return False
    texts = str((entry["config"].get("record") or {}).get("texts", ""))
    novels = "novels" in texts and any(role.role == "training" for role in assets.load_text(name).roles)
    return novels or texts == name


def figures(trace: Trace) -> Figures:
    """The three figures of a Trace."""
    nll, dense = (trace.arrays[name].astype(np.float64) for name in ("nll", "dense_nll"))
    ratio = math.exp(float((nll - dense).mean()))
    spread = ratio * float((nll - dense).std(ddof=1)) / math.sqrt(len(nll)) if len(nll) > 1 else math.inf
    mass = trace.arrays.get("mass_kept")
    return Figures(
        float(trace.arrays["kept_pairs"].mean()),
        None if mass is None else float(mass.mean()),
        math.exp(float(nll.mean())),
        math.exp(float(dense.mean())),
        len(nll),
        spread,
    )


def change_text(change: float) -> str:
    """A relative change with its sign: three figures, and two decimals of a per cent where it is small."""
    if abs(change) >= 0.01:
        return percent(change, signed=True)
    size = f"{abs(100 * change):.2f}"
    return f"{'' if size == '0.00' else '+' if change > 0 else '−'}{size} %"


def answer(found: Figures) -> str:
    """The page's question answered in one sentence with this run's numbers."""
    kept = percent(found.kept_pairs)
    if found.kept_pairs >= 0.9995:
        said = "Here every token sees every earlier one: all pairs are computed"
        # Rounding alone moves it by far less.
        if not found.judged or abs(found.change) <= max(found.spread, 0.001):
            return f"{said}."
        return f"{said}, with other weights: perplexity goes {_between(found)} ({_change(found)})."
    if not found.judged:
        return f"Here {kept} of the pairs are computed; {scored_text(found)} too few to judge the cost."
    change = _change(found)
    if abs(found.change) <= found.spread:
        moves = f"stays at {sig3(found.ppl)}"
        if sig3(found.ppl) != sig3(found.dense_ppl):
            moves = f"moves within its own error, {_between(found)}"
        return f"No: with {kept} of the pairs, perplexity {moves} ({change})."
    numbers = f"perplexity goes {_between(found)} ({change})"
    if found.change <= max(0.01, min(2 * found.spread, 0.03)):
        return f"No: with {kept} of the pairs, {numbers}."
    if found.change <= 0.1:
        return f"Hardly: with {kept} of the pairs, {numbers}."
    return f"These tokens do need more: with {kept} of the pairs, {numbers}."


def _change(found: Figures) -> str:
    return f"{change_text(found.change)} {spread(found.spread)}"


def scored_text(found: Figures) -> str:
    """How many tokens were scored, with the verb."""
    return "1 scored token is" if found.scored == 1 else f"{found.scored:,} scored tokens are"


def nats_help(nats: float) -> str:
    """What a change of log-likelihood means."""
    return f"1 nat is e ≈ 2.72 times more or less likely; {abs(nats):.2f} nats are {sig3(math.exp(abs(nats)))} times."


def untouched(trace: Trace) -> str:
    """Which tokens no variant can hurt, in one sentence; empty where that is none or all."""
    p = trace.provenance
    reach = int(p["window"]) + int(p.get("sinks") or 0)
    if p["variant"] == "dense" or not 0 < reach < len(trace):
        return ""
    return f"The first {reach:,} tokens (window and first tokens together) see all before them and cannot be hurt."


def _between(found: Figures) -> str:
    return f"from {sig3(found.dense_ppl)} to {sig3(found.ppl)}"


def difference(live: Trace, recorded: Trace) -> str:
    """How a live run differs from the shipped recording beyond rounding; empty when it does not."""
    if len(live) != len(recorded):
        return f"The recording has {len(recorded):,} tokens and the live run {len(live):,}."
    now, then = figures(live), figures(recorded)
    found = []
    if abs(now.ppl / then.ppl - 1) > 5e-3:
        found.append(f"perplexity {sig3(then.ppl)} became {sig3(now.ppl)}")
    if abs(now.kept_pairs - then.kept_pairs) > 2e-3:
        found.append(f"pairs kept {percent(then.kept_pairs)} became {percent(now.kept_pairs)}")
    if "key_bits" in live.arrays and "key_bits" in recorded.arrays:
        a, b = live.arrays["key_bits"], recorded.arrays["key_bits"]
        moved = float((a != b).mean()) if a.shape == b.shape else 1.0
        if moved > 5e-3:
            found.append(f"{percent(moved)} of the memberships moved")
    return "The live run differs from the recording: " + ", ".join(found) + "." if found else ""


def partial_warning(trace: Trace) -> str:
    """A sentence when many tokens are only parts of characters; empty otherwise."""
    partial = trace.arrays.get("partial")
    if partial is None or not len(partial) or float(partial.mean()) <= PARTIAL_SHARE:
        return ""
    each = len(trace) / max(1, len(trace.text))
    return (
        f"{percent(float(partial.mean()))} of this text's tokens are only parts of characters "
        f"({sig3(each)} tokens a character): groups may reflect bytes rather than words."
    )


def most_hurt(trace: Trace, count: int = 6) -> list[tuple[int, float]]:
    """(token, change of log-likelihood) of the tokens that became least likely, worst first."""
    change = trace.arrays["dense_nll"].astype(np.float64) - trace.arrays["nll"]
    worst = np.argsort(change, kind="stable")[:count]
    return [(int(t) + 1, float(change[t])) for t in worst if change[t] < 0]


def dense_within(trace: Trace) -> int:
    """Tokens of the longest text that a Trace's attention serves as dense by definition; 0 for none, and for dense."""
    p = trace.provenance
    try:
        variant = make(p["variant"], p.get("config"))
    except FocusError:
        return 0
    return 0 if p["variant"] == "dense" else variant.dense_within
