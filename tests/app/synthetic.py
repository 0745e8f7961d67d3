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
    points: bool = True,
    maps: bool = False,
    extras: bool = True,
    **provenance,
) -> Trace:
    """A Trace of ``text`` with one directed router a KV head.

    Args:
        text: what is cut into tokens.
        groups: K.
        query_topk: groups that a query looks into.
        window: nearest keys that are kept.
        sinks: first keys that are kept.
        limit: take the first so many tokens.
        seed: of everything that is drawn.
        shift: added to the variant's negative log-likelihood.
        attention: layers whose q and k are there.
        points: whether the routing space is there.
        maps: whether the UMAP coordinates and the k-means control's sets are there, as in a shipped Trace.
        extras: False for a Trace as they were before there were figures of heads and likely tokens.
        **provenance: replaces what the provenance says.
    """
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
    if points or maps:
        add_space(arrays, groups, DIM, points, maps, rng)
    if maps:
        arrays["kmeans_bits"] = np.int64(1) << rng.integers(0, groups, (LAYERS, 1, n))
    written = add_extras(arrays, tokens, rng) if extras and n else {}
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
        "sink_tokens": 4,
        "similar_how": "drawn",
        "recorded": False,
        **provenance,
    }
    trace = Trace(facts, text, tokens, arrays, written)
    arrays["kept_pairs"] = np.array(
        [[trace.pattern(layer).density(0, h) for h in range(HEADS)] for layer in range(LAYERS)], np.float32
    )
    arrays["mass_kept"] = rng.uniform(0.8, 0.95, (LAYERS, HEADS)).astype(np.float32)
    return trace


def make_dense(trace: Trace) -> None:
    """Turn a Trace into one of dense attention: no groups, every pair kept."""
    for name in [
        n for n in trace.arrays if n.split(".")[0] in ("key_bits", "query_bits", "key_points", "query_points")
    ]:
        del trace.arrays[name]
    trace.provenance.update(window=len(trace), sinks=0, groups=None)
    for name in ("kept_pairs", "mass_kept"):
        trace.arrays[name] = np.ones_like(trace.arrays[name])
    trace.arrays["nll"] = trace.arrays["dense_nll"]


def add_space(arrays, groups: int, dim: int, points: bool, maps: bool, rng) -> None:
    """Points near the centroid of a token's first group, and a map on which the groups lie on a ring."""
    angle = 2 * np.pi * np.arange(groups) / groups
    ring = 6 * np.stack([np.cos(angle), np.sin(angle)], -1)
    for layer in range(LAYERS):
        sides = [_first_group(arrays[f"{side}_bits"][layer]) for side in ("key", "query")]
        centroids = _unit(rng.standard_normal((KV_HEADS, groups, dim)))
        if points:
            arrays[f"centroids.{layer}"] = centroids.astype(np.float16)
            for side, group in zip(("key", "query"), sides, strict=True):
                near = np.take_along_axis(centroids, group[..., None], 1)
                placed = _unit(near + 0.25 * rng.standard_normal(near.shape))
                arrays[f"{side}_points.{layer}"] = placed.astype(np.float16)
        if maps:
            placed = np.stack([ring[group] for group in sides], 1)
            arrays[f"map.{layer}"] = (placed + 0.5 * rng.standard_normal(placed.shape)).astype(np.float16)
            arrays[f"map_centroids.{layer}"] = np.stack([ring] * KV_HEADS).astype(np.float16)


def add_extras(arrays, tokens: list[str], rng) -> dict[int, str]:
    """Figures of every head and likely next tokens, the true one often among them; what those write."""
    n, shape = len(tokens), (LAYERS, HEADS)
    arrays["entropy"] = rng.uniform(0.3, 4.0, shape).astype(np.float32)
    arrays["sink_mass"] = rng.uniform(0.02, 0.7, shape).astype(np.float32)
    profile = _unit(np.abs(rng.standard_normal((LAYERS * HEADS, 12))))
    arrays["similar"] = (profile @ profile.T).clip(0, 1).astype(np.float16)
    ids = arrays["token_ids"]
    written = {int(i): token for i, token in zip(ids, tokens, strict=True)}
    for side in ("", "dense_"):
        likely = rng.choice(ids, (n, 8)).astype(np.int32)
        likely[:-1, 0] = ids[1:]
        shares = np.sort(rng.dirichlet(np.full(9, 0.5), n)[:, :8], 1)[:, ::-1]
        arrays[f"{side}top_ids"], arrays[f"{side}top_p"] = likely, shares.astype(np.float16)
    return written


def _first_group(sets: np.ndarray) -> np.ndarray:
    """The lowest group of each set."""
    return np.log2((sets & -sets).astype(np.float64)).astype(np.int64)


def _unit(points: np.ndarray) -> np.ndarray:
    return points / np.linalg.norm(points, axis=-1, keepdims=True)
