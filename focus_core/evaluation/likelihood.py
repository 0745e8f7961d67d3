"""Per-token likelihoods whose (tokens x vocabulary) logits never exist as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_ROWS = 2048
_VOCABULARY = 16384


@dataclass(frozen=True)
class Scores:
    """What a model says of a batch of texts.

    Attributes:
        nll: (B, N-1) fp32, -log p of every token but the first given those before it.
        top_ids: (B, N, k) int64, the most likely next tokens after every token, the likeliest first; k may be 0.
        top_p: (B, N, k) fp32, their probabilities.
    """

    nll: torch.Tensor
    top_ids: torch.Tensor
    top_p: torch.Tensor


def token_nll(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Negative log-likelihood of every token but the first, given the tokens before it; see ``token_scores``.

    Returns:
        (B, N-1) fp32, natural logarithms, on the model's device; differentiable where gradients are on.
    """
    return token_scores(model, ids).nll


def token_scores(model: Any, ids: torch.Tensor, top: int = 0) -> Scores:
    """Likelihood of every token but the first, and the ``top`` likeliest tokens after every one.

    The model runs once, as it would for a user; its head is asked for the last position only, and the hidden states
    it would have read are multiplied in tiles of rows and vocabulary, in fp32 whatever the model's dtype. The last
    position shows whether the tiles are what the model itself computes (a final soft cap is applied; any other
    treatment of the logits sends the call through the model's own logits).

    Args:
        model: a transformers causal language model, retrofitted or not.
        ids: (B, N) token ids without padding, N >= 2.
        top: how many; at most the vocabulary.
    """
    import torch

    ids = ids.to(model.device)
    head = model.get_output_embeddings()
    if not isinstance(head, torch.nn.Linear):
        return _of_logits(model(input_ids=ids, use_cache=False).logits, ids, top)
    seen: list[torch.Tensor] = []

    def keep_last(_module: Any, args: tuple) -> tuple:
        seen.append(args[0])
        return (args[0][:, -1:], *args[1:])

    hook = head.register_forward_pre_hook(keep_last)
    try:
        last = model(input_ids=ids, use_cache=False).logits
    finally:
        hook.remove()
    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    # Of a model on several devices the logits come back to the first one, and the head may be on another.
    place = head.weight.device
    seen = [hidden.to(place) for hidden in seen]
    if len(seen) != 1 or seen[0].shape[:2] != ids.shape or not _agrees(last.to(place), seen[0][:, -1], head, cap):
        return _of_logits(model(input_ids=ids, use_cache=False).logits, ids, top)
    # What follows the last token is scored by nobody, and is foretold all the same.
    rows = ids.shape[1] if top else ids.shape[1] - 1
    goals = torch.nn.functional.pad(ids[:, 1:], (0, rows - ids.shape[1] + 1))
    found = _tiled(seen[0][:, :rows].flatten(0, 1), goals.flatten().to(place), head, cap, top)
    nll, top_ids, top_p = (part.to(ids.device) for part in found)
    shape = len(ids), rows
    return Scores(nll.view(shape)[:, : ids.shape[1] - 1], top_ids.view(*shape, -1), top_p.view(*shape, -1))


def _logits(hidden: torch.Tensor, head: torch.nn.Linear, cap: float | None, start: int) -> torch.Tensor:
    import torch

    part = slice(start, start + _VOCABULARY)
    bias = None if head.bias is None else head.bias[part].float()
    logits = torch.nn.functional.linear(hidden.float(), head.weight[part].float(), bias)
    return logits if cap is None else cap * torch.tanh(logits / cap)


def _agrees(last: torch.Tensor, hidden: torch.Tensor, head: torch.nn.Linear, cap: float | None) -> bool:
    """Whether the model's logits of its last position are the tiles' up to rounding of the model's dtype."""
    import torch

    with torch.no_grad():
        own = last[:, -1].float()
        tiles = torch.cat([_logits(hidden, head, cap, s) for s in range(0, head.weight.shape[0], _VOCABULARY)], -1)
        if own.shape != tiles.shape:
            return False
        slack = max(8 * torch.finfo(last.dtype).eps, 1e-4)
        return bool((own - tiles).abs().max() <= slack * (1 + own.abs().max()))


def _tiled(
    hidden: torch.Tensor, targets: torch.Tensor, head: torch.nn.Linear, cap: float | None, top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(rows,) negative log-likelihoods of the targets, and (rows, top) likeliest tokens with their probabilities."""
    import torch

    parts, goals = hidden.split(_ROWS), targets.split(_ROWS)
    total: list[torch.Tensor | None] = [None] * len(parts)
    best: list[tuple[torch.Tensor, torch.Tensor] | None] = [None] * len(parts)
    wanted = [torch.zeros_like(part, dtype=torch.float32) for part in goals]
    for start in range(0, head.weight.shape[0], _VOCABULARY):
        for i, (rows, goal) in enumerate(zip(parts, goals, strict=True)):
            logits = _logits(rows, head, cap, start)
            lse = logits.logsumexp(-1)
            before = total[i]
            total[i] = lse if before is None else torch.logaddexp(before, lse)
            here = (goal >= start) & (goal < start + logits.shape[-1])
            column = (goal - start).clamp(0, logits.shape[-1] - 1)
            wanted[i] = wanted[i] + torch.where(here, logits.gather(-1, column[:, None])[:, 0], 0.0)
            if top:
                best[i] = _likeliest(best[i], logits.detach(), start, top)
    nll = torch.cat([lse - goal for lse, goal in zip(total, wanted, strict=True)])
    if not top:
        none = hidden.new_zeros((len(hidden), 0), dtype=torch.float32)
        return nll, none.long(), none
    found = [pair for pair in best if pair is not None]
    totals = [lse.detach()[:, None] for lse in total if lse is not None]
    shares = [(value - lse).exp() for (value, _), lse in zip(found, totals, strict=True)]
    return nll, torch.cat([place for _, place in found]), torch.cat(shares)


def _likeliest(
    before: tuple[torch.Tensor, torch.Tensor] | None, logits: torch.Tensor, start: int, top: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and ids of the ``top`` largest of those found before and of a tile that begins at ``start``."""
    import torch

    value, place = logits.topk(min(top, logits.shape[-1]), dim=-1)
    place = place + start
    if before is None:
        return value, place
    value, place = torch.cat([before[0], value], -1), torch.cat([before[1], place], -1)
    value, order = value.topk(min(top, value.shape[-1]), dim=-1)
    return value, place.gather(-1, order)


def _of_logits(logits: torch.Tensor, ids: torch.Tensor, top: int) -> Scores:
    import torch

    parts = [
        torch.nn.functional.cross_entropy(row.float(), goal, reduction="none")
        for one, own in zip(logits[:, :-1], ids[:, 1:], strict=True)
        for row, goal in zip(one.split(_ROWS), own.split(_ROWS), strict=True)
    ]
    nll = torch.cat(parts).view(len(ids), -1)
    if not top:
        none = nll.new_zeros((*ids.shape, 0))
        return Scores(nll, none.long(), none)
    found = []
    for rows in logits.detach().flatten(0, 1).split(_ROWS):
        value, place = rows.float().topk(min(top, rows.shape[-1]), dim=-1)
        found.append((place, (value - rows.float().logsumexp(-1, keepdim=True)).exp()))
    ids_found, shares = (torch.cat(side).view(*ids.shape, -1) for side in zip(*found, strict=True))
    return Scores(nll, ids_found, shares)
