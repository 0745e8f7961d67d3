"""Makes the factors of a latent attention from a pretrained model: one joint factorisation of keys and values a layer.

The best r directions of ``[W_K, W_V]`` alone (its singular vectors, as MHA2MLA takes them) treat every hidden state as
equally likely. Weighted by the hidden states that really occur, what is lost is least for these, and their mean costs
no direction, as a bias holds it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from focus_core.errors import InvalidInput, Unsupported
from focus_core.models.projections import Projection, projections_of
from focus_core.routing.latent import LatentFactors, LatentSettings

if TYPE_CHECKING:
    from focus_core.models.facts import ModelFacts
    from focus_core.variants.base import AttentionCall, Variant

WEIGHTINGS = ("activations", "weights")
_RIDGE = 1e-6
"""Variance given to directions that the hidden states never took, as a share of the mean variance."""


def factorise(
    model: nn.Module,
    windows: torch.Tensor,
    rank: int,
    *,
    rotary: int | None = None,
    weighting: str = "activations",
    progress: Callable[[float, str], None] | None = None,
) -> LatentFactors:
    """Factors of rank ``rank`` for a model whose keys are linear in the hidden state, but for a rotation.

    At full rank and with all rotated numbers kept, the model computes what it did, to rounding. A rotation that is
    dropped is lost at any rank; which pairs of a head's numbers keep theirs is decided by their share of its scores
    (``rotary_share``).

    Args:
        model: a transformers causal language model; it runs dense.
        windows: (W, N) token ids that weigh what is lost, and say which rotations matter.
        rank: r, numbers of the latent a token and layer.
        rotary: rotated numbers of each KV head's key that are kept, a quarter of those that rotate by default; 0 for
            models that rotate none.
        weighting: ``activations`` loses least on these windows' hidden states, ``weights`` least of the matrices.
        progress: told the fraction done.

    Returns:
        The factors, in eval mode; ``serve`` holds the settings of the variant ``mla``.

    Raises:
        Unsupported: keys or values that are normalised, or rotated otherwise than by halves of a head.
        InvalidInput: a rank or a rotary part that the model does not have.
    """
    from focus_core.models.facts import attention_modules, facts_of
    from focus_core.retrofit import retrofit
    from focus_core.variants import make

    if weighting not in WEIGHTINGS:
        raise InvalidInput(f"There is no weighting {weighting!r}.", f"It can be {', '.join(WEIGHTINGS)}.")
    facts = facts_of(model)
    if facts.latent is not None:
        raise Unsupported(f"{facts.name} has latent attention of its own.", "The variant mla serves it as it is.")
    if facts.qk_norm:
        raise Unsupported(f"{facts.name} normalises its keys after their projection, which no factor can follow.")
    rotary = default_rotary(facts) if rotary is None else rotary
    settings = LatentSettings(
        facts.layers,
        facts.heads,
        facts.kv_heads,
        facts.head_dim,
        facts.hidden_size,
        rank,
        rotary,
        facts.rotary,
    )
    modules = attention_modules(model)
    seen = _Activations(facts, [projections_of(module, facts.heads, facts.head_dim)[1:] for module in modules])
    for number, window in enumerate(windows):
        with torch.no_grad(), retrofit(model, make("dense"), recorder=seen):
            model(input_ids=window[None].to(model.device), use_cache=False)
        if progress is not None:
            progress((number + 1) / (len(windows) + 1), f"Window {number + 1} of {len(windows)}")
    adapter = LatentFactors(settings).to(model.device)
    with torch.no_grad():
        for layer in range(facts.layers):
            _fit_layer(adapter, layer, seen, weighting)
    adapter.serve = {"rank": rank, "rotary": rotary}
    adapter.record = {"weighting": weighting, "windows": len(windows), "context": windows.shape[1]}
    return adapter.requires_grad_(False).eval()


def default_rotary(facts: ModelFacts) -> int:
    """A quarter of the rotated numbers, in whole pairs, as the published conversions keep."""
    return facts.rotary // 8 * 2


def rotary_share(query_sizes: torch.Tensor, key_sizes: torch.Tensor) -> torch.Tensor:
    """What each rotary pair can contribute to a head's scores: the product of its mean sizes in queries and keys.

    Args:
        query_sizes: (Hkv, P) mean 2-norm of each pair over the queries of all heads that share a KV head.
        key_sizes: (Hkv, P) of the keys.
    """
    return query_sizes * key_sizes


def joint_factors(
    weight: torch.Tensor, bias: torch.Tensor, rank: int, mean: torch.Tensor | None, covariance: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The factors of rank ``rank`` that lose least of ``x @ weight + bias``.

    With ``C = L L'`` the covariance of x, the first r right singular vectors V of ``L' W`` give ``x W V V'``: no
    matrices of that rank lose less on average (Eckart and Young). What is lost of the mean is put into the bias.

    Args:
        weight: (d, m) in fp64.
        bias: (m,).
        rank: r.
        mean: (d,) of the hidden states; None for 0.
        covariance: (d, d); None for the identity, which weighs the matrix alone.

    Returns:
        down (d, r), up (m, r) and bias (m,).
    """
    weighted = weight
    if covariance is not None:
        size = covariance.shape[0]
        ridge = _RIDGE * covariance.diagonal().mean().clamp_min(1e-30)
        root = torch.linalg.cholesky(covariance + ridge * torch.eye(size, dtype=weight.dtype, device=weight.device))
        weighted = root.mT @ weight
    up = torch.linalg.svd(weighted, full_matrices=False)[2][:rank].mT
    down = weight @ up
    if mean is not None:
        bias = bias + mean @ weight - mean @ down @ up.mT
    return down, up, bias


def _fit_layer(adapter: LatentFactors, layer: int, seen: _Activations, weighting: str) -> None:
    settings = adapter.config
    dim, kv_heads, half = settings.head_dim, settings.kv_heads, settings.rotated // 2
    if settings.rotary:
        share = rotary_share(seen.query_sizes[layer], seen.key_sizes[layer])
        pairs = share.topk(settings.rotary // 2, -1).indices.sort(-1).values
        kept = torch.cat([pairs, pairs + half], -1)
        mask = torch.ones(kv_heads, dim, dtype=torch.bool, device=kept.device).scatter_(1, kept, False)
        adapter.kept[layer] = kept
        adapter.others[layer] = mask.nonzero()[:, 1].view(kv_heads, -1)
    read = seen.read[layer]
    offsets = torch.arange(kv_heads, device=adapter.others.device)[:, None] * dim
    columns = (adapter.others[layer] + offsets).flatten()
    keys, values = read[0].part(lambda x: x[..., columns]), read[1]
    weight = torch.cat([keys.weight, values.weight], 1).double()
    bias = torch.cat(
        [weight.new_zeros(p.weight.shape[1]) if p.bias is None else p.bias.double() for p in (keys, values)]
    )
    moments = seen.moments(layer) if weighting == "activations" else (None, None)
    down, up, bias = joint_factors(weight, bias, settings.rank, *moments)
    split = len(columns)
    adapter.down[layer] = down
    adapter.up_k[layer] = up[:split].view_as(adapter.up_k[layer])
    adapter.up_v[layer] = up[split:].view_as(adapter.up_v[layer])
    adapter.bias_k[layer] = bias[:split].view_as(adapter.bias_k[layer])
    adapter.bias_v[layer] = bias[split:].view_as(adapter.bias_v[layer])


class _Activations:
    """A recorder of every layer's hidden states and of the sizes of rotary pairs; it checks what it is told of them."""

    def __init__(self, facts: ModelFacts, read: list[tuple[Projection, ...]]) -> None:
        self.facts, self.read = facts, read
        self.tokens = [0] * facts.layers
        self.sums: list[Any] = [0.0] * facts.layers
        self.squares: list[Any] = [0.0] * facts.layers
        self.query_sizes: list[Any] = [0.0] * facts.layers
        self.key_sizes: list[Any] = [0.0] * facts.layers

    def record(self, call: AttentionCall, variant: Variant) -> None:
        layer, facts = call.layer, self.facts
        self._check(call)
        rows = call.hidden.flatten(0, 1).double()
        self.tokens[layer] += len(rows)
        self.sums[layer] = self.sums[layer] + rows.sum(0)
        self.squares[layer] = self.squares[layer] + rows.mT @ rows
        if facts.rotary:
            for name, x in (("query_sizes", call.query), ("key_sizes", call.key)):
                sizes = _pair_sizes(x, facts.rotary).double().mean((0, 2)).view(facts.kv_heads, -1, facts.rotary // 2)
                getattr(self, name)[layer] = getattr(self, name)[layer] + sizes.mean(1)

    def moments(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean (d,) and covariance (d, d) of a layer's hidden states."""
        mean = self.sums[layer] / self.tokens[layer]
        return mean, self.squares[layer] / self.tokens[layer] - torch.outer(mean, mean)

    def _check(self, call: AttentionCall) -> None:
        """Refuse keys that are not the projection's, rotated by halves, and values that are not the projection's."""
        read, rotated = self.read[call.layer], self.facts.rotary
        slack = 1e-3 if call.hidden.dtype in (torch.float32, torch.float64) else 3e-2
        for what, project, given in zip(("keys", "values"), read, (call.key, call.value), strict=True):
            made = project(call.hidden).unflatten(-1, (self.facts.kv_heads, -1)).transpose(1, 2)
            pairs = [(made, given)]
            if what == "keys" and rotated:
                pairs = [(_pair_sizes(made, rotated), _pair_sizes(given, rotated))]
                pairs.append((made[..., rotated:], given[..., rotated:]))
            for ours, theirs in pairs:
                if ours.numel() and (ours - theirs).abs().max() > slack * theirs.abs().max():
                    raise Unsupported(
                        f"Layer {call.layer} does more to its {what} than project and rotate them by halves of a head, "
                        f"which no factor can follow."
                    )


def _pair_sizes(x: torch.Tensor, rotated: int) -> torch.Tensor:
    """(B, H, N, P) 2-norms of the pairs (u, u + rotated / 2) of (B, H, N, D)."""
    half = rotated // 2
    return torch.hypot(x[..., :half], x[..., half:rotated])
