"""Counted work of attention over a window and sinks, and of every causal pair (a window as long as the text)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from focus_core.variants.base import Cost, Shape

if TYPE_CHECKING:
    from focus_core.models.facts import Latent


def near_pairs(shape: Shape, window: int, sinks: int = 0) -> int:
    """Pairs of one head of one row: each query with its last ``window`` keys and the first ``sinks``."""
    queries = shape.length if shape.queries is None else shape.queries
    first, last, limit = shape.length - queries + 1, shape.length, window + sinks
    # A query that sees n keys keeps min(n, limit): below the limit an arithmetic series, then a constant.
    end = min(last, limit)
    rising = (first + end) * (end - first + 1) // 2 if end >= first else 0
    return rising + limit * max(0, last - max(first - 1, limit))


def cost_of(shape: Shape, pairs: float, keys_read: int) -> Cost:
    """Cost of a call that keeps ``pairs`` a head and row and must read ``keys_read`` keys a KV head and row.

    Each pair costs a product for the score and one for the value; queries, the keys and values read, and the output
    are moved at least once.
    """
    queries = shape.length if shape.queries is None else shape.queries
    moved = 2 * queries * shape.heads + 2 * keys_read * shape.kv_heads
    return Cost(
        flops=4.0 * shape.batch * shape.heads * pairs * shape.head_dim,
        bytes=float(shape.batch * moved * shape.head_dim * shape.itemsize),
        kv_bytes_per_token=2.0 * shape.kv_heads * shape.head_dim * shape.itemsize,
    )


def latent_cost(
    shape: Shape, sizes: Latent, form: str, pairs: float, *, up_heads: int | None = None, rope_heads: int = 1
) -> Cost:
    """Cost of latent attention over what its cache holds, ``pairs`` a head and row; see ``mla_flops``.

    Args:
        shape: of the call.
        sizes: of the latent, the rotated key and the heads.
        form: ``naive`` or ``absorbed``.
        pairs: pairs of query and key of one head.
        up_heads: heads that keys and values are made for; all by default.
        rope_heads: rotated keys that a token caches.
    """
    from focus_core.kernels.sizes import mla_flops

    queries = shape.length if shape.queries is None else shape.queries
    flops = mla_flops(
        form,
        queries=queries,
        keys=shape.length,
        pairs=pairs,
        heads=shape.heads,
        up_heads=up_heads or shape.heads,
        **vars(sizes),
    )
    cached = (sizes.rank + rope_heads * sizes.rope) * shape.itemsize
    moved = queries * shape.heads * (sizes.nope + sizes.rope + sizes.value) * shape.itemsize + shape.length * cached
    return Cost(shape.batch * flops, float(shape.batch * moved), float(cached))


def chunk_pairs(tokens: int, chunk: int = 64) -> int:
    """Pairs of one head whose query and key lie in the same chunk, the token itself included."""
    whole, rest = divmod(tokens, chunk)
    return whole * (chunk * (chunk + 1) // 2) + rest * (rest + 1) // 2
