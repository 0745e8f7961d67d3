"""Feature codes: which few dimensions of a query or key survive, and how they lie in the cache.

A code has the same number of entries for every token (ELL layout), so the row pointers of the paper's CSR are not
stored: k values and k one-byte dimensions a key and head, 3k bytes in a 16-bit type.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from focus_core.errors import InvalidInput
from focus_core.kernels.sizes import code_bytes

SELECTIONS = ("features", "pairs", "first")
"""``features``: the largest by magnitude. ``pairs``: the largest rotary pairs (u, u + D/2) by length; a rotation keeps
that length, so the choice after it is the choice before it and does not depend on the position. ``first``: the same
first ones for every token, which is a short embedding."""
MAX_DIM = 256


@dataclass(frozen=True)
class Codes:
    """Sparse rows of ``dim`` numbers.

    Attributes:
        values: (..., N, k) signed values; of pairs the first halves, then the second halves.
        ids: (..., N, m) uint8 dimensions in ascending order: m = k, for pairs k/2 (dimensions below D/2), for
            ``first`` 0.
        dim: D of the dense rows.
        select: of ``SELECTIONS``.
    """

    values: torch.Tensor
    ids: torch.Tensor
    dim: int
    select: str = "features"

    def features(self, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        """(..., N, k) dimension of every value."""
        if self.select == "first":
            ids = torch.arange(self.values.shape[-1], dtype=dtype, device=self.values.device)
            return ids.expand(self.values.shape)
        ids = self.ids.to(dtype)
        return ids if self.select == "features" else torch.cat([ids, ids + self.dim // 2], -1)

    def dense(self) -> torch.Tensor:
        """(..., N, D) rows with zeros off their support."""
        rows = self.values.new_zeros(*self.values.shape[:-1], self.dim)
        return rows.scatter_(-1, self.features(), self.values)

    def support(self) -> torch.Tensor:
        """(..., N, D) bool: the dimensions that are stored, zeros among them included."""
        rows = torch.zeros(*self.values.shape[:-1], self.dim, dtype=torch.bool, device=self.values.device)
        return rows.scatter_(-1, self.features(), True)


def check_selection(dim: int, features: int, select: str) -> None:
    """Refuse a number of features that rows of ``dim`` do not have, or an unknown selection."""
    if select not in SELECTIONS:
        raise InvalidInput(f"There is no selection {select!r}.", f"It can be {', '.join(SELECTIONS)}.")
    if dim > MAX_DIM:
        raise InvalidInput(f"A head has {dim} dimensions.", f"One-byte dimensions reach {MAX_DIM}.")
    if not 1 <= features <= dim:
        raise InvalidInput(f"{features} features of {dim} dimensions cannot be kept.", f"It can be 1 to {dim}.")
    if select == "pairs" and (features % 2 or dim % 2):
        raise InvalidInput(
            f"{features} features of {dim} dimensions are no whole pairs.", "Use an even number of both, or features."
        )


def top_features(x: torch.Tensor, features: int, select: str = "features") -> torch.Tensor:
    """The dimensions that survive in each row.

    Always exactly ``features`` of them: equal magnitudes are taken from the lowest dimension on, and zeros are taken
    where a row has no more. Decided in fp32 or wider, so that prefill and decode decide alike on the same values.

    Args:
        x: (..., D).
        features: k.
        select: of ``SELECTIONS``.

    Returns:
        (..., k) int64, ascending; of pairs the first halves ascending, then their partners.
    """
    check_selection(x.shape[-1], features, select)
    if select == "first":
        return torch.arange(features, device=x.device).expand(*x.shape[:-1], features)
    size = x.detach().to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    if select == "features":
        return _largest(size.abs(), features)
    half = x.shape[-1] // 2
    first = _largest(torch.hypot(size[..., :half], size[..., half:]), features // 2)
    return torch.cat([first, first + half], -1)


def _largest(size: torch.Tensor, count: int) -> torch.Tensor:
    """The ``count`` largest of each row, the lowest of equal ones first, in ascending order."""
    # topk breaks ties in no stated order. What is above its last value is certain; of what equals it, the first go in.
    if count == size.shape[-1]:
        return torch.arange(count, device=size.device).expand(size.shape)
    if size.device.type == "cuda":
        return _largest_sorted(size, count)
    largest, index = size.topk(count, -1)
    edge = largest[..., -1:]
    if bool(((size >= edge).sum(-1) == count).all()):
        return index.sort(-1).values
    above, equal = size > edge, size == edge
    room = count - above.sum(-1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(-1) <= room))
    return chosen.nonzero()[:, -1].view(*size.shape[:-1], count)


def _largest_sorted(size: torch.Tensor, count: int) -> torch.Tensor:
    """The same by a stable sort, which keeps equal ones in order: on a GPU, rows this short are sorted faster."""
    return size.sort(dim=-1, descending=True, stable=True).indices[..., :count].sort(-1).values


def sparsify(x: torch.Tensor, features: int, select: str = "features", *, leak: bool = False) -> torch.Tensor:
    """Rows with zeros off their top features, differentiable; the gradient off the support is zero (Eq. 6).

    Args:
        x: (..., D).
        features: k.
        select: of ``SELECTIONS``.
        leak: let the gradient reach every dimension as if nothing had been dropped; the values are the same.
    """
    kept = torch.zeros(x.shape, dtype=torch.bool, device=x.device)
    kept.scatter_(-1, top_features(x, features, select), True)
    sparse = x.masked_fill(~kept, 0)
    # x - x is zero to the last bit: only the gradient differs.
    return sparse + (x - x.detach()).masked_fill(kept, 0) if leak else sparse


def encode(x: torch.Tensor, features: int, select: str = "features") -> Codes:
    """The codes of dense rows (..., N, D)."""
    chosen = top_features(x, features, select)
    stored = {"features": features, "pairs": features // 2, "first": 0}[select]
    return Codes(x.gather(-1, chosen), chosen[..., :stored].to(torch.uint8), x.shape[-1], select)


def pack(codes: Codes) -> torch.Tensor:
    """Codes as rows of bytes (..., N, ``code_bytes``), values first: one tensor that a cache can hold as its keys."""
    return torch.cat([codes.values.contiguous().view(torch.uint8), codes.ids], -1)


def unpack(packed: torch.Tensor, dim: int, features: int, dtype: torch.dtype, select: str = "features") -> Codes:
    """What ``pack`` packed.

    Args:
        packed: (..., N, bytes) uint8.
        dim: D.
        features: k.
        dtype: type of the values.
        select: of ``SELECTIONS``.
    """
    split = features * dtype.itemsize
    if packed.dtype != torch.uint8 or packed.shape[-1] != code_bytes(features, dtype.itemsize, select):
        raise InvalidInput(
            f"Codes of {features} {dtype} {select} take {code_bytes(features, dtype.itemsize, select)} bytes; "
            f"there are {tuple(packed.shape)} of {packed.dtype}."
        )
    values = packed[..., :split]
    if any(step % dtype.itemsize for step in (*values.stride()[:-1], values.storage_offset())):
        # Of one token and head it counts as contiguous whatever its strides, and would stay as it is.
        values = values.clone(memory_format=torch.contiguous_format)
    return Codes(values.view(dtype), packed[..., split:], dim, select)
