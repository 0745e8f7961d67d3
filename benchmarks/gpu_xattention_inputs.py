"""Queries, keys and values of the shipped model over a long text, past its own positions by YaRN; or random ones."""

from __future__ import annotations

import math
from typing import Any

import torch

from focus_core import assets
from focus_core.benchmark.inputs import Inputs
from focus_core.errors import InvalidInput

TEXTS = ("persuasion", "northanger abbey", "emma")
NATIVE = 8192
_SCORED = 1024


class _Kept:
    """Recorder that keeps the attention inputs of some layers."""

    def __init__(self, layers: list[int]) -> None:
        self.layers = layers
        self.found: list[Inputs] = []

    def record(self, call: Any, variant: Any) -> None:
        """Keep one layer's; see ``retrofit``."""
        if call.layer in self.layers:
            self.found.append(Inputs(call.query, call.key, call.value, call.hidden[:, :0], call.layer))


def scale_positions(rotary: torch.nn.Module, factor: float, native: int = NATIVE) -> None:
    """Make a rotary embedding serve ``factor`` times its positions by YaRN (arXiv 2309.00071, section 3.4).

    Fast turning pairs stay as they are, slow ones turn ``factor`` times slower, those between are mixed; scores are
    scaled by the square of ``0.1 ln(factor) + 1``.

    Args:
        rotary: a module of transformers with ``inv_freq`` and ``attention_scaling``.
        factor: 1 leaves it as it is.
        native: positions that the model was trained on.
    """
    if factor <= 1:
        return
    own = rotary.inv_freq.double()
    dim = 2 * len(own)
    base = float(own[1]) ** (-dim / 2)

    def pair(turns: float) -> float:
        return dim * math.log(native / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(0, math.floor(pair(32))), min(dim - 1, math.ceil(pair(1)))
    slow = ((torch.arange(dim // 2, device=own.device) - low) / max(1e-3, high - low)).clamp(0, 1)
    rotary.inv_freq = (own * (1 - slow) + own / factor * slow).to(rotary.inv_freq)
    rotary.attention_scaling = 0.1 * math.log(factor) + 1


class Activations:
    """The model, kept between lengths."""

    def __init__(self, name: str, device: str, dtype: str, layers: list[int], native: int = NATIVE) -> None:
        from focus_core.models.loading import load_model

        self.loaded = load_model(name, device=device, dtype=dtype)
        count = self.loaded.facts.layers
        if max(layers) >= count:
            raise InvalidInput(f"{name} has {count} layers and no layer {max(layers)}.", f"It can be 0 to {count - 1}.")
        self.layers, self.native, self.device = layers, native, device
        self.rotary = self.loaded.model.get_decoder().rotary_emb
        self.first = self.rotary.inv_freq.clone(), self.rotary.attention_scaling
        text = "\n\n".join(assets.load_text(name).text for name in TEXTS)
        self.ids = self.loaded.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]

    def at(self, tokens: int) -> tuple[list[Inputs], dict[str, Any]]:
        """The chosen layers' inputs over the first ``tokens`` tokens, and what was done to get them."""
        from focus_core.retrofit import retrofit
        from focus_core.variants import make

        if tokens > len(self.ids):
            raise SystemExit(f"The texts have {len(self.ids)} tokens, not {tokens}.")
        self.rotary.inv_freq, self.rotary.attention_scaling = self.first[0].clone(), self.first[1]
        factor = tokens / self.native
        scale_positions(self.rotary, factor, self.native)
        kept = _Kept(self.layers)
        ids = torch.tensor(self.ids[:tokens], device=self.device)
        with torch.no_grad(), retrofit(self.loaded.model, make("dense"), recorder=kept):
            logits = self.loaded.model(input_ids=ids[None], use_cache=False, logits_to_keep=_SCORED).logits[0]
        wanted = ids[-_SCORED + 1 :] if tokens >= _SCORED else ids[1:]
        loss = torch.nn.functional.cross_entropy(logits[-len(wanted) - 1 : -1].float(), wanted)
        return kept.found, {
            "activations": self.loaded.name,
            "rope": "as trained" if factor <= 1 else f"YaRN, factor {factor:g} over {self.native} positions",
            "ppl_of_last_tokens": math.exp(float(loss)),
            "scored_tokens": len(wanted),
        }


def random_inputs(heads: int, kv: int, dim: int, tokens: int, device: str, dtype: Any, layer: int = 0) -> Inputs:
    """Random q, k and v whose neighbours are alike, as those of a text are."""
    generator = torch.Generator(device).manual_seed(layer)

    def draw(count: int) -> torch.Tensor:
        x = torch.randn(1, count, tokens, dim, generator=generator, device=device)
        topics = torch.randn(1, count, -(-tokens // 256), dim, generator=generator, device=device)
        return (x + 1.5 * topics.repeat_interleave(256, 2)[:, :, :tokens]).to(dtype)

    return Inputs(draw(heads), draw(kv), draw(kv), torch.empty(1, 0, 1, device=device, dtype=dtype), layer)
