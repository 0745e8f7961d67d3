"""A short text looked at while a router trains: the group sets and routing points of its tokens, step by step."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from focus_core.routing.router import Router
from focus_core.trace import Trace
from focus_core.variants import Variant

BASE = "probe.npz"


class Probe:
    """The tokens of the text, and a folder that every look is written to.

    Args:
        loaded: a loaded model.
        text: what its first tokens are taken from.
        tokens: how many at most.
        served: the mask that is served.
        folder: where the files go: ``probe.npz`` (a Trace without groups) and ``step-N.npz`` (``key_bits`` and
            ``query_bits`` (L, R, N) int64, ``key_points.{layer}`` and, where they differ, ``query_points.{layer}``
            (R, N, d_g) float16, ``centroids.{layer}`` (R, K, d_g) float16).
    """

    def __init__(self, loaded: Any, text: str, tokens: int, served: Variant, folder: Path) -> None:
        from focus_core.capture import first_tokens

        self.loaded, self.served, self.folder = loaded, served, folder
        text, found = first_tokens(loaded.tokenizer, text, tokens)
        self.ids = torch.from_numpy(np.asarray(found.ids, np.int64))[None].to(loaded.model.device)
        facts = loaded.facts
        config = served.to_dict()
        provenance = {
            "model": loaded.name,
            "variant": served.name,
            "config": config,
            "layers": facts.layers,
            "heads": facts.heads,
            "kv_heads": facts.kv_heads,
            "native": list(facts.native),
            "window": config["window"],
            "sinks": config["sinks"],
            "groups": config["groups"],
            "recorded": False,
        }
        arrays = {"token_ids": np.asarray(found.ids, np.int32), "byte_span": np.asarray(found.span, np.int32)}
        Trace(provenance, text, list(found.text), arrays).save(folder / BASE)

    @torch.no_grad()
    def look(self, step: int, router: Router) -> str:
        """Write the groups and points after ``step`` steps; returns the file's name."""
        from focus_core.retrofit import retrofit

        watch = _Watch(router)
        with retrofit(self.loaded.model, self.served, adapter=router, recorder=watch):
            # The groups of the last layer are known before its attention runs, and no logits are needed.
            self.loaded.model.base_model(input_ids=self.ids, use_cache=False)
        routers, count = router.bias.shape[1], self.ids.shape[1]
        arrays: dict[str, Any] = dict(watch.points)
        for name, sets in watch.sets.items():
            whole = np.zeros((self.loaded.facts.layers, routers, count), np.int64)
            for layer, value in sets.items():
                whole[layer] = value
            arrays[name] = whole
        name = f"step-{step:05d}.npz"
        temporary = self.folder / f".{name}.{os.getpid()}.npz"
        try:
            np.savez(temporary, **arrays)
            os.replace(temporary, self.folder / name)
        finally:
            temporary.unlink(missing_ok=True)
        return name


class _Watch:
    """Recorder of sets and points."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self.sets: dict[str, dict[int, np.ndarray]] = {"key_bits": {}, "query_bits": {}}
        self.points: dict[str, np.ndarray] = {}

    def record(self, call: Any, variant: Variant) -> None:
        if call.sliding_window is not None:
            return
        self.sets["key_bits"][call.layer] = call.cached[0].cpu().numpy()
        self.sets["query_bits"][call.layer] = call.fresh[0].cpu().numpy()
        keys, queries, centroids = self.router.points(call.layer, call.hidden)
        found = {"key_points": keys[0], "centroids": centroids}
        if self.router.directed:
            found["query_points"] = queries[0]
        for name, value in found.items():
            self.points[f"{name}.{call.layer}"] = value.half().cpu().numpy()
