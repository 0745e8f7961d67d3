"""Makes the factors of a latent attention from a pretrained model: one joint factorisation of keys and values a layer.

The best r directions of ``[W_K, W_V]`` alone (its singular vectors, as MHA2MLA takes them) treat every hidden state as
equally likely. Weighted by the hidden states that really occur, what is lost is least for these, and their mean costs
no direction, as a bias holds it. Measured on *Persuasion*: SmolLM2 with half of its rotation dropped has perplexity
39 weighted and hundreds unweighted at rank 192 of 288 (dense 35); the small GPT-2, whose hidden states are much more
even, 114 weighted and 102 unweighted at rank 32 of 192 (dense 97).

Which pairs of numbers keep their rotation: those whose scores change most without it, which is measured. The published
choice, the product of a pair's sizes in queries and keys, keeps slow pairs too, which hardly turn: with a quarter kept
and no rank lost, it leaves SmolLM2 a perplexity of 122, and the measured choice 50.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from focus_core.errors import InvalidInput, Unsupported
from focus_core.models.projections import Projection, projections_of
from focus_core.routing.latent import LatentFactors, LatentSettings
from focus_core.training.settings import WEIGHTINGS

if TYPE_CHECKING:
    from focus_core.models.facts import ModelFacts
    from focus_core.variants.base import AttentionCall, Variant

Progress = Callable[[float, str], None] | None
_QUERIES = 16
"""Queries of a window whose scores say which rotations matter."""
_RIDGE = 1e-6
"""Variance given to directions that the hidden states never took, as a share of the mean variance."""


def factorise(
    model: nn.Module,
    windows: torch.Tensor,
    rank: int,
    *,
    rotary: int | None = None,
    weighting: str = "activations",
    progress: Progress = None,
) -> LatentFactors:
    """Factors of rank ``rank`` for a model whose keys are linear in the hidden state, but for a rotation.

    At full rank and with all rotated numbers kept, the model computes what it did, to rounding. A rotation that is
    dropped is lost at any rank.

    Args:
        model: a transformers causal language model; it runs dense.
        windows: (W, N) token ids that weigh what is lost, and say which rotations matter.
        rank: r, numbers of the latent a token and layer.
        rotary: rotated numbers of each KV head's key that are kept, half of those that rotate by default; 0 for
            models that rotate none.
        weighting: ``activations`` loses least on these windows' hidden states, ``weights`` least of the matrices.
        progress: told the fraction done.

    Returns:
        The factors, in eval mode; ``serve`` holds the settings of the variant ``mla``.

    Raises:
        Unsupported: keys or values that are normalised, or rotated otherwise than by halves of a head.
        InvalidInput: a rank or a rotary part that the model does not have.
    """
    from focus_core.models.facts import facts_of

    facts = facts_of(model)
    latent_settings(facts, rank, default_rotary(facts) if rotary is None else rotary)
    return factors_of(model, activations(model, windows, progress), rank, rotary=rotary, weighting=weighting)


def factors_of(
    model: nn.Module, seen: Activations, rank: int, *, rotary: int | None = None, weighting: str = "activations"
) -> LatentFactors:
    """``factorise`` from activations that were looked at before, so that several ranks need one look."""
    if weighting not in WEIGHTINGS:
        raise InvalidInput(f"There is no weighting {weighting!r}.", f"It can be {', '.join(WEIGHTINGS)}.")
    settings = latent_settings(seen.facts, rank, default_rotary(seen.facts) if rotary is None else rotary)
    adapter = LatentFactors(settings).to(next(model.parameters()).device)
    with torch.no_grad():
        for layer in range(settings.layers):
            _fit_layer(adapter, layer, seen, weighting)
    adapter.serve = {"rank": rank, "rotary": settings.rotary}
    adapter.record = {"weighting": weighting, "fitted_tokens": seen.tokens[0]}
    return adapter.requires_grad_(False).eval()


def activations(model: nn.Module, windows: torch.Tensor, progress: Progress = None) -> Activations:
    """What a model's layers compute on these windows (W, N), as factors need it; see ``factorise``."""
    from focus_core.models.facts import attention_modules, facts_of
    from focus_core.retrofit import retrofit
    from focus_core.variants import make

    facts = facts_of(model)
    latent_settings(facts, 1, 0)
    modules = attention_modules(model)
    seen = Activations(facts, [projections_of(module, facts.heads, facts.head_dim) for module in modules])
    for number, window in enumerate(windows):
        with torch.no_grad(), retrofit(model, make("dense"), recorder=seen):
            model(input_ids=window[None].to(model.device), use_cache=False)
        if progress is not None:
            progress((number + 1) / len(windows), f"Window {number + 1} of {len(windows)}")
    return seen


def latent_settings(facts: ModelFacts, rank: int, rotary: int) -> LatentSettings:
    """The sizes of a model's factors; see ``factorise`` for what is refused."""
    if facts.latent is not None:
        raise Unsupported(f"{facts.name} has latent attention of its own.", "The variant mla serves it as it is.")
    if facts.qk_norm:
        raise Unsupported(f"{facts.name} normalises its keys after their projection, which no factor can follow.")
    sizes = (facts.layers, facts.heads, facts.kv_heads, facts.head_dim, facts.hidden_size)
    return LatentSettings(*sizes, rank, rotary, facts.rotary)


def default_rotary(facts: ModelFacts) -> int:
    """Half of the rotated numbers, in whole pairs."""
    return facts.rotary // 4 * 2


def joint_factors(
    keys: Projection, values: Projection, rank: int, moments: tuple[torch.Tensor, torch.Tensor] | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The factors of rank ``rank`` that lose least of keys and values ``x @ W + b``.

    With ``C = L L'`` the covariance of x, the first r right singular vectors V of ``L' W`` give ``x W V V'``: no
    matrices of that rank lose less on average (Eckart and Young). Keys are much larger than values in most models, and
    are divided first so that one number of either varies as much. What is lost of the mean is put into the bias.

    Args:
        keys: of weight (d, mk).
        values: of weight (d, mv).
        rank: r.
        moments: mean (d,) and covariance (d, d) of the hidden states in fp64; None takes the identity for C.

    Returns:
        down (d, r), up (mk + mv, r) and bias (mk + mv,), in fp64.
    """
    weight = torch.cat([keys.weight, values.weight], 1).double()
    bias = torch.cat(
        [p.weight.new_zeros(p.weight.shape[1]) if p.bias is None else p.bias for p in (keys, values)]
    ).double()
    weighted, split = weight, keys.weight.shape[1]
    if moments is not None:
        mean, covariance = moments
        ridge = _RIDGE * covariance.diagonal().mean().clamp_min(1e-30)
        one = torch.eye(len(mean), dtype=weight.dtype, device=weight.device)
        weighted = torch.linalg.cholesky(covariance + ridge * one).mT @ weight
    sizes = torch.ones_like(bias)
    if split:
        sizes[:split] = (weighted[:, :split].square().mean() / weighted[:, split:].square().mean()).sqrt()
    found = torch.linalg.svd(weighted / sizes, full_matrices=False)[2][:rank].mT
    down, up = weight / sizes @ found, found * sizes[:, None]
    if moments is not None:
        bias = bias + mean @ weight - mean @ down @ up.mT
    return down, up, bias


def _fit_layer(adapter: LatentFactors, layer: int, seen: Activations, weighting: str) -> None:
    settings = adapter.config
    dim, kv_heads, half = settings.head_dim, settings.kv_heads, settings.rotated // 2
    if settings.rotary:
        pairs = seen.changes[layer].topk(settings.rotary // 2, -1).indices.sort(-1).values
        kept = torch.cat([pairs, pairs + half], -1)
        mask = torch.ones(kv_heads, dim, dtype=torch.bool, device=kept.device).scatter_(1, kept, False)
        adapter.kept[layer], adapter.others[layer] = kept, mask.nonzero()[:, 1].view(kv_heads, -1)
    _, keys, values = seen.read[layer]
    offsets = torch.arange(kv_heads, device=adapter.others.device)[:, None] * dim
    columns = (adapter.others[layer] + offsets).flatten()
    moments = seen.moments(layer) if weighting == "activations" else None
    down, up, bias = joint_factors(keys.part(lambda x: x[..., columns]), values, settings.rank, moments)
    split = len(columns)
    adapter.down[layer] = down
    for name, made in (("up_k", up[:split]), ("up_v", up[split:]), ("bias_k", bias[:split]), ("bias_v", bias[split:])):
        place = getattr(adapter, name)[layer]
        place.copy_(made.view_as(place))


class Activations:
    """A recorder of every layer's hidden states, and of what its scores would lose without each pair's rotation.

    It checks that keys and values are what their projections make, rotated by halves of a head where the facts say so.
    """

    def __init__(self, facts: ModelFacts, read: list[tuple[Projection, ...]]) -> None:
        self.facts, self.read = facts, read
        self.tokens = [0] * facts.layers
        self.sums: list[Any] = [0.0] * facts.layers
        self.squares: list[Any] = [0.0] * facts.layers
        self.changes: list[Any] = [0.0] * facts.layers
        """(Hkv, P) a layer: summed squared change of the scores."""

    def record(self, call: AttentionCall, variant: Variant) -> None:
        """Add one layer's call; what ``retrofit`` calls."""
        layer = call.layer
        plain = [
            project(call.hidden).unflatten(-1, (heads, -1)).transpose(1, 2)
            for project, heads in zip(self.read[layer], (call.query.shape[1], *(2 * [call.key.shape[1]])), strict=True)
        ]
        self._check(call, *plain)
        rows = call.hidden.flatten(0, 1).double()
        self.tokens[layer] += len(rows)
        self.sums[layer] = self.sums[layer] + rows.sum(0)
        self.squares[layer] = self.squares[layer] + rows.mT @ rows
        if self.facts.rotary:
            self.changes[layer] = self.changes[layer] + self._changes(call, plain[0], plain[1])

    def moments(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean (d,) and covariance (d, d) of a layer's hidden states."""
        mean = self.sums[layer] / self.tokens[layer]
        return mean, self.squares[layer] / self.tokens[layer] - torch.outer(mean, mean)

    def _changes(self, call: AttentionCall, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """(Hkv, P): of each pair, the squared difference of its part of the scores with and without its rotation."""
        tokens, rotated = key.shape[2], self.facts.rotary
        rows = torch.linspace(0, tokens - 1, min(tokens, _QUERIES), device=key.device).long()
        causal = (torch.arange(tokens, device=key.device) <= rows[:, None])[..., None]
        share = query.shape[1] // key.shape[1]
        found = []
        for head in range(key.shape[1]):
            group = slice(head * share, (head + 1) * share)
            lost = 0.0
            for sign, q, k in ((1, call.query, call.key), (-1, query, key)):
                q, k = q[:, group][:, :, rows, :rotated].float(), k[:, head, :, :rotated].float()
                products = q[:, :, :, None] * k[:, None, None]
                lost = lost + sign * products.unflatten(-1, (2, -1)).sum(-2)
            found.append((lost * causal).square().sum((0, 1, 2, 3)))
        return torch.stack(found).double()

    def _check(self, call: AttentionCall, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        rotated = self.facts.rotary
        slack = 1e-3 if call.hidden.dtype in (torch.float32, torch.float64) else 3e-2
        checked = [("keys", key, call.key), ("values", value, call.value)]
        # Without a rotation that could be dropped the model's own queries are taken, whatever made them (OPT scales).
        if rotated:
            checked.append(("queries", query, call.query))
        for what, made, given in checked:
            pairs = [(made, given)]
            if what != "values" and rotated:
                pairs = [(_pair_sizes(made, rotated), _pair_sizes(given, rotated))]
                pairs.append((made[..., rotated:], given[..., rotated:]))
            if any(a.numel() and (a - b).abs().max() > slack * b.abs().max() for a, b in pairs):
                raise Unsupported(
                    f"Layer {call.layer} does more to its {what} than project them"
                    + (" and rotate them by halves of a head" if rotated and what != "values" else "")
                    + ", which no factor can follow."
                )


def _pair_sizes(x: torch.Tensor, rotated: int) -> torch.Tensor:
    """(B, H, N, P) 2-norms of the pairs (u, u + rotated / 2) of (B, H, N, D)."""
    half = rotated // 2
    return torch.hypot(x[..., :half].float(), x[..., half:rotated].float())
