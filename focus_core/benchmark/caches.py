"""What decoding remembers, variant by variant on one text: bytes a token, how exact it is, and how fast."""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from focus_core.benchmark.cache_lines import counted_bytes
from focus_core.benchmark.cache_probe import DTYPES, Replay, storage_by_layer
from focus_core.benchmark.entries import Entry, resolve
from focus_core.benchmark.prefill import rotated, spread
from focus_core.compat import cache_keyword, cache_of
from focus_core.errors import Cancelled, FocusError, TooLarge
from focus_core.evaluation.environment import environment
from focus_core.jobs.costs import load_average

if TYPE_CHECKING:
    from focus_core.models.loading import Loaded

PROMPT, DECODED, REPEATS, TIMED = 256, 32, 3, 16
"""Tokens of the prefill, tokens decoded after it, timed repeats, and tokens of a timed repeat."""
REPLAYED, REPLAY_STEPS = 128, 4
"""Tokens whose layers are run again in every dtype, and how many of them are decoded."""


def measure_caches(
    loaded: Loaded,
    entries: list[dict[str, Any]],
    text: str,
    *,
    prompt: int = PROMPT,
    decoded: int = DECODED,
    repeats: int = REPEATS,
    load_adapter: Callable[[str], Any],
    progress: Callable[[float, str], None] | None = None,
    partial: Callable[[dict[str, Any]], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    """Measure the cache of every entry, with dense beside them on the same tokens.

    Each entry reads the text's first ``prompt`` tokens, then is given the next ``decoded`` ones, one by one, from its
    own cache. Then it goes on alone from the prompt, always with its likeliest token, until it differs from dense.

    Args:
        loaded: the model.
        entries: ``{variant, config, adapter, label}`` each; dense is added as the baseline.
        text: what is read.
        prompt: tokens of the prefill.
        decoded: tokens decoded after it.
        repeats: timed repeats of up to 16 decoded tokens, all entries in turn.
        load_adapter: loads an adapter by its name.
        progress: fraction and sentence.
        partial: called with ``{"about": ...}``, then with ``{"row": ...}`` as each entry is measured and again when it
            has been timed; rows of one ``key`` replace one another.
        cancel: asked before every decoded token and layer.

    Returns:
        ``{about, rows, complete}``; see ``_Run`` for the fields of a row.

    Raises:
        TooLarge: the text or the model does not hold that many tokens.
        Cancelled: when asked to; what was measured has gone to ``partial``.
    """
    run = _Run(loaded, entries, text, prompt, decoded, repeats, load_adapter, progress, partial, cancel)
    return run.all()


class _Run:
    """One measurement in progress.

    A row: the entry's own fields (see Entry.describe), and

    - bytes: ``bytes_per_token`` (growth of the live cache's memory while decoding, over all layers), ``by_layer`` (the
      same, layer by layer), ``fixed_bytes`` (what does not grow), ``cache_bytes`` (all of it at the end), ``counted``
      (bytes a token from the settings);
    - quality of decoding: ``nll`` of the ``decoded`` tokens, ``nll_change`` against dense, ``agree`` (share of them
      after which it would say the same next token as dense), ``same_tokens`` (tokens that it says like dense when both
      go on alone, of ``decoded``);
    - exactness: ``layers``, one ``{dtype: {error, bytes}}`` with a list over layers (see ``Replay.errors``);
    - ``tokens_s``: the spread of decoded tokens a second, and ``ratio`` to dense in the same repeat;
    - ``layer_report``: which form each layer keeps, of a variant that says so; ``about["gate"]`` then says what each
      layer could make again of what it keeps;
    - ``complete``: nothing is still to come.
    """

    def __init__(self, loaded, entries, text, prompt, decoded, repeats, load_adapter, progress, partial, cancel):
        self.loaded, self.prompt, self.decoded, self.repeats = loaded, prompt, decoded, repeats
        self.progress, self.partial, self.cancel = progress, partial, cancel
        self.load_average = load_average()
        self.ids = self._tokens(text)
        self.entries, self.refused = resolve(entries, loaded.facts, load_adapter)
        self.rows: dict[str, dict[str, Any]] = {}
        self.caches: dict[str, Any] = {}
        self.firsts: dict[str, int] = {}
        self.said: list[int] = []
        self.choices: list[int] = []
        self.about = self._about(text)
        # A decoded token costs about as much as a layer's replay costs for all layers together.
        self.total = len(self.entries) * (2 * decoded + 4 + repeats * self._timed() + 8 * len(DTYPES))
        self.done = 0.0

    def all(self) -> dict[str, Any]:
        self._tell_about()
        replay = None
        alive = []
        for entry in list(self.entries):
            row = self.rows[entry.key] = {**entry.describe(), "complete": False}
            try:
                self._decode(entry, row)
                self._alone(entry, row)
                self._emit(row)
                if replay is None:
                    self._step(f"Recording the layers of {entry.label}", 8)
                    replay = Replay(self.loaded.model, self.ids[:, : self._replayed()], REPLAY_STEPS)
                self._exactness(entry, row, replay)
                if hasattr(entry.variant, "layer_report") and "gate" not in self.about:
                    self._gate(entry)
                alive.append(entry)
            except Cancelled:
                if "nll" in row:
                    self._emit(row)
                raise
            except FocusError as error:
                if entry is self.entries[0]:
                    raise
                del self.rows[entry.key]
                self.refused.append({"label": entry.label, "reason": error.message, "hint": error.hint})
                self._tell_about()
                continue
            self._emit(row)
        del replay
        self._time(alive)
        return {"about": self.about, "rows": list(self.rows.values()), "complete": True}

    def _decode(self, entry: Entry, row: dict[str, Any]) -> None:
        import torch

        from focus_core.retrofit import retrofit

        self._step(f"{entry.label} reads {self.prompt:,} tokens", 4)
        nll, choices = [], []
        with torch.no_grad(), retrofit(self.loaded.model, entry.variant, adapter=entry.adapter):
            out = self.loaded.model(input_ids=self.ids[:, : self.prompt], use_cache=True, logits_to_keep=1)
            cache, logits = cache_of(out), out.logits[0, -1].float()
            self.caches[entry.key] = copy.deepcopy(cache)
            before: list[int] = []
            self.firsts[entry.key] = int(logits.argmax())
            for n in range(self.decoded):
                self._step(f"{entry.label} decodes token {n + 1} of {self.decoded}")
                token = self.ids[:, self.prompt + n]
                choices.append(int(logits.argmax()))
                nll.append(float(torch.logsumexp(logits, -1) - logits[token[0]]))
                logits = self._next(token[None], cache)
                # A prefill may leave views into larger tensors, which the first token that is appended lets go.
                before = before or storage_by_layer(cache)
        after = storage_by_layer(cache)
        growth = [(b - a) / (self.decoded - 1) for a, b in zip(before, after, strict=True)]
        if entry is self.entries[0]:
            self.choices, self.dense_nll = choices, nll
        row |= {
            "bytes_per_token": sum(growth),
            "by_layer": growth,
            "cache_bytes": sum(after),
            "fixed_bytes": max(0.0, sum(after) - sum(growth) * (self.prompt + self.decoded)),
            "counted": counted_bytes(entry.variant, self.loaded.facts, self.loaded.model.dtype.itemsize),
            "nll": sum(nll) / len(nll),
            "nll_change": sum(nll) / len(nll) - sum(self.dense_nll) / len(nll),
            "agree": sum(a == b for a, b in zip(choices, self.choices, strict=True)) / len(choices),
        }
        report = getattr(entry.variant, "layer_report", None)
        if report is not None:
            row["layer_report"] = report(self.loaded.facts.layers, entry.adapter)

    def _alone(self, entry: Entry, row: dict[str, Any]) -> None:
        """Let it go on with its own likeliest tokens, until it says another one than dense did."""
        import torch

        from focus_core.retrofit import retrofit

        dense = entry is self.entries[0]
        token, cache, said = self.firsts[entry.key], copy.deepcopy(self.caches[entry.key]), []
        with torch.no_grad(), retrofit(self.loaded.model, entry.variant, adapter=entry.adapter):
            for n in range(self.decoded):
                self._step(f"{entry.label} writes token {n + 1} of {self.decoded}")
                if not dense and token != self.said[n]:
                    break
                said.append(token)
                token = int(self._next(self.ids.new_tensor([[token]]), cache).argmax())
        self.done += self.decoded - len(said)
        if dense:
            self.said = said
        row["same_tokens"] = len(said)

    def _exactness(self, entry: Entry, row: dict[str, Any], replay: Replay) -> None:
        layers = len(replay.modules)
        row["layers"] = {}
        for dtype in DTYPES:

            def step(layer: int, dtype: str = dtype) -> None:
                self._step(f"{entry.label} in {dtype}, layer {layer + 1} of {layers}", 8 / layers)

            errors, sizes = replay.errors(entry.variant, entry.adapter, dtype, step)
            row["layers"][dtype] = {"error": errors, "bytes": sizes}

    def _gate(self, entry: Entry) -> None:
        """What each layer could make again of what it keeps, in every dtype, on this text (see ``slim_gate.gate``)."""
        from focus_core.slim_gate import gate

        self._step(f"{entry.label}: what each layer can make again")
        ids = self.ids[:, : self._replayed()]
        self.about["gate"] = [one.document() for one in gate(self.loaded.model, ids, DTYPES, cancel=self.cancel)]
        self._tell_about()

    def _time(self, entries: list[Entry]) -> None:
        import torch

        from focus_core.retrofit import retrofit

        wait = torch.cuda.synchronize if self.ids.is_cuda else lambda: None
        count = self._timed()
        took: dict[str, list[float]] = {entry.key: [] for entry in entries}
        try:
            for repeat in range(self.repeats):
                for entry in rotated(entries, repeat):
                    self._step(f"Timing {entry.label}, repeat {repeat + 1} of {self.repeats}", count)
                    cache = copy.deepcopy(self.caches[entry.key])
                    with torch.no_grad(), retrofit(self.loaded.model, entry.variant, adapter=entry.adapter):
                        wait()
                        start = time.perf_counter()
                        for n in range(count):
                            self._next(self.ids[:, self.prompt + n : self.prompt + n + 1], cache)
                        wait()
                        took[entry.key].append(time.perf_counter() - start)
        finally:
            for entry in entries:
                row, own = self.rows[entry.key], took[entry.key]
                if own:
                    row["tokens_s"] = spread([count / t for t in own])
                    row["ratio"] = spread([t / d for t, d in zip(own, took[entries[0].key], strict=False)] or [1.0])
                row["complete"] = len(own) == self.repeats
                self._emit(row)

    def _next(self, token: Any, cache: Any) -> Any:
        """Logits (V,) after one more token, in fp32."""
        model = self.loaded.model
        return model(input_ids=token, use_cache=True, **{cache_keyword(model): cache}).logits[0, -1].float()

    def _timed(self) -> int:
        return min(TIMED, self.decoded)

    def _replayed(self) -> int:
        return min(REPLAYED + REPLAY_STEPS, self.ids.shape[1])

    def _step(self, said: str, cost: float = 1.0) -> None:
        if self.cancel and self.cancel():
            raise Cancelled
        if self.progress:
            self.progress(min(1.0, self.done / self.total), said)
        self.done += cost

    def _emit(self, row: dict[str, Any]) -> None:
        if self.partial:
            self.partial({"row": dict(row)})

    def _tell_about(self) -> None:
        if self.partial:
            self.partial({"about": self.about})

    def _tokens(self, text: str) -> Any:
        import torch

        need, facts = self.prompt + self.decoded, self.loaded.facts
        if need > facts.context:
            raise TooLarge(
                f"{facts.name} reads at most {facts.context:,} tokens and {need:,} were asked for.",
                f"Take a prompt of up to {facts.context - self.decoded:,}.",
            )
        ids = self.loaded.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"][:need]
        if len(ids) < need:
            raise TooLarge(
                f"The text has {len(ids):,} tokens and {need:,} were asked for ({self.prompt:,} read at once and "
                f"{self.decoded:,} decoded).",
                f"Take a prompt of up to {len(ids) - self.decoded:,}, or a longer text."
                if len(ids) > self.decoded + 1
                else "Take a shipped passage: each has at least 1,024 tokens.",
            )
        return torch.as_tensor(ids, dtype=torch.long, device=self.loaded.model.device)[None]

    def _about(self, text: str) -> dict[str, Any]:
        facts, model = self.loaded.facts, self.loaded.model
        shape = {f: getattr(facts, f) for f in ("layers", "heads", "kv_heads", "head_dim", "hidden_size", "context")}
        return {
            "model": self.loaded.name,
            "revision": facts.revision,
            "note": facts.note,
            **shape,
            "values": sum(p.numel() for p in model.parameters()),
            "dtype": str(model.dtype).removeprefix("torch."),
            "itemsize": model.dtype.itemsize,
            "text_hash": hashlib.sha256(text.encode()).hexdigest()[:16],
            "prompt": self.prompt,
            "decoded": self.decoded,
            "replayed": self._replayed(),
            "replay_steps": REPLAY_STEPS,
            "repeats": self.repeats,
            "timed": self._timed(),
            "load_before": self.load_average,
            "environment": environment(self.ids.device),
            "refused": self.refused,
        }
