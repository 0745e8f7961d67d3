"""Block scores and the cumulative cut in numpy, the same as ``focus_core.kernels.xattention`` computes with torch.

For whole causal sequences without padding, as a Trace holds them. A page moves its sliders through these.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MODES = ("antidiagonal", "diagonal", "random", "oracle")
_CELLS = 1 << 22


@dataclass(frozen=True)
class Selection:
    """What the rows of one head keep by their own scores, and why.

    Attributes:
        mask: (n, n) bool.
        order: (n, n) columns in the order in which they are taken: forced ones first, impossible ones last.
        reached: (n, n) share of the row's score held after taking that many of ``order``.
        kept: (n,) how many of ``order`` are taken.
    """

    mask: np.ndarray
    order: np.ndarray
    reached: np.ndarray
    kept: np.ndarray


def sampled(stride: int, mode: str, seed: int = 0) -> list[int]:
    """Which pairs of a tile are sampled: key ``i`` of the tile with query ``sampled(...)[i]`` of it."""
    if mode == "antidiagonal":
        return list(range(stride))[::-1]
    if mode == "diagonal":
        return list(range(stride))
    # torch.randperm: a Fisher-Yates shuffle with the raw numbers of a Mersenne twister seeded as in 2002.
    bits = np.random.RandomState(seed)
    order = list(range(stride))
    for i in range(stride - 1):
        at = i + int(bits.randint(0, 1 << 32, dtype=np.uint32)) % (stride - i)
        order[i], order[at] = order[at], order[i]
    return order


def block_scores(
    q: np.ndarray,
    k: np.ndarray,
    *,
    block: int,
    stride: int,
    mode: str,
    scale: float,
    softcap: float | None = None,
    seed: int = 0,
) -> np.ndarray:
    """Score every block of a causal sequence.

    Args:
        q: (H, N, D).
        k: (H or a divisor of it, N, D).
        block: tokens a side.
        stride: tokens a side of a tile; divides ``block``.
        mode: one of ``MODES``.
        scale: factor of the scores.
        softcap: soft cap, or None.
        seed: of ``random``.

    Returns:
        (H, n, n) float32: attention of the sampled pairs in each block (``oracle``: of all pairs, in queries).
    """
    q, k = np.asarray(q, np.float32), np.asarray(k, np.float32)
    share = len(q) // len(k)
    if mode == "oracle":
        return np.stack([_true(q[h], k[h // share], block, scale, softcap) for h in range(len(q))])
    order = sampled(stride, mode, seed)
    found = []
    for h in range(len(q)):
        mass = tiles(q[h], k[h // share], block, stride, order, scale, softcap)[1]
        found.append(_sum_tiles(mass, block // stride))
    return np.stack(found)


def tiles(
    q: np.ndarray,
    k: np.ndarray,
    block: int,
    stride: int,
    order: list[int],
    scale: float,
    softcap: float | None,
    rows: slice | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Mean sampled score and attention of every tile, for one head.

    Args:
        q: (N, D).
        k: (N, D).
        block: tokens a side; the grid of tiles covers whole blocks.
        stride: tokens a side of a tile.
        order: of :func:`sampled`.
        scale: factor of the scores.
        softcap: soft cap of the means, or None.
        rows: rows of tiles; all when None.

    Returns:
        Two (rows, T) arrays; a tile without real pairs, or after its row, has mean -inf and attention 0.
    """
    count, dim = q.shape
    side = -(-count // block) * block
    width = side // stride
    rows = slice(0, width) if rows is None else rows
    pad = ((0, side - count), (0, 0))
    long_q = np.pad(q, pad).reshape(width, stride, dim)[rows][:, order].reshape(-1, stride * dim)
    long_k = np.pad(k, pad).reshape(width, stride * dim)
    place = np.arange(side).reshape(width, stride)
    pairs = (place[rows][:, order] < count).astype(np.float32) @ (place < count).astype(np.float32).T
    means = long_q @ long_k.T
    means *= scale / np.maximum(pairs, 1)
    if softcap:
        means = softcap * np.tanh(means / softcap)
    later = np.arange(width)[None, :] > np.arange(*rows.indices(width))[:, None]
    means[(pairs == 0) | later] = -np.inf
    return means, softmax(means)


def softmax(rows: np.ndarray) -> np.ndarray:
    """Softmax along the last axis; a row without any finite value is all 0."""
    top = rows.max(-1, keepdims=True)
    found = np.exp(rows - np.where(np.isfinite(top), top, 0))
    return found / np.maximum(found.sum(-1, keepdims=True), np.finfo(np.float32).tiny)


def _sum_tiles(mass: np.ndarray, each: int) -> np.ndarray:
    n = len(mass) // each
    return mass.reshape(n, each, n, each).sum((1, 3))


def _true(q: np.ndarray, k: np.ndarray, block: int, scale: float, softcap: float | None) -> np.ndarray:
    """(n, n) true attention mass of each block, a few rows of blocks at a time."""
    count = len(q)
    n = -(-count // block)
    found = np.zeros((n, n), np.float32)
    step = max(1, _CELLS // (count * block)) * block
    for low in range(0, count, step):
        high = min(low + step, count)
        pairs = pair_scores(q[low:high], k[:high], scale, softcap)
        pairs[np.arange(high)[None, :] > np.arange(low, high)[:, None]] = -np.inf
        mass = np.add.reduceat(softmax(pairs), np.arange(0, high, block), axis=1)
        rows = np.add.reduceat(mass, np.arange(0, high - low, block), axis=0)
        found[low // block : low // block + len(rows), : rows.shape[1]] = rows
    return found


def pair_scores(q: np.ndarray, k: np.ndarray, scale: float, softcap: float | None = None) -> np.ndarray:
    """(Nq, Nk) scores of all pairs of one head, before any mask."""
    pairs = (np.asarray(q, np.float32) @ np.asarray(k, np.float32).T) * np.float32(scale)
    return softcap * np.tanh(pairs / softcap) if softcap else pairs


def select(scores: np.ndarray, threshold: float) -> Selection:
    """Keep the fewest blocks of each row that reach the threshold; column 0 and the row's own block are forced.

    Args:
        scores: (n, n), at least 0.
        threshold: share of a row's score; 1 or more keeps everything.
    """
    n = len(scores)
    row, column = np.arange(n)[:, None], np.arange(n)[None, :]
    possible = column <= row
    forced = ((column == 0) | (column == row)) & possible
    wide = scores.astype(np.float64)
    rank = np.where(forced, wide.max(1, keepdims=True) + 1.0, wide)
    rank[~possible] = -1.0
    order = np.argsort(-rank, axis=1, kind="stable")
    sums = np.cumsum(np.take_along_axis(np.where(possible, wide, 0.0), order, 1), axis=1)
    total = sums[:, -1:]
    before = np.concatenate([np.zeros_like(total), sums[:, :-1]], 1)
    take = (before < threshold * total) | (threshold >= 1.0) | np.take_along_axis(forced, order, 1)
    take &= np.take_along_axis(possible, order, 1)
    mask = np.zeros((n, n), bool)
    np.put_along_axis(mask, order, take, axis=1)
    return Selection(mask, order, sums / np.maximum(total, np.finfo(np.float64).tiny), take.sum(1))


def served(mask: np.ndarray, voters: str) -> np.ndarray:
    """What rows keep: their own choice (``own``), or that of the row before them and their own block (``before``).

    Args:
        mask: (..., n, n) what each row's queries choose.
        voters: ``own`` or ``before``.
    """
    if voters == "own":
        return mask
    moved = np.zeros_like(mask)
    moved[..., 1:, :] = mask[..., :-1, :]
    return moved | np.eye(mask.shape[-1], dtype=bool)


def block_pairs(count: int, block: int) -> np.ndarray:
    """(n, n) causal pairs that each block of ``count`` tokens holds."""
    n = -(-count // block)
    size = np.minimum(block, count - block * np.arange(n))
    pairs = np.tril(np.outer(size, size), -1)
    return pairs + np.diag(size * (size + 1) // 2)


def kept_shares(mask: np.ndarray, true: np.ndarray, count: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Share of the causal pairs, and of the dense attention, that lies in kept blocks.

    Args:
        mask: (..., n, n) kept blocks.
        true: (..., n, n) true mass of each block, of mode ``oracle``.
        count: tokens.
        block: tokens a side of a block.

    Returns:
        Two (...) arrays.
    """
    pairs = block_pairs(count, block)
    held = true.astype(np.float64)
    return (mask * pairs).sum((-2, -1)) / pairs.sum(), (held * mask).sum((-2, -1)) / held.sum((-2, -1))
