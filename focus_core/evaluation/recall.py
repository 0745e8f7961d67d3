"""Whether a model finds again what it read: copying, and a pair hidden in a text.

Models too small to answer a question still show whether their attention reaches back: how much better do they predict
what stands earlier in the same window? Every question is asked beside a control of the same length in which it does
not, so that nothing but the earlier occurrence differs.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from focus_core.errors import InvalidInput
from focus_core.evaluation.likelihood import Scores, token_scores
from focus_core.retrofit import retrofit
from focus_core.variants import Variant

DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Shares of the text that stand before a hidden pair."""
_SHORTEST = 16


@dataclass(frozen=True)
class Sample:
    """How much is asked: ``count`` windows of every question, of ``context`` tokens, ``batch`` together."""

    context: int
    count: int = 64
    batch: int = 16
    seed: int = 0


def recall(model: Any, variant: Variant, adapter: Any, ids: torch.Tensor, sample: Sample) -> dict[str, Any]:
    """Copying of random tokens and of text at several distances, and pairs hidden in a text at several depths.

    Args:
        model: a transformers causal language model.
        variant: the variant.
        adapter: its trained module, or None.
        ids: (T,) tokens of a text that the model was not trained on.
        sample: how much is asked.

    Returns:
        ``random`` and ``text``: for each distance P (a block of P tokens stands twice, one copy after the other),
        ``nll`` of the second copy's tokens, ``control`` (the same tokens behind another block) and ``right``, the share
        of them whose likeliest token is the one that follows in the first copy (``right_control`` likewise).
        ``pairs``: for each depth, ``nll`` of the second of two random tokens at the end of the window, where both stand
        side by side at that depth, ``control`` (a text without them) and ``right``. All in nats, means over ``count``.

    Raises:
        InvalidInput: a text or a window that is too short.
    """
    distances = _distances(sample.context)
    if len(ids) < sample.context:
        raise InvalidInput(f"The text has {len(ids)} tokens and a window takes {sample.context}.", "Use a longer text.")
    chance = random.Random(sample.seed)
    asked: dict[str, Callable[..., tuple[torch.Tensor, torch.Tensor]]] = {
        "random": _random_blocks,
        "text": _text_blocks,
    }
    found: dict[str, Any] = {"context": sample.context, "count": sample.count, "seed": sample.seed}
    with torch.no_grad(), retrofit(model, variant, adapter):
        for name, blocks in asked.items():
            found[name] = {
                str(distance): _copied(model, *blocks(ids, model, distance, sample.count, chance), sample.batch)
                for distance in distances
            }
        found["pairs"] = {f"{depth:g}": _hidden(model, ids, depth, sample, chance) for depth in DEPTHS}
    return found


def _distances(context: int) -> list[int]:
    """Powers of two of which a block fits twice, from the longest down to ``_SHORTEST``, every second one."""
    longest = context // 2
    if longest < _SHORTEST:
        raise InvalidInput(f"A window of {context} tokens is too short.", f"Use {2 * _SHORTEST} or more.")
    return sorted(longest >> i for i in range(0, 10, 2) if longest >> i >= _SHORTEST)


def _ordinary(model: Any) -> tuple[int, int]:
    """First id that may be drawn, and the number of ids: 0 ends a text in the shipped vocabularies."""
    return 1, model.get_input_embeddings().weight.shape[0]


def _random_blocks(
    ids: torch.Tensor, model: Any, size: int, count: int, chance: random.Random
) -> tuple[torch.Tensor, torch.Tensor]:
    """(count, size) blocks of random tokens, and others."""
    low, high = _ordinary(model)
    generator = torch.Generator().manual_seed(chance.randrange(2**31))
    one, other = torch.randint(low, high, (2, count, size), generator=generator)
    return one, other


def _text_blocks(
    ids: torch.Tensor, model: Any, size: int, count: int, chance: random.Random
) -> tuple[torch.Tensor, torch.Tensor]:
    """(count, size) passages, and a neighbour of each that does not overlap it, as often before it as after it."""
    one, other = [], []
    for _ in range(count):
        start = chance.randrange(len(ids) - 2 * size + 1)
        parts = [ids[start : start + size], ids[start + size : start + 2 * size]]
        chance.shuffle(parts)
        one.append(parts[0])
        other.append(parts[1])
    return torch.stack(one), torch.stack(other)


def _copied(model: Any, block: torch.Tensor, other: torch.Tensor, batch: int) -> dict[str, float]:
    """What a block's second copy costs, and what it costs behind another block."""
    size = block.shape[1]
    found: dict[str, float] = {}
    for name, right, first in (("nll", "right", block), ("control", "right_control", other)):
        scores = _scores(model, torch.cat([first, block], 1), batch)
        # The first token of the copy cannot be known: nothing says that a copy begins.
        found[name] = round(scores.nll[:, size:].double().mean().item(), 5)
        hits = scores.top_ids[:, size:-1, 0].cpu() == block[:, 1:]
        found[right] = round(hits.double().mean().item(), 5)
    return found


def _hidden(model: Any, ids: torch.Tensor, depth: float, sample: Sample, chance: random.Random) -> dict[str, float]:
    """A pair (a, b) of random tokens stands in a text, whose last tokens are a and b again."""
    low, high = _ordinary(model)
    size, rows = sample.context - 4, []
    place = max(1, round(depth * size))
    for _ in range(sample.count):
        start = chance.randrange(len(ids) - size + 1)
        text = ids[start : start + size]
        pair = torch.tensor(chance.sample(range(low, high), 2))
        other = torch.tensor(chance.sample(range(low, high), 2))
        rows.append([torch.cat([text[:place], first, text[place:], pair]) for first in (pair, other)])
    found: dict[str, float] = {}
    for i, (name, right) in enumerate((("nll", "right"), ("control", "right_control"))):
        scores = _scores(model, torch.stack([row[i] for row in rows]), sample.batch)
        found[name] = round(scores.nll[:, -1].double().mean().item(), 5)
        wanted = torch.stack([row[i][-1] for row in rows])
        found[right] = round((scores.top_ids[:, -2, 0].cpu() == wanted).double().mean().item(), 5)
    return found


def _scores(model: Any, windows: torch.Tensor, batch: int) -> Scores:
    parts = [token_scores(model, part.long(), top=1) for part in windows.split(batch)]
    return Scores(*(torch.cat([getattr(part, name) for part in parts]) for name in ("nll", "top_ids", "top_p")))
