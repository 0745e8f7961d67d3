"""Per-token likelihoods whose (tokens x vocabulary) logits never exist as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_ROWS = 2048
_VOCABULARY = 16384


def token_nll(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Negative log-likelihood of every token but the first, given the tokens before it.

    The model runs once, as it would for a user; its head is asked for the last position only, and the hidden states
    it would have read are multiplied in tiles of rows and vocabulary, in fp32 whatever the model's dtype. The last
    position shows whether the tiles are what the model itself computes (a final soft cap is applied; any other
    treatment of the logits sends the call through the model's own logits).

    Args:
        model: a transformers causal language model, retrofitted or not.
        ids: (B, N) token ids without padding, N >= 2.

    Returns:
        (B, N-1) fp32, natural logarithms, on the model's device; differentiable where gradients are on.
    """
    import torch

    ids = ids.to(model.device)
    head = model.get_output_embeddings()
    if not isinstance(head, torch.nn.Linear):
        return _nll_of_logits(model(input_ids=ids, use_cache=False).logits, ids)
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
    if len(seen) != 1 or seen[0].shape[:2] != ids.shape or not _agrees(last, seen[0][:, -1], head, cap):
        return _nll_of_logits(model(input_ids=ids, use_cache=False).logits, ids)
    hidden = seen[0][:, :-1]
    return _tiled_nll(hidden.flatten(0, 1), ids[:, 1:].flatten(), head, cap).view(len(ids), -1)


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


def _tiled_nll(hidden: torch.Tensor, targets: torch.Tensor, head: torch.nn.Linear, cap: float | None) -> torch.Tensor:
    import torch

    total: list[torch.Tensor | None] = [None] * -(-len(hidden) // _ROWS)
    wanted = [torch.zeros_like(part, dtype=torch.float32) for part in targets.split(_ROWS)]
    for start in range(0, head.weight.shape[0], _VOCABULARY):
        for i, (rows, goal) in enumerate(zip(hidden.split(_ROWS), targets.split(_ROWS), strict=True)):
            logits = _logits(rows, head, cap, start)
            lse = logits.logsumexp(-1)
            before = total[i]
            total[i] = lse if before is None else torch.logaddexp(before, lse)
            here = (goal >= start) & (goal < start + logits.shape[-1])
            column = (goal - start).clamp(0, logits.shape[-1] - 1)
            wanted[i] = wanted[i] + torch.where(here, logits.gather(-1, column[:, None])[:, 0], 0.0)
    return torch.cat([lse - goal for lse, goal in zip(total, wanted, strict=True)])


def _nll_of_logits(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    import torch

    parts = [
        torch.nn.functional.cross_entropy(row.float(), goal, reduction="none")
        for one, own in zip(logits[:, :-1], ids[:, 1:], strict=True)
        for row, goal in zip(one.split(_ROWS), own.split(_ROWS), strict=True)
    ]
    return torch.cat(parts).view(len(ids), -1)
