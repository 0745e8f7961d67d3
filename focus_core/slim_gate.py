"""Which cache each layer can keep under Slim attention: measured on real activations in the type that serves them.

Values made from keys carry the keys' rounding times the condition of W_K, so weights alone do not tell: a layer passes
when what comes back from its cache is near what was put in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from focus_core.errors import Cancelled, InvalidInput, Unsupported
from focus_core.models.loading import DTYPES
from focus_core.slim_layer import Parts, between, parts_of

if TYPE_CHECKING:
    from torch import nn

    from focus_core.routing.slim_forms import SlimForms

LIMIT = 0.05
"""Largest relative error of a form that serves: the bound of the authors' own study."""
_LABELS = {"k": "values from keys", "x": "the layer's input", "v": "keys from values"}


@dataclass(frozen=True)
class LayerGate:
    """What one layer can keep.

    Attributes:
        layer: index of the layer.
        condition_k, condition_v: condition numbers of W_K and W_V; infinite for a singular one.
        largest_kv: largest magnitude in W_K^-1 W_V; float16 holds up to 65,504. None without an inverse.
        placed: whether its keys are rotated or normalised, so that only k and dense can be kept.
        errors: ``{dtype: {form: error}}``: relative Frobenius error of what is made from the cached form (k and x:
            values; v: keys) against the same layer's in fp64; None where the form does not exist or gives numbers
            that are not finite.
        forms: ``{dtype: form}``: what the layer keeps: k, x, v, or dense for keys and values.
        reasons: ``{dtype: sentence}``.
    """

    layer: int
    condition_k: float
    condition_v: float
    largest_kv: float | None
    placed: bool
    errors: dict[str, dict[str, float | None]]
    forms: dict[str, str]
    reasons: dict[str, str]

    def document(self) -> dict[str, Any]:
        """As plain values."""
        return dataclasses.asdict(self)


def gate(
    model: nn.Module,
    inputs: torch.Tensor | Sequence[torch.Tensor],
    dtypes: Sequence[str] = DTYPES,
    *,
    limit: float = LIMIT,
    progress: Callable[[float, str], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> list[LayerGate]:
    """Measure every layer's conditions and reconstruction errors, and say what it can keep in each type.

    The model's weights and activations are cast to each type before anything is made of them, as a model that is
    served in it has them; inverses are solved in fp64 from those weights.

    Args:
        model: a transformers causal language model.
        inputs: (B, N) token ids, which the model reads once, without padding; or one (B, N, d) tensor a layer, the
            input of its projections.
        dtypes: of ``float32``, ``bfloat16``, ``float16``.
        limit: largest relative error of a form that serves.
        progress: told the fraction done at every layer.
        cancel: asked at every layer.

    Returns:
        One record a layer.

    Raises:
        Unsupported: a model with shared key heads, or whose projections cannot be read.
        InvalidInput: other types, a limit that is not positive, or hidden states of another number of layers.
        Cancelled: on request.
    """
    from focus_core.models.facts import attention_modules, facts_of

    if set(dtypes) - set(DTYPES) or not dtypes:
        raise InvalidInput(f"The types are {list(dtypes)}.", f"Each can be {', '.join(DTYPES)}.")
    if not 0 < limit < float("inf"):
        raise InvalidInput(f"limit is {limit}.", "It is a relative error, for example 0.05.")
    facts = facts_of(model)
    if facts.heads != facts.kv_heads:
        raise Unsupported(
            f"The model has {facts.heads} query heads on {facts.kv_heads} key heads: no key projection has an inverse.",
            "Use a model with a key head for every query head, as GPT-2.",
        )
    modules = attention_modules(model)
    hidden = hidden_states(model, inputs) if isinstance(inputs, torch.Tensor) else list(inputs)
    if len(hidden) != len(modules):
        raise InvalidInput(f"There are hidden states of {len(hidden)} layers, and the model has {len(modules)}.")
    found = []
    for layer, (module, x) in enumerate(zip(modules, hidden, strict=True)):
        if cancel is not None and cancel():
            raise Cancelled
        if progress is not None:
            progress(layer / len(modules), f"Layer {layer + 1} of {len(modules)}")
        found.append(_gate_layer(layer, parts_of(model, module), x.flatten(0, -2), dtypes, limit))
    return found


def hidden_states(model: nn.Module, ids: torch.Tensor) -> list[torch.Tensor]:
    """The input of every layer's projections, (B, N, d) each, of one forward over ids (B, N)."""
    from focus_core.retrofit import retrofit
    from focus_core.variants import make

    kept = _Hidden()
    with torch.no_grad(), retrofit(model, make("dense"), recorder=kept):
        model(input_ids=ids.to(next(model.parameters()).device), use_cache=False)
    return [kept.states[layer] for layer in sorted(kept.states)]


class _Hidden:
    def __init__(self) -> None:
        self.states: dict[int, torch.Tensor] = {}

    def record(self, call: Any, variant: Any) -> None:
        self.states[call.layer] = call.hidden.detach()


def _gate_layer(layer: int, parts: Parts, x: torch.Tensor, dtypes: Sequence[str], limit: float) -> LayerGate:
    key, value = parts.key.weight, parts.value.weight
    errors: dict[str, dict[str, float | None]] = {}
    forms, reasons = {}, {}
    for dtype in dtypes:
        errors[dtype] = _errors(x, key, value, parts.placed, getattr(torch, dtype))
        forms[dtype], reasons[dtype] = _choose(errors[dtype], parts, dtype, limit)
    solved = _solved(key, value)
    return LayerGate(
        layer=layer,
        condition_k=condition(key),
        condition_v=condition(value),
        largest_kv=None if solved is None else float(solved.abs().max()),
        placed=parts.placed,
        errors=errors,
        forms=forms,
        reasons=reasons,
    )


def condition(matrix: torch.Tensor) -> float:
    """Largest over smallest singular value, in fp64; infinite for a singular matrix."""
    values = torch.linalg.svdvals(matrix.double())
    return float(values[0] / values[-1]) if values[-1] > 0 else float("inf")


def _errors(x: torch.Tensor, key: torch.Tensor, value: torch.Tensor, placed: bool, dtype: torch.dtype) -> dict:
    x, key, value = x.to(dtype), key.to(dtype), value.to(dtype)
    true_key, true_value = x.double() @ key.double(), x.double() @ value.double()
    found: dict[str, float | None] = {"k": None, "x": _error(x @ value, true_value), "v": None}
    if (made := _solved(key, value)) is not None:
        found["k"] = _error((x @ key) @ made.to(dtype), true_value)
    if not placed and (made := _solved(value, key)) is not None:
        found["v"] = _error((x @ value) @ made.to(dtype), true_key)
    return found


def _solved(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor | None:
    try:
        return between(source, target)
    except Unsupported:
        return None


def _error(made: torch.Tensor, true: torch.Tensor) -> float | None:
    error = float((made.double() - true).norm() / true.norm().clamp_min(1e-300))
    return error if error < float("inf") else None


def _choose(errors: dict[str, float | None], parts: Parts, dtype: str, limit: float) -> tuple[str, str]:
    """The first form that passes, of those that exist and save; and why."""
    inputs, outputs = parts.key.weight.shape
    allowed = ["k"]
    if not parts.placed:
        allowed += (["x"] if inputs < 2 * outputs else []) + ["v"]
    said: list[str] = []
    for form in allowed:
        error = errors[form]
        if error is not None and error <= limit:
            lead = f"{'; '.join(said)}: it keeps {_LABELS[form]}" if said else _LABELS[form]
            return form, _sentence(f"{lead}, with an error of {error:.2g} in {dtype}.")
        if inputs != outputs and form != "x":
            said.append(f"{_LABELS[form]} need a square matrix ({inputs} x {outputs})")
        elif error is None:
            said.append(f"{_LABELS[form]} are not finite")
        else:
            said.append(f"{_LABELS[form]} have an error of {error:.2g}")
    why = ", and its keys are rotated or normalised" if parts.placed else ""
    return "dense", _sentence(f"{'; '.join(said)}{why}: it keeps keys and values in {dtype}.")


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def forms_adapter(records: Sequence[LayerGate], dtype: str, **about: Any) -> SlimForms:
    """The adapter of the variant ``slim`` that serves every layer in the form that passed in a type.

    Args:
        records: what ``gate`` returned for the model.
        dtype: the type that the model will be served in.
        **about: what its record says besides, for example the text.

    Raises:
        InvalidInput: the type was not measured.
    """
    from focus_core.routing.slim_forms import FORMS, SlimForms, SlimFormsConfig

    if dtype not in records[0].forms:
        raise InvalidInput(f"The gate did not measure {dtype}.", f"It measured {', '.join(records[0].forms)}.")
    adapter = SlimForms(SlimFormsConfig([record.forms[dtype] for record in records]))
    for record in records:
        told = record.errors[dtype]
        adapter.errors[record.layer] = torch.tensor(
            [float("nan") if (error := told[form]) is None else error for form in ("k", "v", "x")]
        )
    counts = {form: adapter.config.forms.count(form) for form in FORMS}
    adapter.record = {**about, "dtype": dtype, "forms": counts, "layers": [r.document() for r in records]}
    return adapter
