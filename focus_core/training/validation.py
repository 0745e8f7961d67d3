"""What chooses the adapter that is kept: the served perplexity of windows that are not trained on."""

from __future__ import annotations

import math
from typing import Any

import torch

from focus_core.adapter import Adapter
from focus_core.processes import Processes
from focus_core.training.settings import TrainSettings
from focus_core.variants import Variant, make

_LOST = 700.0
"""Nats a token whose perplexity is no number any more."""


class Validator:
    """Token-weighted perplexity of the dense and the served model on the same held-back windows.

    Args:
        loaded: the loaded model.
        adapter: what is trained.
        ids: (V,) token ids of the text; its first windows are measured.
        settings: the run.
        processes: those that share the windows.
    """

    def __init__(
        self, loaded: Any, adapter: Adapter, ids: torch.Tensor, settings: TrainSettings, processes: Processes
    ) -> None:
        count = min(settings.validation_windows, len(ids) // settings.context)
        self.windows = ids[: count * settings.context].view(count, settings.context).long()
        self.loaded, self.adapter, self.settings, self.processes = loaded, adapter, settings, processes

    def dense(self) -> float:
        """The dense model's perplexity."""
        return self._perplexity(make("dense"), None)[0]

    def served(self) -> dict[str, float]:
        """``served_ppl`` of the served function, and ``kept_pairs`` over causal pairs."""
        perplexity, pairs = self._perplexity(self.settings.variant_at(None), self.adapter)
        return {"served_ppl": perplexity, "kept_pairs": pairs}

    @torch.no_grad()
    def _perplexity(self, variant: Variant, adapter: Adapter | None) -> tuple[float, float]:
        from focus_core.evaluation.likelihood import token_nll
        from focus_core.evaluation.recorders import PairCounter
        from focus_core.retrofit import retrofit

        model, processes, pairs = self.loaded.model, self.processes, PairCounter()
        seen = torch.zeros(4, dtype=torch.float64)
        # All make as many forwards, also of nothing new: a sharded model is put together by all of them.
        for first in range(0, len(self.windows), processes.count):
            at = first + processes.rank
            window = self.windows[min(at, len(self.windows) - 1)][None]
            with retrofit(model, variant, adapter=adapter, recorder=pairs):
                nll = token_nll(model, window.to(model.device))
            if at < len(self.windows):
                kept = pairs.kept(0)
                seen += torch.tensor([nll.double().sum().item(), nll.numel(), sum(kept), len(kept)]).double()
        total, count, kept_pairs, layers = processes.sum(seen).tolist()
        mean = total / count
        return math.exp(mean) if mean < _LOST else math.nan, kept_pairs / layers
