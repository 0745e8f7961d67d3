"""Runs a text through a model twice, with a variant and dense, and keeps what the pages show as a Trace.

No torch at the top: the length is checked in the app's process as well.
"""

from __future__ import annotations

import datetime
import hashlib
import platform
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from focus_core.budget import BYTE_BUDGET, MAX_SIMILAR_HEADS, TOP_TOKENS, plan_layers, plan_points
from focus_core.edits import Edit, Edited, check
from focus_core.errors import InvalidInput, TooLarge, Unsupported
from focus_core.head_statistics import SIMILAR_HOW, SINK_TOKENS, HeadStatistics
from focus_core.pattern import GroupPattern, Pattern
from focus_core.pattern_blocks import BlockPattern
from focus_core.trace import Trace
from focus_core.watches import Cancel, DenseWatch, Progress, ServedWatch

if TYPE_CHECKING:
    from focus_core.evaluation.likelihood import Scores
    from focus_core.models.tokens import Tokens
    from focus_core.variants import Variant


def capture_trace(
    loaded: Any,
    variant: Variant,
    adapter: Any,
    text: str,
    *,
    text_name: str | None = None,
    adapter_name: str | None = None,
    layers: str | Sequence[int] = "all",
    limit: int | None = None,
    edits: Sequence[Edit] = (),
    byte_budget: int = BYTE_BUDGET,
    progress: Progress = None,
    cancel: Cancel = None,
) -> Trace:
    """Record one text: the groups as served, both likelihoods, dense q and k, pairs and dense mass kept.

    The q and k are the dense pass's, rotated, in float16. Where a value would not fit float16, q and k are rescaled
    by a power of two in opposite directions (their products are unchanged; provenance ``rescaled`` says where).

    Args:
        loaded: what ``load_model`` returned.
        variant: the variant.
        adapter: its trained module, or None.
        text: the text.
        text_name: its name, when it is a shipped one.
        adapter_name: name or folder of the adapter, for the provenance.
        layers: ``all`` or layer numbers; see ``plan_layers``.
        limit: take only the first so many tokens.
        edits: changes of groups by hand, in order; the provenance says which (``edits``).
        byte_budget: largest size of the arrays.
        progress: called with (fraction, sentence) at every layer.
        cancel: asked at every layer.

    Returns:
        The Trace. Provenance has, beside what ``Trace`` lists: ``dense_by_definition`` (the text is no longer than
        window + sinks), ``kept_layers`` (whose q and k are there), ``note`` (what had to be left out), ``summary``.

    Raises:
        InvalidInput: fewer than two tokens, values that are not finite, or edits of what is not there.
        TooLarge: more tokens than the model reads, or layers that do not fit the budget.
        Unsupported: the variant cannot serve the model, or has no groups to edit.
        Cancelled: on request.
    """
    import torch

    from focus_core.evaluation.likelihood import token_scores
    from focus_core.models.tokens import token_texts
    from focus_core.retrofit import retrofit
    from focus_core.variants import make

    began, facts, model = time.perf_counter(), loaded.facts, loaded.model
    support = variant.supports(facts)
    if not support.ok:
        raise Unsupported(f"{variant.name} cannot serve {loaded.name}: {support.reason}")
    text, tokens = first_tokens(loaded.tokenizer, text, limit)
    count = len(tokens)
    check_length(count, facts.context)
    read = variant.read_adapter(adapter)
    routers = getattr(getattr(read, "config", None), "routers", 1)
    check(edits, variant, native=facts.native, layers=facts.layers, routers=routers, tokens=count)
    width = 0 if read is None else variant.routing_width(read.config)
    kept_layers = plan_layers(facts, count, layers, byte_budget, width)
    routed = plan_points(facts, count, kept_layers, byte_budget, width)
    ids = torch.from_numpy(np.asarray(tokens.ids, np.int64))[None].to(next(model.parameters()).device)

    alone = variant.name == "dense"
    served = ServedWatch(facts.layers, progress, cancel, 0.0, 0.45, set(routed))
    start = 0.0 if alone else 0.5
    dense = DenseWatch(facts.layers, progress, cancel, start, 0.9, set(kept_layers), served.patterns)

    def scores() -> Scores:
        return token_scores(model, ids, TOP_TOKENS)

    with torch.no_grad():
        if not alone:
            with retrofit(model, Edited(variant, tuple(edits)) if edits else variant, adapter, recorder=served):
                said = scores()
        _check_recordable(served.patterns.values(), variant)
        with retrofit(model, make("dense"), recorder=dense):
            dense_said = scores()
    said = dense_said if alone else said
    likely = {**_likelihoods(said, ""), **_likelihoods(dense_said, "dense_")}
    if not (np.isfinite(likely["nll"]).all() and np.isfinite(likely["dense_nll"]).all()):
        raise InvalidInput(f"The model gave values that are not finite in {facts.dtype}.", "Load it in float32.")
    patterns = [dense.patterns[layer] for layer in range(facts.layers)]
    arrays = {
        **likely,
        "kept_pairs": np.array([_density(p) for p in patterns], np.float32),
        **_head_figures([dense.heads[layer] for layer in range(facts.layers)]),
        "token_ids": np.asarray(tokens.ids, np.int32),
        "byte_span": np.asarray(tokens.span, np.int32),
        "partial": np.asarray(tokens.partial, bool),
        "word": np.asarray(tokens.word, np.int32),
        **_sets(patterns, facts.native),
        **_blocks(patterns, facts.native),
        **served.points,
        **dense.vectors,
    }
    own = next((p for p, native in zip(patterns, facts.native, strict=True) if native is None), None)
    window, sinks = (own.window, own.sinks) if isinstance(own, GroupPattern | BlockPattern) else (count, 0)
    left_out = facts.layers - len(kept_layers) if layers == "all" else 0
    provenance = {
        "model": loaded.name,
        "revision": facts.revision,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(ids.device),
        "variant": variant.name,
        "config": variant.to_dict(),
        "adapter": adapter_name if adapter is not None else None,
        "text_name": text_name,
        "text_hash": hashlib.sha256(text.encode()).hexdigest()[:16],
        "layers": facts.layers,
        "heads": facts.heads,
        "kv_heads": facts.kv_heads,
        "head_dim": facts.head_dim,
        "rotary": facts.rotary,
        "scale": dense.scale,
        "softcap": dense.softcap,
        "window": window,
        "sinks": sinks,
        "groups": getattr(variant, "groups", None) if "key_bits" in arrays else None,
        "native": list(facts.native),
        "sampled_queries": dense.sampled,
        "sink_tokens": SINK_TOKENS,
        "similar_how": SIMILAR_HOW,
        "kept_layers": kept_layers,
        "rescaled": dense.rescaled,
        "clipped": dense.clipped,
        "dense_by_definition": variant.name == "dense" or count <= variant.dense_within,
        "note": f"q and k of {left_out} layers are left out to stay under {byte_budget / 1e6:,.0f} MB."
        if left_out
        else "",
        "recorded": False,
        "versions": _versions(),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seconds": round(time.perf_counter() - began, 3),
        "summary": summary_of(arrays),
    }
    if isinstance(own, BlockPattern):
        provenance["block_size"] = own.block
    if edits:
        provenance["edits"] = [edit.document() for edit in edits]
    shown = np.unique(np.concatenate([arrays["top_ids"], arrays["dense_top_ids"]])).tolist()
    return Trace(provenance, text, list(tokens.text), arrays, token_texts(loaded.tokenizer, shown))


def first_tokens(tokenizer: Any, text: str, limit: int | None) -> tuple[str, Tokens]:
    """The text's tokens, and the text that they are: at most ``limit``, ending with a whole character."""
    from focus_core.models.tokens import PREFIX_CHARACTERS, Tokens, tokenize

    if limit is None:
        return text, tokenize(tokenizer, text)
    tokens = tokenize(tokenizer, text[: PREFIX_CHARACTERS * limit])
    data, cut = text.encode(), min(limit, len(tokens))
    while cut > 2 and data[(end := tokens.span[cut - 1, 1]) : end + 1] and data[end] & 0xC0 == 0x80:
        cut -= 1
    short = Tokens(tokens.ids[:cut], tokens.text[:cut], tokens.span[:cut], tokens.partial[:cut], tokens.word[:cut])
    return data[: tokens.span[cut - 1, 1]].decode("utf-8", "ignore"), short


def check_length(tokens: int, context: int) -> None:
    """Refuse a text of fewer than two tokens or of more than the model reads."""
    if tokens < 2:
        raise InvalidInput(
            f"The text has {tokens} token{'' if tokens == 1 else 's'}; one is scored by those before it.",
            "Give a text of at least two tokens; a shipped passage has at least 1,024.",
        )
    if tokens > context:
        raise TooLarge(
            f"The text has {tokens:,} tokens; the model reads {context:,}.", f"Take its first {context:,} tokens."
        )


def summary_of(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """The live figures: means over layers and heads, perplexities of the scored tokens."""
    ppl, dense_ppl = (float(np.exp(arrays[name].astype(np.float64).mean())) for name in ("nll", "dense_nll"))
    return {
        "kept_pairs": float(arrays["kept_pairs"].mean()),
        "mass_kept": float(arrays["mass_kept"].mean()),
        "ppl": ppl,
        "dense_ppl": dense_ppl,
        "ppl_change": ppl / dense_ppl - 1,
        "scored_tokens": len(arrays["nll"]),
    }


def _likelihoods(said: Scores, side: str) -> dict[str, np.ndarray]:
    return {
        f"{side}nll": said.nll[0].float().cpu().numpy(),
        f"{side}top_ids": said.top_ids[0].cpu().numpy().astype(np.int32),
        f"{side}top_p": said.top_p[0].cpu().numpy().astype(np.float16),
    }


def _head_figures(layers: list[HeadStatistics]) -> dict[str, np.ndarray]:
    """The (L, Hq) figures, and how alike all heads are where they are not too many."""
    names = ("mass_kept", "entropy", "sink_mass")
    found = {name: np.array([getattr(layer, name) for layer in layers], np.float32) for name in names}
    if found["entropy"].size <= MAX_SIMILAR_HEADS:
        profiles = np.concatenate([layer.profile for layer in layers])
        found["similar"] = np.clip(profiles @ profiles.T, 0.0, 1.0).astype(np.float16)
    return found


def _density(pattern: Pattern) -> list[float]:
    """(Hq,) kept over causal pairs; heads that keep the same pairs are counted once."""
    routers = [pattern.router_of(head) for head in range(pattern.heads)]
    found = {router: pattern.density(0, routers.index(router)) for router in set(routers)}
    return [found[router] for router in routers]


def _sets(patterns: list[Pattern], native: Sequence[int | None]) -> dict[str, np.ndarray]:
    """``query_bits`` and ``key_bits`` (L, R, N), zero in native layers; empty when no layer has groups."""
    grouped = {layer: p for layer, p in enumerate(patterns) if native[layer] is None and isinstance(p, GroupPattern)}
    if not any(p.key_bits.any() for p in grouped.values()):
        return {}
    routers = max(p.key_bits.shape[1] for p in grouped.values())
    shape = (len(patterns), routers, patterns[0].keys)
    sets = {"query_bits": np.zeros(shape, np.int64), "key_bits": np.zeros(shape, np.int64)}
    for layer, pattern in grouped.items():
        sets["query_bits"][layer], sets["key_bits"][layer] = pattern.query_bits[0], pattern.key_bits[0]
    return sets


def _blocks(patterns: list[Pattern], native: Sequence[int | None]) -> dict[str, np.ndarray]:
    """``block_mask.{layer}`` of the layers that keep whole blocks; all of one block size."""
    own = [(layer, p) for layer, p in enumerate(patterns) if native[layer] is None and isinstance(p, BlockPattern)]
    return {f"block_mask.{layer}": pattern.packed() for layer, pattern in own}


def _check_recordable(patterns: Iterable[Pattern], variant: Variant) -> None:
    """Refuse pairs that a Trace has no arrays for: it would show every pair."""
    if other := next((p for p in patterns if not isinstance(p, GroupPattern | BlockPattern)), None):
        raise Unsupported(
            f"{variant.name} with these settings keeps pairs of a kind that a Trace cannot hold "
            f"({type(other).__name__}).",
            "Measure it with eval or bench, or choose settings that keep whole groups, blocks or every pair.",
        )


def _versions() -> dict[str, str]:
    import torch
    import transformers

    from focus_core.trace import FORMAT

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
        "trace": str(FORMAT),
    }
