"""Traces made without a model: real text, plausible groups, and attention that prefers its own group."""

from __future__ import annotations

import re
import zlib

import numpy as np

from focus_core.trace import Trace

LAYERS, HEADS, KV_HEADS, DIM = 4, 6, 3, 8


def split(text: str) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Words with their leading space, one token a byte beyond ASCII: tokens, byte spans, partial."""
    tokens, spans, partial, place = [], [], [], 0
    for piece in re.findall(r" ?[A-Za-z]{1,6}|\n+|.", text, re.S):
        raw = piece.encode()
        cut = [raw] if piece.isascii() else [raw[i : i + 1] for i in range(len(raw))]
        for part in cut:
            tokens.append(piece)
            spans.append((place, place + len(part)))
            partial.append(len(cut) > 1)
            place += len(part)
    return tokens, np.array(spans, np.int32).reshape(-1, 2), np.array(partial, bool)


def make_trace(
    text: str,
    *,
    groups: int = 16,
    query_topk: int = 2,
    window: int = 64,
    sinks: int = 4,
    limit: int | None = None,
    seed: int = 0,
    shift: float = 0.0,
    attention: tuple[int, ...] = (1, 2),
    **provenance,
) -> Trace:
    """A Trace of ``text`` with one router a KV head; ``shift`` is added to the variant's negative log-likelihood."""
    tokens, spans, partial = split(text)
    n = min(len(tokens), limit or len(tokens))
    tokens, spans, partial = tokens[:n], spans[:n], partial[:n]
    rng = np.random.default_rng(seed)
    keys = np.zeros((LAYERS, KV_HEADS, n), np.int64)
    queries = np.zeros_like(keys)
    for layer in range(LAYERS):
        for router in range(KV_HEADS):
            key = np.array([zlib.crc32(f"{layer}{router}{t.strip().lower()[-3:]}".encode()) for t in tokens]) % groups
            keys[layer, router] = np.int64(1) << key
            for k in range(query_topk):
                queries[layer, router] |= np.int64(1) << ((key * 5 + 3 * k + 1) % groups)
    arrays = {
        "query_bits": queries,
        "key_bits": keys,
        "byte_span": spans,
        "partial": partial,
        "word": np.arange(n, dtype=np.int32),
        "token_ids": rng.integers(0, 49152, n).astype(np.int32),
    }
    base = rng.gamma(1.6, 2.0, max(n - 1, 0)).astype(np.float32)
    arrays["dense_nll"] = base
    arrays["nll"] = (base + rng.standard_t(3, max(n - 1, 0)) * 0.12 + shift).astype(np.float32)
    for layer in attention:
        arrays[f"queries.{layer}"] = (1.5 * rng.standard_normal((HEADS, n, DIM))).astype(np.float16)
        arrays[f"keys.{layer}"] = (1.5 * rng.standard_normal((KV_HEADS, n, DIM))).astype(np.float16)
    facts = {
        "model": "smollm2",
        "revision": "synthetic",
        "dtype": "float32",
        "device": "cpu",
        "variant": "focus",
        "config": {"window": window, "sinks": sinks, "groups": groups, "query_topk": query_topk},
        "adapter": None,
        "text_name": None,
        "text_hash": "0",
        "layers": LAYERS,
        "heads": HEADS,
        "kv_heads": KV_HEADS,
        "head_dim": DIM,
        "scale": DIM**-0.5,
        "softcap": None,
        "window": window,
        "sinks": sinks,
        "groups": groups,
        "native": [None] * LAYERS,
        "seconds": 1.2,
        "versions": {},
        "time": "2026-11-29T12:00:00+00:00",
        "sampled_queries": 64,
        "recorded": False,
        **provenance,
    }
    trace = Trace(facts, text, tokens, arrays)
    arrays["kept_pairs"] = np.array(
        [[trace.pattern(layer).density(0, h) for h in range(HEADS)] for layer in range(LAYERS)], np.float32
    )
    arrays["mass_kept"] = rng.uniform(0.8, 0.95, (LAYERS, HEADS)).astype(np.float32)
    return trace
