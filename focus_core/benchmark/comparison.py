"""Whole-model comparison of variants on one text: quality, kept pairs, time, memory, with dense always beside them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from focus_core.benchmark.entries import BASELINE, MASKED, Entry, backend_of, counted, resolve, theory
from focus_core.benchmark.prefill import (
    Stopwatch,
    cache_bytes,
    linear_operations,
    peak_bytes,
    prefill,
    rotated,
    spread,
    timed_prefill,
    watched,
)
from focus_core.compat import cache_of
from focus_core.errors import Cancelled, FocusError, InvalidInput, TooLarge, Unsupported
from focus_core.evaluation.environment import environment
from focus_core.evaluation.recorders import PairCounter
from focus_core.jobs.costs import load_average

if TYPE_CHECKING:
    from focus_core.models.loading import Loaded
    from focus_core.variants.base import AttentionCall, Variant

BLOCK = 64
MAX_WINDOWS = 4


class Watch:
    """Recorder: the kept share of each layer, and which backends computed; tells the layer when one is read."""

    def __init__(self, on_layer: Callable[[int], None] = lambda layer: None) -> None:
        self.on_layer = on_layer
        self.pairs = PairCounter()
        self.shares: list[list[float]] = []
        self.backends: set[str] = set()

    def record(self, call: AttentionCall, variant: Variant) -> None:
        """See ``retrofit``."""
        self.pairs.record(call, variant)
        if call.sliding_window is None:
            self.backends.add(backend_of(variant, call))
        self.on_layer(call.layer)

    def next_window(self) -> None:
        """Keep what the last forward showed."""
        self.shares.append(self.pairs.kept(0))

    def by_layer(self) -> list[float]:
        """Mean over windows and heads, one number a layer."""
        return np.mean(self.shares, axis=0).tolist()


def compare(
    loaded: Loaded,
    entries: list[dict[str, Any]],
    text: str,
    lengths: list[int],
    *,
    repeats: int | Mapping[int, int] = 5,
    windows: int | Mapping[int, int] = MAX_WINDOWS,
    load_adapter: Callable[[str], Any] | None = None,
    progress: Callable[[float, str], None] | None = None,
    partial: Callable[[dict[str, Any]], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    """Measure every variant at every length, in one run and on the same tokens.

    At each length N the text's first ``windows`` non-overlapping windows of N tokens are scored (no BOS, N-1 tokens
    each), which also warms up; then the prefill of the first window is timed, all variants interleaved, the order
    rotated at each repeat. Lines that are not served are scored and never timed: nothing would run them.

    Args:
        loaded: the model.
        entries: ``{variant, config, adapter, label}`` each; dense is added as the baseline.
        text: what is read; it must hold the longest length.
        lengths: tokens of a window.
        repeats: timed prefills of each line, for all lengths or by length.
        windows: most windows scored, for all lengths or by length.
        load_adapter: loads an adapter by name; default: from ``data/adapters`` or a folder.
        progress: fraction and sentence.
        partial: called with ``{"about": ...}`` at each length, then ``{"row": ...}`` when a line has been scored and
            again as it is timed; rows of one ``key`` and ``length`` replace one another.
        cancel: asked before each forward pass.

    Returns:
        ``{about, rows, complete}``; see ``_Run`` for the fields of a row.

    Raises:
        InvalidInput: nothing to compare, or a length that the text or model cannot fill.
        Cancelled: when asked to; what was measured has gone to ``partial``.
    """
    run = _Run(loaded, entries, text, lengths, repeats, windows, load_adapter, progress, partial, cancel)
    return run.all()


class _Run:
    """One comparison in progress.

    A row: the line's own fields (see Entry.describe) and ``length``; then

    - quality: ``ppl``, ``nll``, ``scored`` (tokens), ``windows``, and against dense on the same tokens ``ppl_change``
      (a share), ``nll_change`` and its standard error ``nll_change_se``;
    - pairs: ``kept_pairs``, ``kept_by_layer``, ``backend``, ``masked_dense``, ``dense_by_definition``;
    - counted: ``operations`` and ``operations_dense`` of attention, ``kv_bytes_per_token`` over all layers;
    - measured, when served: ``cache_bytes``, ``peak_bytes``, the spreads ``ms`` and ``attention_ms``, and those of the
      ratio to dense in the same repeat, ``ratio`` and ``attention_ratio``;
    - ``complete``: nothing is still to come.
    """

    def __init__(self, loaded, entries, text, lengths, repeats, windows, load_adapter, progress, partial, cancel):
        self.loaded = loaded
        self.progress, self.partial, self.cancel = progress, partial, cancel
        self.load_average = load_average()
        self.lengths = sorted({int(n) for n in lengths})
        if not self.lengths or self.lengths[0] < 2:
            raise InvalidInput(f"The lengths are {self.lengths}.", "A comparison needs lengths of at least 2 tokens.")
        self.repeats, self.windows = (_by_length(given, self.lengths) for given in (repeats, windows))
        if min(*self.repeats.values(), *self.windows.values()) < 1:
            raise InvalidInput(f"repeats is {repeats} and windows {windows}.", "Both must be at least 1.")
        self.ids = self._tokens(text)
        self.entries, self.refused = resolve(entries, loaded.facts, load_adapter or self._shipped_adapter)
        self.rows: dict[tuple[str, int], dict[str, Any]] = {}
        self.about = self._about(text)
        served = [e for e in self.entries if e.variant.served]
        self.total = sum(
            n * (self._windows(n) * len(self.entries) + (self.repeats[n] + 1) * len(served)) for n in self.lengths
        )
        self.done = 0

    def all(self) -> dict[str, Any]:
        for length in self.lengths:
            # Again at each length: a long run's earliest parts may have been let go.
            if self.partial:
                self.partial({"about": self.about})
            dense_nll = None
            alive = []
            for entry in list(self.entries):
                row = self.rows[entry.key, length] = {**entry.describe(), "length": length, "complete": False}
                try:
                    nll = self._score(entry, length, row, dense_nll)
                    if entry.variant.served:
                        self._memory(entry, length, row)
                        alive.append(entry)
                except Cancelled:
                    self._keep_scored(entry, length)
                    raise
                except FocusError as error:
                    self._refuse(entry, length, error.message, error.hint)
                    continue
                except (MemoryError, RuntimeError) as error:
                    if isinstance(error, RuntimeError) and "memory" not in str(error):
                        raise
                    self._refuse(entry, length, f"Not enough memory for {length:,} tokens.", "Try a shorter length.")
                    continue
                dense_nll = nll if dense_nll is None else dense_nll
                row["complete"] = not entry.variant.served
                self._emit(row)
            self._time(alive, length)
        return {"about": self.about, "rows": list(self.rows.values()), "complete": True}

    def _score(self, entry: Entry, length: int, row: dict[str, Any], dense_nll: np.ndarray | None) -> np.ndarray:
        import torch

        from focus_core.adapter import dense_by_definition
        from focus_core.evaluation.likelihood import token_nll
        from focus_core.retrofit import retrofit

        said = ""

        def within(layer: int) -> None:
            if self.progress:
                share = length * (layer + 1) / self.loaded.facts.layers
                self.progress((self.done - length + share) / self.total, said)

        watch, parts = Watch(within), []
        with torch.no_grad(), retrofit(self.loaded.model, entry.variant, adapter=entry.adapter, recorder=watch):
            for w in range(self._windows(length)):
                said = f"Scoring {entry.label} at {length:,} tokens, window {w + 1} of {self._windows(length)}"
                self._step(length, said)
                parts.append(token_nll(self.loaded.model, self.ids[:, w * length : (w + 1) * length]).cpu().numpy()[0])
                watch.next_window()
        nll = np.stack(parts).astype(np.float64)
        if not np.isfinite(nll).all():
            raise Unsupported(f"The model gave values that are not finite in {self.about['dtype']}.", "Use float32.")
        row |= {
            "windows": len(parts),
            "scored": nll.size,
            "nll": float(nll.mean()),
            "ppl": math.exp(float(nll.mean())),
            "kept_pairs": float(np.mean(watch.by_layer())),
            "kept_by_layer": watch.by_layer(),
            "backend": " + ".join(sorted(watch.backends)),
            "masked_dense": entry.variant.name != BASELINE and bool(watch.backends & MASKED),
            "dense_by_definition": dense_by_definition(entry.variant, entry.adapter, length),
            **paired_change(nll, nll if dense_nll is None else dense_nll),
            **self._counts(entry, length),
        }
        return nll

    def _counts(self, entry: Entry, length: int) -> dict[str, float]:
        itemsize, facts = self.loaded.model.dtype.itemsize, self.loaded.facts
        own = counted(entry.variant, facts, length, itemsize)
        dense = counted(self.entries[0].variant, facts, length, itemsize)
        return {
            "operations": own.flops,
            "operations_dense": dense.flops,
            "kv_bytes_per_token": own.kv_bytes_per_token,
        }

    def _memory(self, entry: Entry, length: int, row: dict[str, Any]) -> None:
        from focus_core.retrofit import retrofit

        self._step(length, f"Counting the memory of {entry.label} at {length:,} tokens")
        kept: dict[str, Any] = {}
        model, ids = self.loaded.model, self.ids[:, :length]
        with retrofit(model, entry.variant, adapter=entry.adapter):
            row["peak_bytes"] = peak_bytes(lambda: kept.update(out=prefill(model, ids)), str(ids.device))
        row["cache_bytes"] = cache_bytes(cache_of(kept["out"]))

    def _time(self, entries: list[Entry], length: int) -> None:
        from focus_core.retrofit import retrofit

        device, repeats = str(self.ids.device), self.repeats[length]
        watches = {e.key: Stopwatch(device) for e in entries}
        variants = {e.key: watched(e.variant, watches[e.key]) for e in entries}
        whole: dict[str, list[float]] = {e.key: [] for e in entries}
        inside: dict[str, list[float]] = {e.key: [] for e in entries}
        self.about["order"][str(length)] = []
        try:
            for repeat in range(repeats):
                order = rotated(entries, repeat)
                self.about["order"][str(length)].append([e.label for e in order])
                for entry in order:
                    said = f"Timing {entry.label} at {length:,} tokens, repeat {repeat + 1} of {repeats}"
                    self._step(length, said)
                    with retrofit(self.loaded.model, variants[entry.key], adapter=entry.adapter):
                        whole[entry.key].append(timed_prefill(self.loaded.model, self.ids[:, :length]))
                    inside[entry.key].append(watches[entry.key].take())
                done = repeat + 1
                # Rounds 1, 2, 4, 8, ...: a run that is killed has lost half its repeats at most.
                if done < repeats and done & repeat == 0:
                    self._emit_timed(entries, length, whole, inside)
        finally:
            self._emit_timed(entries, length, whole, inside)

    def _emit_timed(self, entries: list[Entry], length: int, whole: dict, inside: dict) -> None:
        for entry in entries:
            row = self.rows[entry.key, length]
            if whole[entry.key]:
                row |= _timings(entry.key, entries[0].key, whole, inside)
            row["complete"] = len(whole[entry.key]) == self.repeats[length]
            self._emit(row)

    def _keep_scored(self, entry: Entry, length: int) -> None:
        if "ppl" in self.rows[entry.key, length]:
            self._emit(self.rows[entry.key, length])
        else:
            del self.rows[entry.key, length]

    def _refuse(self, entry: Entry, length: int, reason: str, hint: str) -> None:
        if entry is self.entries[0]:
            raise TooLarge(f"Dense, the baseline, cannot run: {reason}", hint)
        del self.rows[entry.key, length]
        self.refused.append({"label": f"{entry.label} at {length:,} tokens", "reason": reason, "hint": hint})
        if self.partial:
            self.partial({"about": self.about})

    def _emit(self, row: dict[str, Any]) -> None:
        if self.partial:
            self.partial({"row": dict(row)})

    def _step(self, tokens: int, said: str) -> None:
        if self.cancel and self.cancel():
            raise Cancelled
        if self.progress:
            self.progress(self.done / self.total, said)
        self.done += tokens

    def _windows(self, length: int) -> int:
        return min(self.windows[length], self.ids.shape[1] // length)

    def _tokens(self, text: str) -> Any:
        import torch

        longest, facts = self.lengths[-1], self.loaded.facts
        if longest > facts.context:
            raise TooLarge(
                f"{facts.name} reads at most {facts.context:,} tokens and {longest:,} were asked for.",
                f"Choose lengths up to {facts.context:,}.",
            )
        ids = self.loaded.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        if len(ids) < longest:
            raise TooLarge(
                f"The text has {len(ids):,} tokens and {longest:,} were asked for.",
                f"Choose lengths up to {len(ids):,}, or a longer text such as the novel Persuasion."
                if len(ids) > 1
                else "Give a longer text: a shipped passage has at least 1,024 tokens.",
            )
        used = ids[: max(n * self.windows[n] for n in self.lengths)]
        return torch.as_tensor(used, dtype=torch.long, device=self.loaded.model.device)[None]

    def _shipped_adapter(self, name: str) -> Any:
        from focus_core.adapter import load_adapter
        from focus_core.assets import adapters

        known = adapters()
        return load_adapter(known[name]["path"] if name in known else name, self.loaded.model)

    def _about(self, text: str) -> dict[str, Any]:
        facts, model = self.loaded.facts, self.loaded.model
        on_card = self.ids.device.type == "cuda"
        return {
            "model": self.loaded.name,
            "revision": facts.revision,
            "note": facts.note,
            "layers": facts.layers,
            "native_layers": sum(own is not None for own in facts.native),
            "dtype": str(model.dtype).removeprefix("torch."),
            "text_hash": hashlib.sha256(text.encode()).hexdigest()[:16],
            "tokens": int(self.ids.shape[1]),
            "lengths": self.lengths,
            "repeats": _said(self.repeats),
            "windows": _said(self.windows),
            "block": BLOCK,
            "load_before": self.load_average,
            "peak_how": "high-water mark of the GPU allocator" if on_card else "sum over torch's own allocations",
            "environment": environment(self.ids.device),
            "labels": [e.label for e in self.entries],
            "refused": self.refused,
            "order": {},
            "theory": theory(self.entries, facts, self.lengths, model.dtype.itemsize, linear_operations(model)),
        }


def paired_change(nll: np.ndarray, dense: np.ndarray) -> dict[str, float]:
    """Change of log-likelihood against dense on the same tokens.

    Args:
        nll: (W, T) of the variant, in nats.
        dense: (W, T) of dense.

    Returns:
        ``nll_change`` (mean), ``nll_change_se`` (over blocks of 64 tokens, pairing keeps the text's own variation out;
        None with fewer than two blocks) and ``ppl_change`` as a share of dense's perplexity.
    """
    difference = nll - dense
    blocks = [row[i : i + BLOCK].mean() for row in difference for i in range(0, len(row) - BLOCK + 1, BLOCK)]
    error = float(np.std(blocks, ddof=1) / math.sqrt(len(blocks))) if len(blocks) > 1 else None
    mean = float(difference.mean())
    return {"nll_change": mean, "nll_change_se": error, "ppl_change": math.expm1(mean)}


def _by_length(given: int | Mapping[int, int], lengths: list[int]) -> dict[int, int]:
    return {n: given[n] if isinstance(given, Mapping) else given for n in lengths}


def _said(counts: dict[int, int]) -> int | dict[str, int]:
    """One number where all lengths have the same, else by length."""
    every = set(counts.values())
    return every.pop() if len(every) == 1 else {str(n): count for n, count in counts.items()}


def _timings(key: str, dense: str, whole: dict[str, list[float]], inside: dict[str, list[float]]) -> dict[str, Any]:
    pairs = list(zip(whole[key], whole[dense], strict=False))
    parts = list(zip(inside[key], inside[dense], strict=False))
    found = {"ms": spread(whole[key]), "attention_ms": spread(inside[key])}
    if pairs:
        found["ratio"] = spread([a / b for a, b in pairs])
        if all(b > 0 for _, b in parts):
            found["attention_ratio"] = spread([a / b for a, b in parts])
    return found
