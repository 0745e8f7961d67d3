"""Bytes and operations of cached forms: known without torch, so that a page can count them."""

from __future__ import annotations


def code_bytes(features: int, itemsize: int, select: str = "features") -> int:
    """Bytes of one key's code in one head: 3k in a 16-bit type, 2.5k as pairs, 2k as a short embedding."""
    return features * itemsize + {"features": features, "pairs": features // 2, "first": 0}[select]


def mla_flops(
    form: str,
    *,
    queries: int,
    keys: int,
    pairs: float,
    heads: int,
    up_heads: int,
    nope: int,
    rope: int,
    value: int,
    rank: int,
) -> float:
    """Operations of one row's attention from the cached latent to the heads' outputs.

    Args:
        form: ``naive`` or ``absorbed``.
        queries: Nq.
        keys: Nk.
        pairs: pairs of query and key that one head keeps.
        heads: H.
        up_heads: heads that keys and values are made for.
        nope: size of a key's part that comes from the latent.
        rope: size of its rotated part.
        value: size of a value.
        rank: size of the latent.
    """
    if form == "naive":
        made = keys * up_heads * (nope + value) * rank
        return 2.0 * (made + heads * pairs * (nope + rope + value))
    folded = queries * heads * (nope + value) * rank
    return 2.0 * (folded + heads * pairs * (2 * rank + rope))


def absorbs(**sizes: int) -> bool:
    """Whether the absorbed form takes fewer operations than the naive one; sizes as ``mla_flops`` without pairs.

    Every query is counted with every key, as in decoding.
    """
    pairs = sizes["queries"] * sizes["keys"]
    return mla_flops("absorbed", pairs=pairs, **sizes) < mla_flops("naive", pairs=pairs, **sizes)
