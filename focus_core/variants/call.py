"""What a layer asks of a variant, and what the variant keeps of its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from focus_core.cache import Memo
    from focus_core.steps import Steps


@dataclass(frozen=True)
class Prepared:
    """What a variant derives from the hidden state before attention runs.

    ``cached`` (B, R, N, ...) is kept beside K/V, one entry a token; ``fresh`` is only for the new queries.
    """

    cached: torch.Tensor | None = None
    fresh: Any = None


@dataclass(frozen=True)
class NewTokens:
    """One layer's new tokens, as its cache is about to keep them.

    Attributes:
        key, value: (B, Hkv, N, D), what the model would cache; the key rotated already.
        hidden: (B, N, d), the input of the q/k/v projections.
        layer: index of the layer in the model.
        adapter: as in ``AttentionCall``.
        derive: as in ``AttentionCall``.
    """

    key: torch.Tensor
    value: torch.Tensor
    hidden: torch.Tensor
    layer: int
    adapter: Any = None
    derive: Callable[[], Any] | None = None

    @property
    def derived(self) -> Any:
        """What ``Variant.derive`` made of this layer's weights."""
        return None if self.derive is None else self.derive()


@dataclass(frozen=True)
class Packed:
    """What a cache keeps of new tokens: ``key`` and ``value`` (B, Hkv, N, ...), the last size 0 for nothing at all.

    ``state`` (B, R, N, ...) is kept beside them and comes back, of all tokens, as ``AttentionCall.cached``; a variant
    that gives one here prepares none.
    """

    key: torch.Tensor
    value: torch.Tensor
    state: torch.Tensor | None = None


@dataclass(frozen=True)
class AttentionCall:
    """One layer's attention, as the model asks for it.

    Attributes:
        query: (B, Hq, Nq, D), rotated already; queries are the last Nq of the Nk positions.
        key, value: (B, Hkv, Nk, D), the cache included; GQA is not expanded. With a cache, of a variant that packs
            them: what ``pack`` made (B, Hkv, Nk, ...), of size 0 where it kept nothing.
        hidden: (B, Nq, d), the input of the q/k/v projections for the new tokens.
        layer: index of the layer in the model.
        first_key: (B,) index of the first real token of a left-padded row; None when no row is padded.
        scale: factor of the scores before softmax.
        softcap: soft cap of the scores, applied before masking; None when the model has none.
        sliding_window: the layer's own window (token itself included); such layers stay native.
        cached: the variant's per-token state of all Nk keys (see Prepared); None when it has none.
        fresh: the variant's state of the new queries (see Prepared).
        adapter: the trained module that the variant was retrofitted with; None when it needs none.
        memo: of a variant that ``keeps_memo``, what its earlier calls left in this layer's cache; None without a cache.
        new_key, new_value: (B, Hkv, Nq, D), the new tokens' own, as the model computed them, where the cache holds
            what ``pack`` made; None otherwise, as ``key`` and ``value`` are whole.
        positions: (B, Nk) of a variant that ``rotates_cached`` tokens, with a cache: each token's position as the
            model counts them; a padded token's says nothing.
        derive: gives what ``Variant.derive`` made of this layer's weights, once; read it through ``derived``.
        steps: of a decode step in a CUDA graph: ``key``, ``value`` and ``cached`` then have room for more than
            there are, and ``steps.tokens`` says on the device how many those are; None otherwise.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    hidden: torch.Tensor
    layer: int
    scale: float
    first_key: torch.Tensor | None = None
    softcap: float | None = None
    sliding_window: int | None = None
    cached: torch.Tensor | None = None
    fresh: Any = None
    adapter: Any = None
    memo: Memo | None = None
    new_key: torch.Tensor | None = None
    new_value: torch.Tensor | None = None
    positions: torch.Tensor | None = None
    derive: Callable[[], Any] | None = None
    steps: Steps | None = None

    @property
    def derived(self) -> Any:
        """What ``Variant.derive`` made of this layer's weights."""
        return None if self.derive is None else self.derive()
