"""XAttention's thresholds by the paper's dynamic programme, which its published code leaves out (arXiv 2503.16428)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from focus_core.errors import Cancelled, InvalidInput
from focus_core.evaluation.recorders import PairCounter
from focus_core.routing.thresholds import Thresholds, ThresholdsConfig, served_with

if TYPE_CHECKING:
    from focus_core.variants.base import AttentionCall, Variant


@dataclass(frozen=True)
class Programme:
    """What the dynamic programme found.

    Attributes:
        table: ``table[u][m]`` best performance with ``m`` reductions among the first ``u`` units; None where there
            cannot be as many.
        taken: ``taken[u][m]`` whether that state reduces unit ``u`` (1 for the first).
        reduced: for each number of reductions, the units of the best state.
        evaluations: how often performance was measured.
    """

    table: list[list[float | None]]
    taken: list[list[bool]]
    reduced: list[list[int]]
    evaluations: int

    def state(self, units: int, reductions: int) -> list[int]:
        """The lowered units behind ``table[units][reductions]``, in the order of lowering."""
        found: list[int] = []
        while units and reductions:
            if self.taken[units][reductions]:
                found.append(units - 1)
                reductions -= 1
            units -= 1
        return found[::-1]


def threshold_programme(evaluate: Callable[[Sequence[int]], float], units: int, reductions: int) -> Programme:
    """The paper's dynamic programme over which thresholds to lower.

    ``D[u][m] = max(D[u - 1][m], P(u, m))``: with ``m`` reductions among the first ``u`` units, either the unit ``u`` is
    left alone, or it is the one that the best state of ``D[u - 1][m - 1]`` lowers next. Each unit (a head, or a layer
    of heads) is lowered at most once, so the paper's 1,000 reductions lower 1,000 of 1,024 heads from 0.9 to 0.81.
    Each cell needs a run of the model, about ``units * reductions`` in all.

    Args:
        evaluate: performance (larger is better) of a state: the units that are lowered, in the order of lowering.
        units: how many there are.
        reductions: M, the most that are lowered.

    Raises:
        InvalidInput: nothing to lower, or more than there is.
    """
    if units < 1 or not 1 <= reductions <= units:
        raise InvalidInput(f"{reductions} reductions of {units} thresholds.", f"It can be 1 to {max(1, units)}.")
    states: list[list[int] | None] = [[]] + [None] * reductions
    values: list[float | None] = [evaluate([])] + [None] * reductions
    table, taken, evaluations = [list(values)], [[False] * (reductions + 1)], 1
    for unit in range(units):
        next_states, next_values = list(states), list(values)
        lowered = [False] * (reductions + 1)
        for m in range(1, reductions + 1):
            before = states[m - 1]
            if before is None:
                continue
            value = evaluate([*before, unit])
            evaluations += 1
            known = next_values[m]
            if known is None or value > known:
                next_values[m], next_states[m], lowered[m] = value, [*before, unit], True
        states, values = next_states, next_values
        table.append(list(values))
        taken.append(lowered)
    return Programme(table, taken, [state or [] for state in states], evaluations)


def fit_programme(
    model: nn.Module,
    windows: torch.Tensor,
    variant: Any,
    *,
    reductions: int,
    by: str = "layer",
    start: float = 0.9,
    factor: float = 0.9,
    progress: Callable[[float, str], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> Thresholds:
    """Lower thresholds by the paper's dynamic programme; performance is the likelihood of the windows.

    The paper names neither its measure nor the order of heads: here they are the mean log-likelihood, and the order of
    the model.

    Args:
        model: the pretrained model.
        windows: (W, N) token ids.
        variant: the XAttention settings that the thresholds are for.
        reductions: M, thresholds that are lowered.
        by: ``layer`` lowers all heads of a layer together, ``head`` one head.
        start: threshold to begin with.
        factor: what a reduction multiplies it by.
        progress: told the fraction done.
        cancel: asked at every layer of every window.

    Returns:
        The adapter; its record has the programme's table, the share of pairs that every state of it keeps, and what
        it lowered.
    """
    from focus_core.models.facts import facts_of
    from focus_core.retrofit import retrofit

    if by not in ("layer", "head"):
        raise InvalidInput(f"There is no unit {by!r}.", "It can be layer or head.")
    if not (0 < start <= 1 and 0 < factor < 1):
        raise InvalidInput(f"start is {start} and factor {factor}.", "start is at most 1, factor less.")
    facts = facts_of(model)
    adapter = Thresholds(ThresholdsConfig(facts.layers, facts.heads)).to(next(model.parameters()).device)
    own = [layer for layer in range(variant.dense_layers, facts.layers) if facts.native[layer] is None]
    units = [(layer, slice(None)) for layer in own]
    if by == "head":
        units = [(layer, slice(head, head + 1)) for layer in own for head in range(facts.heads)]
    if reductions > len(units):
        raise InvalidInput(f"{reductions} reductions of {len(units)} thresholds.", f"It can be 1 to {len(units)}.")
    total, runs = 1 + len(units) * reductions, 0
    counter = _AskingCounter(cancel)
    kept: dict[tuple[int, ...], float] = {}

    def lower(state: Sequence[int]) -> None:
        adapter.thresholds.fill_(start)
        for unit in state:
            layer, heads = units[unit]
            adapter.thresholds[layer, heads] *= factor

    def evaluate(state: Sequence[int]) -> float:
        nonlocal runs
        counter.ask()
        if progress is not None:
            progress(min(1.0, runs / total), f"Run {runs + 1} of at most {total}")
        runs += 1
        lower(state)
        losses, shares = zip(*(_read(model, window, counter) for window in windows), strict=True)
        kept[tuple(state)] = sum(shares) / len(shares)
        return -sum(losses) / len(losses)

    with torch.no_grad(), retrofit(model, variant, adapter, recorder=counter):
        found = threshold_programme(evaluate, len(units), reductions)
        lower(found.reduced[reductions])
    adapter.serve = served_with(variant)
    adapter.record = {
        "method": "the paper's dynamic programme",
        "by": by,
        "reductions": reductions,
        "start": start,
        "factor": factor,
        "windows": len(windows),
        "context": windows.shape[1],
        "evaluations": found.evaluations,
        "mean_threshold": round(float(adapter.thresholds.mean()), 4),
        "programme": {
            "table": [[None if v is None else round(v, 6) for v in row] for row in found.table],
            "kept": [
                [None if v is None else round(kept[tuple(found.state(u, m))], 6) for m, v in enumerate(row)]
                for u, row in enumerate(found.table)
            ],
            "taken": found.taken,
            "units": [[layer, heads.start] for layer, heads in units],
            "lowered": [[units[u][0], units[u][1].start] for u in found.reduced[reductions]],
        },
    }
    return adapter


class _AskingCounter(PairCounter):
    """A counter of pairs that ends the run of the model it watches when it is asked to."""

    def __init__(self, cancel: Callable[[], bool] | None) -> None:
        super().__init__()
        self._cancel = cancel

    def ask(self) -> None:
        """Raise Cancelled once the work is no longer wanted."""
        if self._cancel is not None and self._cancel():
            raise Cancelled

    def record(self, call: AttentionCall, variant: Variant) -> None:
        """See PairCounter.record."""
        self.ask()
        super().record(call, variant)


def _read(model: nn.Module, window: torch.Tensor, counter: PairCounter) -> tuple[float, float]:
    """Mean negative log-likelihood of a window's tokens, and the share of pairs that was kept."""
    ids = window[None].to(next(model.parameters()).device)
    loss = float(model(input_ids=ids, labels=ids, use_cache=False).loss)
    shares = counter.kept(0)
    return loss, sum(shares) / len(shares)
