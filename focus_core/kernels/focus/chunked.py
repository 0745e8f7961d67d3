"""Focus's attention on any device and type: masked dense work, a stripe of queries at a time."""

from __future__ import annotations

import torch

from focus_core.kernels.masked import causal_tile, masked_attention


def focus_chunked(q, k, v, query_bits, key_bits, *, window, sinks, first_key, scale, softcap, return_lse):
    """Focus's attention by masking; arguments as in ``focus_attention``, already checked.

    It saves memory, not work: every causal pair is computed.
    """
    queries, keys = q.shape[2], k.shape[2]

    def keep(start: int, stop: int, last: int) -> torch.Tensor:
        distance, from_first, causal = causal_tile(start, stop, last, keys, queries, first_key, q.device)
        shared = (query_bits[:, :, start:stop, None] & key_bits[:, :, None, :last]) != 0
        return causal & ((distance < window) | (from_first < sinks) | shared)

    return masked_attention(q, k, v, keep, scale=scale, softcap=softcap, return_lse=return_lse)
