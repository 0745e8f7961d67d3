"""What a retrofitted layer may know of masks and positions: left padding, or the reason it must refuse.

The N x N mask is never built: the model is given the 2D padding mask alone, and everything that the 2D mask cannot
say (packed documents, image blocks, holes) is refused.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.masking_utils import causal_mask_function, flash_attention_mask

from focus_core.errors import Unsupported

_ONE_TEXT = "Give one text a row, padded on the left, with its attention_mask."


def padding_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Any = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    device: Any = "cpu",
    **kwargs: Any,
) -> torch.Tensor | None:
    """The mask function registered beside the attention: the 2D mask, or None when no token is padded.

    Raises:
        Unsupported: the model asks for more than causal attention in an optional sliding window.
    """
    sizes = {"batch_size": batch_size, "q_length": q_length, "kv_length": kv_length}
    if mask_function is not causal_mask_function:
        _refuse_other_masks(mask_function, batch_size, q_length, q_offset, kv_offset, local_size, device)
    return flash_attention_mask(**sizes, q_offset=q_offset, kv_offset=kv_offset, attention_mask=attention_mask)


def _refuse_other_masks(keeps, batch, queries, q_offset, kv_offset, window, device) -> None:
    """Ask a mask about the pairs that tell a causal window from anything else, one diagonal at a time."""
    row = torch.arange(batch, device=device)[:, None]
    head = torch.zeros((), dtype=torch.long, device=device)
    query = (torch.arange(queries, device=device) + q_offset)[None]
    probes = [(query[:, :-1], query[:, :-1] + 1, False), (query, query, True), (query, query - 1, window != 1)]
    if window is None:
        probes.append((query, torch.full_like(query, kv_offset), True))
    else:
        probes += [(query, query - window + 1, True), (query, query - window, False)]
    for i, j, wanted in probes:
        inside = j >= kv_offset
        try:
            kept = keeps(row, head, i, j.clamp_min(kv_offset)) | torch.zeros_like(i, dtype=torch.bool)
        except Exception as problem:
            raise Unsupported(f"The model's mask cannot be read ({problem}).", _ONE_TEXT) from problem
        if (inside & (kept != wanted)).any():
            raise Unsupported(
                "The model asks for more than a causal mask: attention in both directions, packed documents "
                "(position_ids that restart), image blocks, or a mask of its own.",
                _ONE_TEXT,
            )


def first_key_of(mask: torch.Tensor | None, keys: int) -> torch.Tensor | None:
    """The first real key of each row of a 2D mask; a row without any has ``keys``.

    Args:
        mask: (B, Nk), True or 1 for real tokens; None when all are.
        keys: Nk.

    Returns:
        (B,) int64, or None when no row is padded on the left. Padding on the right changes nothing for the tokens
        before it, as attention is causal.

    Raises:
        Unsupported: a mask that is not 2D, of another length, or with padding between real tokens.
    """
    if mask is None:
        return None
    if not isinstance(mask, torch.Tensor) or mask.dim() != 2:
        shape = tuple(mask.shape) if hasattr(mask, "shape") else type(mask).__name__
        raise Unsupported(f"A retrofit reads 2D padding masks, not {shape}.", _ONE_TEXT)
    if mask.shape[1] != keys:
        raise Unsupported(
            f"The attention_mask has {mask.shape[1]} columns for {keys} tokens.",
            "It needs one column for each token, those in the cache included.",
        )
    real = mask.to(torch.bool)
    count = real.sum(1)
    first = torch.where(count > 0, real.to(torch.uint8).argmax(1), keys)
    last = keys - 1 - real.flip(1).to(torch.uint8).argmax(1)
    holes = (count > 0) & (last - first + 1 != count)
    if holes.any():
        row = int(holes.nonzero()[0])
        raise Unsupported(
            f"The attention_mask of row {row} has padding between real tokens (generation after padding on the right "
            f"makes such holes).",
            "Pad on the left: tokenizer.padding_side = 'left'.",
        )
    return first if bool((first > 0).any()) else None


def check_positions(
    positions: torch.Tensor | None, mask: torch.Tensor | None, first_key: torch.Tensor | None, keys: int, queries: int
) -> None:
    """Refuse position_ids that restart, for several documents would attend to each other.

    Args:
        positions: (B or 1, Nq) position_ids of the new tokens; None when the model was given none.
        mask: (B, Nk) padding mask; positions of padded tokens are not looked at.
        first_key: as ``first_key_of`` gives it.
        keys: Nk.
        queries: Nq.

    Raises:
        Unsupported: a real token's position does not follow that of the token before it.
    """
    if positions is None:
        return
    if positions.dim() != 2 or positions.shape[1] != queries:
        raise Unsupported(f"position_ids of shape {tuple(positions.shape)} for {queries} tokens cannot be read.")
    real = torch.ones_like(positions, dtype=torch.bool) if mask is None else mask[:, keys - queries :].to(torch.bool)
    jumps = (positions.diff(dim=1) != 1) & real[:, 1:] & real[:, :-1]
    past = keys - queries - (0 if first_key is None else first_key[:, None])
    restarts = (positions[:, :1] < past) & real[:, :1]
    if jumps.any() or restarts.any():
        raise Unsupported("The position_ids restart or jump within a row, as in packed documents.", _ONE_TEXT)


def real_positions(first_key: torch.Tensor | None, batch: int, keys: int, queries: int, device: Any) -> torch.Tensor:
    """(B, Nq) positions of the new tokens, counted from the first real one; negative for padding on the left."""
    positions = torch.arange(keys - queries, keys, device=device).expand(batch, -1)
    return positions if first_key is None else positions - first_key[:, None]
