"""The sets of every token in every layer, recorded window by window; what is recorded is kept, and a later run goes on.

No torch at the top: the command is told about before anything is loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from focus_core.errors import Cancelled, Unsupported

if TYPE_CHECKING:
    from focus_core.variants import AttentionCall, Variant

Progress = Callable[[float, str], None] | None
Cancel = Callable[[], bool] | None


class SetWatch:
    """Recorder that keeps the sets as served, and those that other routers give the same hidden states.

    Attributes:
        found: by ``{name}.{layer}``: (R, N) int64.
    """

    def __init__(self, readers: Mapping[str, Any], query_topk: int, key_topk: int) -> None:
        self.found: dict[str, np.ndarray] = {}
        self._readers, self._topk = readers, (query_topk, key_topk)

    def record(self, call: AttentionCall, variant: Variant) -> None:
        """What ``retrofit`` calls once a layer."""
        from focus_core.pattern import GroupPattern
        from focus_core.routing.sets import top_groups

        if call.sliding_window is not None:
            return
        pattern = variant.pattern(call)
        if not isinstance(pattern, GroupPattern):
            raise Unsupported(f"{variant.name} with these settings has no groups.", "Interpret a router or k-means.")
        self._keep("groups", call.layer, pattern.query_bits[0], pattern.key_bits[0])
        for name, reader in self._readers.items():
            logits = reader.logits(call.layer, call.hidden)
            keys, queries = logits if isinstance(logits, tuple) else (logits, logits)
            sets = (top_groups(x, k)[0].cpu().numpy() for x, k in zip((queries, keys), self._topk, strict=True))
            self._keep(name, call.layer, *sets)

    def _keep(self, name: str, layer: int, queries: np.ndarray, keys: np.ndarray) -> None:
        self.found[f"{name}_queries.{layer}"] = queries
        self.found[f"{name}_keys.{layer}"] = keys


def record_sets(
    loaded: Any,
    variant: Variant,
    adapter: Any,
    windows: np.ndarray,
    readers: Mapping[str, Any],
    folder: Path,
    *,
    progress: Progress = None,
    cancel: Cancel = None,
) -> dict[str, np.ndarray]:
    """Run windows through a model with a variant and keep every token's sets.

    Args:
        loaded: what ``load_model`` returned.
        variant: a variant with groups.
        adapter: its trained module.
        windows: (W, C) token ids.
        readers: by name, adapters with ``logits`` that read the same hidden states, with as many groups.
        folder: where each window's sets are kept; those that are there are not recorded again.
        progress: called with (fraction, sentence) after every window.
        cancel: asked between windows.

    Returns:
        By ``groups_keys``, ``groups_queries`` and ``NAME_keys``, ``NAME_queries``: (L, R, W * C) int64. Layers with a
        sliding window of their own have none: they are -1 in ``layers`` (L,).

    Raises:
        Unsupported: the variant has no groups.
        Cancelled: on request; what was recorded stays.
    """
    import torch

    from focus_core.retrofit import retrofit

    folder.mkdir(parents=True, exist_ok=True)
    key = _key(loaded, variant, adapter, readers)
    each, began, made = [], time.perf_counter(), 0
    for number, ids in enumerate(windows):
        if cancel is not None and cancel():
            raise Cancelled()
        place = folder / f"{_hash([key, ids.tolist()])}.npz"
        found = _read(place)
        if found is None:
            watch = SetWatch(readers, int(getattr(variant, "query_topk", 1)), int(getattr(variant, "key_topk", 1)))
            with torch.no_grad(), retrofit(loaded.model, variant, adapter, recorder=watch):
                batch = torch.from_numpy(np.asarray(ids, np.int64))[None].to(loaded.model.device)
                loaded.model(input_ids=batch, use_cache=False, logits_to_keep=1)
            found = watch.found
            _write(place, found)
            made += 1
        each.append(found)
        if progress is not None:
            left = (time.perf_counter() - began) / max(1, made) * (len(windows) - number - 1) if made else 0.0
            about = f", about {left:,.0f} s left" if left >= 1 else ""
            progress((number + 1) / len(windows), f"Window {number + 1} of {len(windows)} recorded{about}")
    layers = sorted({int(name.split(".")[1]) for name in each[0]})
    if not layers:
        raise Unsupported(
            f"No layer of {loaded.name} has groups.", "Layers with a sliding window of their own have none."
        )
    names = sorted({name.split(".")[0] for name in each[0]})
    joined = {n: np.stack([np.concatenate([w[f"{n}.{layer}"] for w in each], 1) for layer in layers]) for n in names}
    return joined | {"layers": np.array(layers)}


def _key(loaded: Any, variant: Variant, adapter: Any, readers: Mapping[str, Any]) -> list[Any]:
    from focus_core.evaluation.perplexity import weights_hash

    model = [loaded.name, loaded.facts.revision, str(loaded.model.dtype)]
    config = {name: value for name, value in variant.to_dict().items() if name != "backend"}
    read = {name: weights_hash(reader) for name, reader in readers.items()}
    return [*model, variant.name, config, weights_hash(adapter), read]


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:24]


def _read(place: Path) -> dict[str, np.ndarray] | None:
    try:
        with np.load(place, allow_pickle=False) as data:
            return {name: data[name] for name in data.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
        return None


def _write(place: Path, found: dict[str, np.ndarray]) -> None:
    handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=f".{place.stem}-", suffix=".npz")
    os.close(handle)
    try:
        np.savez_compressed(temporary, **found)  # type: ignore[arg-type]
        os.replace(temporary, place)
    finally:
        Path(temporary).unlink(missing_ok=True)


def cost(loaded: Any, tokens: int) -> float:
    """About how many seconds it takes to run so many tokens through the model, from a short dense run of it.

    Args:
        loaded: what ``load_model`` returned.
        tokens: number of tokens.
    """
    import torch

    ids = torch.arange(1, 129, device=loaded.model.device)[None]
    with torch.no_grad():
        loaded.model(input_ids=ids[:, :8], use_cache=False, logits_to_keep=1)
        began = time.perf_counter()
        loaded.model(input_ids=ids, use_cache=False, logits_to_keep=1)
    return (time.perf_counter() - began) / ids.shape[1] * tokens
