"""Whether dropping pairs removes noise: the same number of far pairs dropped by Focus, at random, or by their mass.

Window and sinks always stay. Of a query's far keys each way keeps as many as Focus's groups do for that query and
head. ``lowest`` and ``highest`` look at the dense scores of all keys first: they are oracles, and save nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from focus_core.errors import Cancelled, InvalidInput
from focus_core.variants.base import AttentionCall, option
from focus_core.variants.focus import Focus
from focus_core.variants.groups import GroupedVariant

if TYPE_CHECKING:
    import torch

    from focus_core.pattern import GroupPattern

WAYS = ("none", "focus", "random", "lowest", "highest")
"""What is dropped: nothing, what Focus drops, a random choice, the lowest dense mass, the highest."""
_STRIPE_SCORES = 1 << 26


@dataclass(frozen=True)
class Dropping(Focus):
    """Focus's served mask with its far pairs exchanged for as many others; has no name, since it is no variant."""

    drop: str = option("focus", "Which far pairs are dropped.", choices=WAYS)
    seed: int = option(0, "Of the random choice.")

    def __post_init__(self) -> None:
        """Check the fields, and start a list of the entropies that ``attend`` sees."""
        super().__post_init__()
        object.__setattr__(self, "entropies", [])

    @property
    def served(self) -> bool:
        """False: no decoder runs it."""
        return False

    def pattern(self, call: AttentionCall) -> GroupPattern:
        """The pairs that Focus keeps; the other ways keep as many."""
        return GroupedVariant.pattern(self, call)

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """See Variant.attend; every pair is computed, in stripes of queries."""
        import torch

        batch, heads, queries, dim = call.query.shape
        keys = call.key.shape[2]
        key, value = (x.repeat_interleave(heads // x.shape[1], 1) for x in (call.key, call.value))
        scale = dim**-0.5 if call.scale is None else call.scale
        random = torch.Generator(call.query.device).manual_seed(self.seed * 1009 + call.layer)
        rows = max(1, _STRIPE_SCORES // (batch * heads * keys))
        outputs, entropy = [], 0.0
        for start in range(0, queries, rows):
            part = slice(start, min(start + rows, queries))
            scores = (call.query[:, :, part] @ key.transpose(-1, -2)).float() * scale
            if call.softcap is not None:
                scores = call.softcap * torch.tanh(scores / call.softcap)
            keep = self._keep(call, scores, part, random)
            weights = scores.masked_fill(~keep, -torch.inf).softmax(-1)
            entropy += float(torch.special.entr(weights).sum())
            outputs.append(weights.to(value.dtype) @ value)
        self.entropies.append(entropy / (batch * heads * queries))  # type: ignore[attr-defined]
        return torch.cat(outputs, 2)

    def _keep(self, call: AttentionCall, scores: torch.Tensor, rows: slice, random: torch.Generator) -> torch.Tensor:
        """(B, Hq, n, Nk) bool."""
        import torch

        queries, keys = call.query.shape[2], call.key.shape[2]
        i = torch.arange(keys - queries, keys, device=scores.device)[rows, None]
        j = torch.arange(keys, device=scores.device)[None]
        near, causal = (i - j < self.window) | (j < self.sinks), j <= i
        if self.drop == "none":
            return causal.expand_as(scores)
        far = causal & ~near
        assert call.cached is not None, "prepare gives every token its set"
        shared = (call.fresh[:, :, rows, None] & call.cached[:, :, None, :]) != 0
        shared = shared.repeat_interleave(scores.shape[1] // shared.shape[1], 1) & far
        if self.drop != "focus":
            order = scores
            if self.drop == "random":
                order = torch.rand(scores.shape, generator=random, device=scores.device)
            elif self.drop == "highest":
                order = -scores
            best = order.masked_fill(~far, -torch.inf).argsort(-1, descending=True)
            places = torch.arange(keys, device=scores.device).expand_as(best)
            shared = torch.zeros_like(shared).scatter_(-1, best, places < shared.sum(-1, keepdim=True))
        return (near & causal) | shared


def noise(
    loaded: Any,
    adapter: Any,
    settings: dict[str, Any],
    text: str,
    *,
    context: int,
    windows: int | None = None,
    progress: Callable[[float, str], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    """Perplexity and attention entropy of every way to drop as many far pairs as Focus does.

    Args:
        loaded: what ``load_model`` returned.
        adapter: a router.
        settings: of Focus's served mask.
        text: the text.
        context: tokens a window.
        windows: how many; all whole ones by default.
        progress: called with (fraction, sentence).
        cancel: asked between windows.

    Returns:
        ``{context, windows, kept_pairs, ways: {way: {ppl, nll, nll_se, entropy}}}``: entropy in nats, the mean over
        layers, heads and queries; ``nll_se`` of the paired per-window difference to dropping nothing. ``kept_pairs``
        is that of every way but ``none``; hidden states differ between the ways, so the groups of upper layers do too,
        and it is Focus's own.

    Raises:
        InvalidInput: a model with layers that keep a window of their own, or nothing that is far.
        Cancelled: on request.
    """
    import numpy as np
    import torch

    from focus_core.evaluation.likelihood import token_nll
    from focus_core.evaluation.perplexity import windows_of
    from focus_core.evaluation.recorders import PairCounter
    from focus_core.retrofit import retrofit

    if any(window is not None for window in loaded.facts.native):
        raise InvalidInput(f"{loaded.name} has layers with a window of their own.", "Use a model without them.")
    tokens, _ = windows_of(loaded.tokenizer, text, context, windows)
    count, length = tokens.shape
    variants = {way: Dropping(**settings, drop=way) for way in WAYS}
    near = variants["focus"].window + variants["focus"].sinks
    if length <= near:
        raise InvalidInput(f"Nothing is far in {length} tokens: window and sinks keep {near}.", "Use more tokens.")
    sums: dict[str, list[float]] = {way: [] for way in WAYS}
    kept: list[float] = []
    for step, ids in enumerate(tokens):
        for part, (way, variant) in enumerate(variants.items()):
            if cancel is not None and cancel():
                raise Cancelled()
            if progress is not None:
                progress((step + part / len(WAYS)) / count, f"Window {step + 1} of {count}: {way}")
            counter = PairCounter() if way == "focus" else None
            with torch.no_grad(), retrofit(loaded.model, variant, adapter, recorder=counter):
                nll = token_nll(loaded.model, torch.from_numpy(ids)[None])
            sums[way].append(nll.double().mean().item())
            kept += counter.kept(0) if counter else []
    ways = {}
    for way, variant in variants.items():
        difference = np.array(sums[way]) - np.array(sums["none"])
        mean = float(np.mean(sums[way]))
        ways[way] = {
            "ppl": math.exp(mean),
            "nll": mean,
            "nll_se": float(difference.std(ddof=1) / math.sqrt(count)) if count > 1 else None,
            "entropy": float(np.mean(variant.entropies)),  # type: ignore[attr-defined]
        }
    return {"context": length, "windows": count, "kept_pairs": float(np.mean(kept)), "ways": ways}
