"""What one run recorded: arrays on the CPU with their provenance. Opens without a model, a GPU or torch."""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from focus_core.errors import InvalidInput
from focus_core.pattern import GroupPattern, Pattern
from focus_core.pattern_blocks import BlockPattern

FORMAT = 1


@dataclass(frozen=True)
class Trace:
    """One text through one model, dense and with a variant.

    Arrays (those asked for; L layers, R routers, N tokens, Hq query heads, Hkv KV heads, D head dim):
        ``query_bits``, ``key_bits`` (L, R, N) int64: group sets as served; absent when the variant has no groups.
        ``block_mask.{layer}`` (R, ceil(N/B), ceil(ceil(N/B)/8)) uint8: kept blocks of B = provenance ``block_size``
            tokens, bits along the last axis (R = 1, or a divisor of Hq); where a variant keeps whole blocks.
        ``nll``, ``dense_nll`` (N-1,) float32: -log p of token t+1 given its past, variant and dense.
        ``queries.{layer}`` (Hq, N, D), ``keys.{layer}`` (Hkv, N, D) float16: rotated q and k of the DENSE pass.
        ``kept_pairs`` (L, Hq) float32: kept over causal pairs.
        ``mass_kept`` (L, Hq) float32: dense attention mass that the mask keeps, mean over sampled queries.
        ``token_ids`` (N,) int32; ``byte_span`` (N, 2) int32; ``partial`` (N,) bool; ``word`` (N,) int32.

    Arrays that an older, a long or a shipped Trace may lack:
        ``key_points.{layer}``, ``query_points.{layer}`` (R, N, d_g), ``centroids.{layer}`` (R, K, d_g) float16: the
            router's space; no query points where they are the keys', nothing without a router or in native layers.
        ``map.{layer}`` (R, P, N, 2), ``map_centroids.{layer}`` (R, K, 2) float16: UMAP of that space, keys and then
            queries (P = 1 where they are the keys'); shipped Traces have it for every layer, in place of the points.
        ``kmeans_bits`` (L, R, N) int64: shipped Traces only: key sets of the untrained k-means control (R = 1).
        ``entropy``, ``sink_mass`` (L, Hq) float32: nats, and dense mass on the first ``sink_tokens`` tokens, means
            over the sampled queries of dense attention.
        ``similar`` (L * Hq, L * Hq) float16: cosine of the heads' dense attention, pooled as ``similar_how`` says.
        ``top_ids``, ``dense_top_ids`` (N, 8) int32, ``top_p``, ``dense_top_p`` (N, 8) float16: the likeliest next
            tokens after every token and their probabilities, variant and dense.

    Attributes:
        provenance: JSON values: model, revision, dtype, device, variant, config (of the variant), adapter, text_name,
            text_hash, layers, heads, kv_heads, head_dim, scale, softcap, window, sinks, groups, native (list with each
            layer's own sliding window or null), seconds, versions, time, sampled_queries, recorded (bool), sink_tokens,
            similar_how, rotary (dimensions of a head that rotate in pairs); ``block_size`` where blocks were kept;
            ``edits`` where groups were edited (see ``focus_core.edits``).
        text: the text itself.
        tokens: the token strings, as shown (N).
        arrays: see above.
        top_text: what the tokens in ``top_ids`` and ``dense_top_ids`` write, by id.
    """

    provenance: dict[str, Any]
    text: str
    tokens: list[str]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    top_text: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def attention_layers(self) -> list[int]:
        """Layers whose q and k were recorded."""
        return sorted(int(k.split(".")[1]) for k in self.arrays if k.startswith("queries."))

    @property
    def has_blocks(self) -> bool:
        """Whether the variant kept whole blocks of pairs."""
        return any(name.startswith("block_mask.") for name in self.arrays)

    def pattern(self, layer: int) -> Pattern:
        """The pairs that the variant kept at this layer."""
        p, n = self.provenance, len(self)
        own = p["native"][layer]
        if own is not None:
            return GroupPattern.without_groups(1, n, n, p["heads"], own)
        if (blocks := self.arrays.get(f"block_mask.{layer}")) is not None:
            return BlockPattern.from_packed(blocks, p["block_size"], p["heads"], n, p["window"], p["sinks"])
        if "key_bits" not in self.arrays:
            return GroupPattern.without_groups(1, n, n, p["heads"], p["window"], p["sinks"])
        bits = self.arrays["query_bits"][layer][None], self.arrays["key_bits"][layer][None]
        return GroupPattern(*bits, heads=p["heads"], window=p["window"], sinks=p["sinks"])

    def routing_points(self, layer: int) -> np.ndarray | None:
        """(P, R, N, d_g) float16 points of the routing space: keys, then queries where they differ; None without."""
        if f"key_points.{layer}" not in self.arrays:
            return None
        names = (f"{side}_points.{layer}" for side in ("key", "query"))
        return np.stack([self.arrays[name] for name in names if name in self.arrays])

    def dense_mass(self, layer: int, query: int, heads: list[int] | None = None) -> np.ndarray:
        """(query + 1,) dense attention mass of one query, mean over ``heads`` (default all)."""
        q, k = self.arrays[f"queries.{layer}"], self.arrays[f"keys.{layer}"]
        share = q.shape[0] // k.shape[0]
        own = self.provenance["native"][layer]
        mass = np.zeros(query + 1)
        heads = list(range(q.shape[0])) if heads is None else heads
        for h in heads:
            s = (
                k[h // share, : query + 1].astype(np.float32)
                @ q[h, query].astype(np.float32)
                * self.provenance["scale"]
            )
            if cap := self.provenance["softcap"]:
                s = cap * np.tanh(s / cap)
            if own is not None:
                s[: max(0, query + 1 - own)] = -np.inf
            e = np.exp(s - s.max())
            mass += e / e.sum()
        return mass / len(heads)

    def save(self, path: str | Path, *, compress: bool = False) -> Path:
        """Write one ``.npz`` atomically (arrays, text and provenance); no pickle.

        Args:
            path: the file; its folder is made.
            compress: a tenth smaller where queries and keys are kept, and 35 times slower.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        document = {"format": FORMAT, "provenance": self.provenance, "text": self.text, "tokens": self.tokens}
        if self.top_text:
            document["top_text"] = self.top_text
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-", suffix=".npz")
        os.close(handle)
        try:
            stored: dict[str, Any] = {"document": np.frombuffer(json.dumps(document).encode(), np.uint8), **self.arrays}
            (np.savez_compressed if compress else np.savez)(temporary, **stored)
            os.replace(temporary, path)
        finally:
            Path(temporary).unlink(missing_ok=True)
        return path

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read a Trace file; refuses anything that is not one."""
        try:
            with np.load(path, allow_pickle=False) as data:
                document = json.loads(bytes(data["document"]))
                arrays = {k: data[k] for k in data.files if k != "document"}
        except FileNotFoundError:
            raise InvalidInput(f"There is no Trace file at {path}.") from None
        except (KeyError, ValueError, OSError, zipfile.BadZipFile) as error:
            raise InvalidInput(f"{path} is not a Trace file ({error}).", "Use a file written by `trace`.") from None
        if document.get("format") != FORMAT:
            raise InvalidInput(f"{path} has Trace format {document.get('format')}, this version reads {FORMAT}.")
        written = {int(i): text for i, text in document.get("top_text", {}).items()}
        return cls(document["provenance"], document["text"], document["tokens"], arrays, written)
