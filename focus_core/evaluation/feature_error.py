"""How far attention with few features is from dense attention, layer by layer, beside embeddings that are short.

Every layer is judged on the dense model's own queries, keys and values, so that no layer's error comes from another's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from focus_core.errors import InvalidInput
from focus_core.kernels.dense import dense_attention
from focus_core.kernels.sfa import sfa_attention, top_features

if TYPE_CHECKING:
    from focus_core.routing.feature_maps import FeatureMaps
    from focus_core.variants.base import AttentionCall, Variant

FIT_WINDOWS, FIT_TOKENS = 2, 1024
"""Of the training novels, what the short embeddings are fitted on: never the text that is measured."""
GRID = (1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2, 3 / 4)
"""Shares of the head's dimensions that are tried: k codes and 1.5 k short dimensions take the same 16-bit bytes."""
METHODS = {
    "features": "top features of queries and keys",
    "pairs": "top rotary pairs of queries and keys",
    "keys": "top features of keys alone",
    "mapped": "top features after fitted maps",
    "trained": "top features after the adapter's maps",
    "short": "short embedding, fitted",
    "pca": "short embedding, principal directions of the keys",
    "plain": "short embedding, the first dimensions",
}
ENTROPY_SHARE = 1 / 4
"""Share of the dimensions that survive where their use is counted: 16 of 64."""


@dataclass(frozen=True)
class LayerMaps:
    """Maps of one layer's queries (Hq, D, D) and keys (Hkv, D, D) in fp32, by method."""

    queries: torch.Tensor
    keys: torch.Tensor

    def apply(self, call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
        """The call's queries and keys after the maps."""
        return call.query.float() @ self.queries.to(call.query.device), call.key.float() @ self.keys.to(call.key.device)


@dataclass
class FeatureErrors:
    """A recorder of a dense pass that tries every method at every number of features.

    Attributes:
        maps: by method and layer; methods without maps take queries and keys as they are.
        methods: names in ``METHODS``, in the order that they are tried.
        grid: numbers of features.
        errors: by method: (number of features, layer) -> relative error of the attention output.
        used: by side, layer -> (H, D) share of the tokens that keep a dimension, of ``entropy_features`` features.
        shared: (features, layer) -> (Hq,) features that a causal pair shares, mean.
    """

    maps: dict[str, dict[int, LayerMaps]]
    methods: Sequence[str]
    grid: Sequence[int]
    entropy_features: int
    report: Callable[[int], None] = lambda layer: None
    errors: dict[str, dict[tuple[int, int], float]] = field(default_factory=dict)
    used: dict[str, dict[int, torch.Tensor]] = field(default_factory=lambda: {"queries": {}, "keys": {}})
    shared: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)

    def record(self, call: AttentionCall, variant: Variant) -> None:
        """Try everything on one layer; layers with their own window are native and have no codes."""
        self.report(call.layer)
        if call.sliding_window is not None:
            return
        options: dict[str, Any] = {"scale": call.scale, "softcap": call.softcap}
        dense = dense_attention(call.query, call.key, call.value, **options).float()
        size = float(dense.square().sum().clamp_min(1e-30))
        for method in self.methods:
            query, key = call.query.float(), call.key.float()
            if found := self.maps.get(method):
                query, key = found[call.layer].apply(call)
            for features in self.grid:
                if method == "pairs" and features % 2:
                    continue
                out = sfa_attention(
                    query,
                    key,
                    call.value.float(),
                    features=features,
                    select=_SELECT.get(method, "features"),
                    sparse="keys" if method == "keys" else "both",
                    **options,
                )
                error = float((out - dense).square().sum())
                self.errors.setdefault(method, {})[features, call.layer] = (error / size) ** 0.5
        self._count(call)

    def _count(self, call: AttentionCall) -> None:
        for side, x in (("queries", call.query), ("keys", call.key)):
            self.used[side][call.layer] = _support(x, self.entropy_features)[0].mean(1).cpu()
        share, tokens = call.query.shape[1] // call.key.shape[1], call.query.shape[2]
        for features in self.grid:
            offered = _support(call.key, features)[0].cumsum(1).repeat_interleave(share, 0)
            both = (_support(call.query, features)[0] * offered).sum((1, 2))
            self.shared[features, call.layer] = (both / (tokens * (tokens + 1) / 2)).cpu()


_SELECT = {"pairs": "pairs", "short": "first", "pca": "first", "plain": "first"}


def _support(x: torch.Tensor, features: int) -> torch.Tensor:
    kept = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    return kept.scatter_(-1, top_features(x, features), 1.0)


def use_entropy(used: torch.Tensor) -> torch.Tensor:
    """Entropy of which dimensions are used (..., D) -> (...), as a share of log D: 1 where all are used alike."""
    share = used / used.sum(-1, keepdim=True)
    return -(share * share.clamp_min(1e-30).log()).sum(-1) / torch.tensor(used.shape[-1], dtype=share.dtype).log()


def fitted_maps(moments: dict[int, tuple[torch.Tensor, torch.Tensor]], share: int) -> dict[str, dict[int, LayerMaps]]:
    """Maps whose first features are short embeddings, from second moments (see ``head_moments``).

    ``short`` and ``mapped`` go through ``balanced_maps``, the best short embedding of the scores; ``pca`` through the
    principal directions of the keys, queries and keys alike.

    Args:
        moments: by layer.
        share: query heads that share a KV head.
    """
    from focus_core.routing.feature_maps import balanced_maps

    found: dict[str, dict[int, LayerMaps]] = {"short": {}, "pca": {}}
    for layer, (queries, keys) in moments.items():
        query_map, key_map = (x.float() for x in balanced_maps(queries, keys))
        directions = torch.linalg.eigh(keys.double())[1].flip(-1).float()
        found["short"][layer] = LayerMaps(query_map.repeat_interleave(share, 0), key_map)
        found["pca"][layer] = LayerMaps(directions.repeat_interleave(share, 0), directions)
    return {**found, "mapped": found["short"]}


def adapter_maps(adapter: FeatureMaps) -> dict[int, LayerMaps]:
    """The maps of a trained adapter, by layer."""
    pairs = zip(adapter.query_map.detach().float(), adapter.key_map.detach().float(), strict=True)
    return {layer: LayerMaps(*pair) for layer, pair in enumerate(pairs)}


def feature_errors(
    loaded: Any,
    ids: torch.Tensor,
    fit: torch.Tensor,
    *,
    adapter: FeatureMaps | None = None,
    progress: Callable[[float, str], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    """Measure one text.

    Args:
        loaded: what ``load_model`` returned.
        ids: (N,) token ids of the text.
        fit: (W, M) token ids that the short embeddings are fitted on.
        adapter: trained maps, tried beside the rest; None for none.
        progress: told fraction and sentence at every layer.
        cancel: asked at every layer.

    Returns:
        JSON values; L are the full layers, listed in ``layers``: ``grid`` (numbers of features), ``errors``
        ``{method: [a list over L for each of grid]}`` (relative error of the layer's attention output, null where a
        method cannot keep so many), ``shared`` (a list over L for each of grid: features that a causal pair shares,
        mean over heads), ``entropy`` ``{features, queries: L x Hq, keys: L x Hkv}``, and the sizes.

    Raises:
        InvalidInput: a text of fewer than two tokens.
        Unsupported: from the retrofit, where the model cannot be served.
        Cancelled: on request.
    """
    from focus_core.errors import Cancelled
    from focus_core.retrofit import retrofit
    from focus_core.routing.feature_maps import head_moments
    from focus_core.variants import make

    facts, model = loaded.facts, loaded.model
    if len(ids) < 2:
        raise InvalidInput(f"The text has {len(ids)} token{'' if len(ids) == 1 else 's'}.", "Give at least two tokens.")

    def tell(start: float, span: float) -> Callable[[float, str], None]:
        def say(share: float, sentence: str) -> None:
            if cancel is not None and cancel():
                raise Cancelled
            if progress is not None:
                progress(start + span * share, sentence)

        return say

    moments = head_moments(model, fit, progress=tell(0.0, 0.25))
    maps = fitted_maps(moments, facts.heads // facts.kv_heads)
    if adapter is not None:
        maps["trained"] = adapter_maps(adapter)
    methods = [m for m in METHODS if (m != "trained" or adapter is not None) and (m != "pairs" or _rotates(facts))]
    grid = sorted({max(1, round(facts.head_dim * share)) for share in GRID})
    layer_told = tell(0.25, 0.75)
    watch = FeatureErrors(
        maps,
        methods,
        grid,
        max(1, round(facts.head_dim * ENTROPY_SHARE)),
        lambda layer: layer_told(layer / facts.layers, f"Layer {layer + 1} of {facts.layers}"),
    )
    with torch.no_grad(), retrofit(model, make("dense"), recorder=watch):
        model(input_ids=ids[None].to(model.device), use_cache=False, logits_to_keep=1)
    layers = sorted(watch.used["keys"])
    return {
        "tokens": len(ids),
        "layers": layers,
        "heads": facts.heads,
        "kv_heads": facts.kv_heads,
        "head_dim": facts.head_dim,
        "grid": grid,
        "errors": {
            method: [[_rounded(found.get((k, layer))) for layer in layers] for k in grid]
            for method, found in watch.errors.items()
        },
        "shared": [[_rounded(float(watch.shared[k, layer].mean())) for layer in layers] for k in grid],
        "entropy": {
            "features": watch.entropy_features,
            **{
                side: [[round(x, 4) for x in use_entropy(used[layer]).tolist()] for layer in layers]
                for side, used in watch.used.items()
            },
        },
        "fit": {"texts": "five Austen novels without the validation slice", "tokens": fit.numel()},
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _rotates(facts: Any) -> bool:
    return facts.rotary == facts.head_dim and facts.head_dim % 2 == 0


def cached_bytes(loaded: Any, ids: torch.Tensor, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Bytes a token of the live cache, dense and with codes, beside the formula.

    Args:
        loaded: what ``load_model`` returned.
        ids: (N,) a few token ids.
        sizes: numbers of features.

    Returns:
        ``{features (null: dense), select, itemsize, measured, formula}``, bytes a token over all layers and KV heads;
        without the layers that the model gives a window of their own.
    """
    from focus_core import compat
    from focus_core.benchmark.prefill import cache_bytes
    from focus_core.retrofit import retrofit
    from focus_core.variants import Shape, make

    facts, model = loaded.facts, loaded.model
    itemsize = next(model.parameters()).dtype.itemsize
    if any(own is not None for own in facts.native):
        return []
    lines: list[tuple[int | None, str]] = [(None, "dense"), *((k, "features") for k in sizes)]
    if _rotates(facts):
        lines += [(k, "pairs") for k in sizes if k % 2 == 0]
    found = []
    for features, select in lines:
        variant = make("dense") if features is None else make("sfa", {"features": features, "select": select})
        with torch.no_grad(), retrofit(model, variant):
            cache = compat.cache_of(model(input_ids=ids[None].to(model.device), use_cache=True))
        shape = Shape(1, facts.heads, facts.kv_heads, facts.head_dim, len(ids), itemsize=itemsize)
        found.append(
            {
                "features": features,
                "select": select,
                "itemsize": itemsize,
                "measured": cache_bytes(cache) / len(ids),
                "formula": facts.layers * variant.cost(shape).kv_bytes_per_token,
            }
        )
    return found
