"""Settings under which variants cost, keep or predict the same: found by turning the knobs that each variant names.

Pairs that settings alone decide, and bytes of cache, are counted; pairs that a text decides and perplexity are
measured on its first windows. How near each variant came is said, and one that cannot come near says what it reaches.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from focus_core.benchmark.comparison import Watch, paired_change
from focus_core.benchmark.entries import BASELINE, Entry, counted, label_of, layer_shape, resolve
from focus_core.benchmark.knobs import COUNTED_TRIES, MEASURED_TRIES, NEAR, QUANTITIES, is_counted, knobs_for, tries_of
from focus_core.errors import Cancelled, FocusError, InvalidInput, TooLarge
from focus_core.evaluation.environment import environment
from focus_core.variants import make
from focus_core.variants.base import Knob

if TYPE_CHECKING:
    import torch

    from focus_core.models.facts import ModelFacts
    from focus_core.models.loading import Loaded
    from focus_core.variants import Variant


def match(
    loaded: Loaded,
    entries: list[dict[str, Any]],
    text: str,
    quantity: str,
    target: dict[str, Any],
    length: int,
    *,
    windows: int = 1,
    load_adapter: Callable[[str], Any],
    progress: Callable[[float, str], None] | None = None,
    partial: Callable[[dict[str, Any]], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    """Find each variant's settings that come nearest to a target.

    Args:
        loaded: the model.
        entries: ``{variant, config, adapter, label}`` each; settings that no knob names stay as given.
        text: what is read where something is measured.
        quantity: one of ``QUANTITIES``.
        target: ``{"value": number}``, or ``{"entry": entry}`` whose own value is asked of the others.
        length: tokens of a window.
        windows: most windows that are measured.
        load_adapter: loads an adapter by name.
        progress: fraction and sentence.
        partial: called with ``{"about": ...}``, then with ``{"row": ...}`` when a variant's search has ended.
        cancel: asked before each run of the model.

    Returns:
        ``{about, rows, complete}``. A row: the line's fields with the settings found in ``config``, ``length``,
        ``asked``, ``reached``, ``low`` and ``high`` (what its settings reach), ``how`` (``counted``, ``measured`` or
        ``fixed``: no setting moves it), ``within`` (whether what was asked for lies between the two), ``near``
        (whether it came within ``NEAR``), ``tries``.

    Raises:
        InvalidInput: nothing to match, an unknown quantity or no target.
        TooLarge: more tokens than the text or model has.
        Cancelled: when asked to; rows that were found have gone to ``partial``.
    """
    if quantity not in QUANTITIES:
        raise InvalidInput(f"There is no quantity {quantity!r}.", f"It can be {', '.join(QUANTITIES)}.")
    search = _Search(loaded, text, quantity, length, windows, load_adapter, progress, cancel)
    return search.all(entries, target, partial)


@dataclass(frozen=True)
class _Try:
    variant: Variant
    value: float


class _Search:
    def __init__(self, loaded, text, quantity, length, windows, load_adapter, progress, cancel):
        self.loaded, self.quantity, self.length, self.load_adapter = loaded, quantity, length, load_adapter
        self.progress, self.cancel = progress, cancel
        self.ids = _windows(loaded, text, length, windows)
        self.adapters: dict[str, Any] = {}
        self.known: dict[tuple, dict[str, float]] = {}
        self.done, self.total, self.dense = 0, 1, None

    def all(self, requests: list[dict[str, Any]], target: dict[str, Any], partial: Any) -> dict[str, Any]:
        named = target.get("entry")
        reference = self._reference(named)
        # The line that is matched stands among them, first and as it is.
        wanted = [named, *requests] if named else requests
        entries, refused = resolve(wanted, self.loaded.facts, self._adapter)
        lines = entries[1:]
        self.total = 1 + sum(tries_of(e.variant, self.quantity) for e in lines)
        asked = self._value(reference, reference.variant) if reference else _number(target)
        about = self._about(asked, reference, refused)
        rows: list[dict[str, Any]] = []
        if partial:
            partial({"about": about})
        for entry in lines:
            try:
                row = self._row(entry, asked, fixed=reference is not None and entry.key == reference.key)
            except Cancelled:
                raise
            except FocusError as error:
                refused.append({"label": entry.label, "reason": error.message, "hint": error.hint})
                if partial:
                    partial({"about": about})
                continue
            rows.append(row)
            if partial:
                partial({"row": row})
        return {"about": about, "rows": rows, "complete": True}

    def _adapter(self, name: str) -> Any:
        if name not in self.adapters:
            self.adapters[name] = self.load_adapter(name)
        return self.adapters[name]

    def _reference(self, named: dict[str, Any] | None) -> Entry | None:
        if not named:
            return None
        plain = named["variant"] == BASELINE and not named.get("adapter")
        lines, refused = resolve([named], self.loaded.facts, self._adapter)
        if refused:
            raise InvalidInput(f"What the others are to match cannot run: {refused[0]['reason']}", refused[0]["hint"])
        return lines[0] if plain else lines[1]

    def _row(self, entry: Entry, asked: float, *, fixed: bool) -> dict[str, Any]:
        knobs = () if fixed else knobs_for(entry.variant, self.quantity)
        tried = [_Try(entry.variant, self._value(entry, entry.variant))]
        if not self._near(tried[0].value, asked):
            # Counting is free: what the second knob left open, the first may close.
            for knob in knobs * (2 if is_counted(entry.variant, self.quantity) else 1):
                self._turn(entry, knob, asked, tried)
                if self._near(_nearest(tried, asked).value, asked):
                    break
        best, values = _nearest(tried, asked), [t.value for t in tried]
        found = dataclasses.replace(entry, variant=best.variant)
        low, high = min(values), max(values)
        counted_ = is_counted(entry.variant, self.quantity)
        return {
            **found.describe(),
            "key": json.dumps([entry.key, self.quantity]),
            "label": entry.label if best.variant == entry.variant else label_of(best.variant, entry.adapter_name),
            "given": entry.variant.to_dict(),
            "length": self.length,
            "asked": asked,
            "reached": best.value,
            "low": low,
            "high": high,
            "how": "fixed" if not knobs else "counted" if counted_ else "measured",
            "within": low <= asked <= high or self._near(best.value, asked),
            "near": self._near(best.value, asked),
            "knobs": [k.field for k in knobs],
            "tries": len(tried),
        }

    def _turn(self, entry: Entry, knob: Knob, asked: float, tried: list[_Try]) -> None:
        """Halve the knob's range towards what was asked for, from the nearest that does not cost more."""
        start = _start(tried, asked, falls=self.quantity == "perplexity").variant
        whole = isinstance(getattr(start, knob.field), int)
        low, high = start.knob_range(knob, self.length, self.loaded.facts)
        top = next(f.metadata.get("maximum") for f in dataclasses.fields(start) if f.name == knob.field)
        high = high if top is None else min(high, top)
        seen: dict[float, float] = {}

        def measure(at: float) -> float:
            if at not in seen:
                variant = dataclasses.replace(start, **{knob.field: int(at) if whole else float(at)})
                seen[at] = self._value(entry, variant)
                tried.append(_Try(variant, seen[at]))
            return seen[at]

        few, many = measure(low), measure(high)
        # More of a knob costs more and predicts better: perplexity falls as it grows.
        rising = many > few
        if not min(few, many) <= asked <= max(few, many):
            return
        most = COUNTED_TRIES if is_counted(entry.variant, self.quantity) else MEASURED_TRIES
        while len(seen) < most and not self._near(_nearest(tried, asked).value, asked):
            middle = _between(low, high, knob.step if whole else 0)
            if middle is None:
                return
            too_much = measure(middle) > asked
            low, high = (low, middle) if too_much == rising else (middle, high)

    def _near(self, value: float, asked: float) -> bool:
        if self.quantity == "perplexity":
            return abs(value - asked) <= NEAR / 2
        return abs(value - asked) <= NEAR * max(abs(asked), 1e-12)

    def _value(self, entry: Entry, variant: Variant) -> float:
        if self.quantity == "cache":
            return counted(variant, self.loaded.facts, self.length, self.loaded.model.dtype.itemsize).kv_bytes_per_token
        if is_counted(variant, self.quantity):
            return counted_pairs(variant, self.loaded.facts, self.length)
        return self._measured(entry, variant)[self.quantity]

    def _measured(self, entry: Entry, variant: Variant) -> dict[str, float]:
        key = (variant, entry.adapter_name)
        if key not in self.known:
            self._step(f"Trying {label_of(variant, entry.adapter_name)}")
            likelihood = self.quantity == "perplexity"
            if likelihood and self.dense is None:
                self.dense = self._run(make(BASELINE), None, True)[1]
            pairs, nll = self._run(variant, entry.adapter, likelihood)
            change = paired_change(nll, self.dense)["ppl_change"] if likelihood else math.nan
            self.known[key] = {"pairs": pairs, "perplexity": change}
        return self.known[key]

    def _run(self, variant: Variant, adapter: Any, likelihood: bool) -> tuple[float, Any]:
        import torch

        from focus_core.evaluation.likelihood import token_nll
        from focus_core.retrofit import retrofit

        watch, parts, model = Watch(), [], self.loaded.model
        with torch.no_grad(), retrofit(model, variant, adapter=adapter, recorder=watch):
            for ids in self.ids:
                if likelihood:
                    parts.append(token_nll(model, ids[None]).double().cpu().numpy()[0])
                else:
                    model(input_ids=ids[None], use_cache=False, logits_to_keep=1)
                watch.next_window()
        return float(np.mean(watch.by_layer())), np.stack(parts) if parts else None

    def _step(self, said: str) -> None:
        if self.cancel and self.cancel():
            raise Cancelled
        self.done += 1
        if self.progress:
            self.progress(min(0.99, self.done / (self.total + 1)), said)

    def _about(self, asked: float, reference: Entry | None, refused: list[dict[str, str]]) -> dict[str, Any]:
        facts = self.loaded.facts
        return {
            "model": self.loaded.name,
            "revision": facts.revision,
            "dtype": str(self.loaded.model.dtype).removeprefix("torch."),
            "quantity": self.quantity,
            "asked": asked,
            "of": reference.label if reference else None,
            "length": self.length,
            "windows": len(self.ids),
            "refused": refused,
            "environment": environment(self.loaded.model.device),
        }


def counted_pairs(variant: Variant, facts: ModelFacts, length: int) -> float:
    """Share of the causal pairs that a variant keeps whose settings decide it, native layers as they are."""
    shape = layer_shape(facts, length)
    every = make(BASELINE).cost(shape).flops
    by_layer = [variant if w is None else make("window", {"window": w, "sinks": 0}) for w in facts.native]
    shares = [v.cost(shape).flops / every for v in by_layer]
    return float(np.mean(shares))


def _number(target: dict[str, Any]) -> float:
    value = target.get("value")
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        raise InvalidInput(f"The value to match is {value!r}.", "Give a number, or a line whose value is taken.")
    return float(value)


def _nearest(tried: list[_Try], asked: float) -> _Try:
    return min(tried, key=lambda t: abs(t.value - asked))


def _start(tried: list[_Try], asked: float, *, falls: bool) -> _Try:
    """From where the next knob is turned: the nearest try that costs no more, else the cheapest.

    ``falls``: the quantity is smaller where more is paid.
    """
    cheap = [t for t in tried if (t.value >= asked if falls else t.value <= asked)]
    if cheap:
        return _nearest(cheap, asked)
    return max(tried, key=lambda t: t.value) if falls else min(tried, key=lambda t: t.value)


def _between(low: float, high: float, step: int) -> float | None:
    """A value between two others, their geometric mean where both are far from zero; None when there is none."""
    wide = high > 4 * max(low, 1) and step
    middle = math.sqrt(max(low, 1) * high) if wide else (low + high) / 2
    if step:
        middle = low + max(step, round((middle - low) / step) * step)
        return middle if low < middle < high else None
    return middle if high - low > 1e-3 else None


def _windows(loaded: Loaded, text: str, length: int, windows: int) -> torch.Tensor:
    import torch

    if length > loaded.facts.context:
        raise TooLarge(
            f"{loaded.facts.name} reads at most {loaded.facts.context:,} tokens and {length:,} were asked for.",
            f"Choose up to {loaded.facts.context:,}.",
        )
    ids = loaded.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    if len(ids) < length:
        raise TooLarge(f"The text has {len(ids):,} tokens and {length:,} were asked for.", "Take a longer text.")
    count = min(windows, len(ids) // length)
    return torch.as_tensor(ids[: count * length], dtype=torch.long, device=loaded.model.device).view(count, length)
