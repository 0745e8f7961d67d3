"""What a card of a given memory could hold: the longest context and the largest batch, variant by variant."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from analysis.numbers import memory
from analysis.palette import KEPT, WINDOW
from analysis.style import QUIET, quiet, say
from focus_core.benchmark.cache_lines import cache_lines, counted_bytes, usual
from focus_core.models.facts import ModelFacts
from focus_core.models.shapes import Shape as ModelShape
from focus_core.variants import make

FORMATS = {"fp8": 1, "16 bits": 2, "32 bits": 4}
MEASURED_IN = {2: "bfloat16", 4: "float32"}
"""The number format whose measured caches stand for an item size."""
MEASURED, COUNTED = "measured", "counted"
ALL = 99


@dataclass(frozen=True)
class Preset:
    """A published model shape.

    Attributes:
        title: its name.
        layers, heads, kv_heads, head_dim: its attention.
        weights: number of weights.
        context: tokens that it was made for.
        source: where these numbers are from.
    """

    title: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    weights: float
    context: int
    source: str

    @property
    def shape(self) -> ModelShape:
        """As variants count it."""
        hidden = self.heads * self.head_dim
        return ModelShape(
            self.layers, hidden, self.heads, self.kv_heads, self.head_dim, 32_000, self.context, int(self.weights)
        )


_SLIM = "cached numbers a token as the Slim paper gives them"
PRESETS = (
    Preset("Phi-3-mini-128k", 32, 32, 32, 96, 3.8e9, 131_072, f"{_SLIM}; shape of transformers' Phi3Config"),
    Preset("CodeLlama-7B", 32, 32, 32, 128, 6.7e9, 16_384, f"{_SLIM}; shape of transformers' LlamaConfig"),
    Preset("SmolLM2-1.7B", 24, 32, 32, 64, 1.7e9, 8_192, f"{_SLIM}; weights by its name"),
    Preset("GPT-2 XL", 48, 25, 25, 64, 1.5e9, 1_024, f"{_SLIM}; weights by its size"),
    Preset("8B with GQA", 32, 32, 8, 128, 8.0e9, 131_072, "32 layers, 8 of 32 heads as in Llama-3-8B"),
)


@dataclass(frozen=True)
class Held:
    """What one variant lets the card hold.

    Attributes:
        label: the variant.
        bytes: of cache a token, all layers.
        origin: ``measured`` or ``counted``.
        context: longest context in tokens of every sequence in the batch; 0 where nothing fits.
        batch: most sequences at the asked length.
        reason: why the model cannot take it; empty when it can.
    """

    label: str
    bytes: float
    origin: str
    context: int
    batch: int
    reason: str = ""


def room(card_bytes: float, weights: float, itemsize: int) -> float:
    """Bytes left for caches beside the weights in the same format."""
    return max(0.0, card_bytes - weights * itemsize)


def hold(bytes_per_token: float, free: float, batch: int, length: int) -> tuple[int, int]:
    """Longest context of ``batch`` sequences, and most sequences of ``length`` tokens, that ``free`` bytes hold."""
    return int(free // (batch * bytes_per_token)), int(free // (length * bytes_per_token))


def holdings(
    model_name: str,
    shape: ModelShape,
    card_bytes: float,
    itemsize: int,
    batch: int,
    length: int,
    label: Any,
    measured: dict[str, float] | None = None,
) -> list[Held]:
    """Every variant whose cache is smaller than dense's on that shape, dense first.

    Args:
        model_name: for adapters; empty for a published shape.
        shape: of the model.
        card_bytes: memory of the card.
        itemsize: bytes of a number, of weights and cache alike.
        batch: sequences.
        length: tokens of each, for the largest batch.
        label: names a line.
        measured: bytes a token by label, where they were measured in this format.
    """
    free, dense = room(card_bytes, shape.values, itemsize), counted_bytes(make("dense"), shape, itemsize)
    facts = facts_of_shape(model_name, shape)
    found = []
    lines: list[dict[str, Any]] = [{"variant": "dense", "config": {}, "adapter": None, "counted": dense}]
    smaller = usual(cache_lines(model_name, shape, itemsize), dense, ALL)
    lines += sorted(smaller, key=lambda line: line["counted"])
    for line in lines:
        name = label(line)
        variant = make(line["variant"], line["config"])
        support = variant.supports(facts)
        size = (measured or {}).get(name)
        origin = COUNTED if size is None else MEASURED
        # What ran on this model applies to it, whatever its files leave open.
        reason = support.reason if size is None else ""
        size = line["counted"] if size is None else size
        context, most = (0, 0) if reason else hold(size, free, batch, length)
        found.append(Held(name, size, origin, context, most, reason))
    return found


def facts_of_shape(name: str, shape: ModelShape) -> ModelFacts:
    """What a variant may ask of a model that has not been loaded: full layers, plain scores, rotary by halves."""
    return ModelFacts(
        name=name or "this shape",
        family="",
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        hidden_size=shape.hidden,
        context=shape.context,
        vocab=shape.vocab,
        native=(None,) * shape.layers,
        softcap=None,
        qk_norm=False,
        scale=shape.head_dim**-0.5,
        dtype="",
        revision="",
        note="",
        rotary=shape.head_dim,
    )


def figure(held: list[Held], context: int) -> go.Figure:
    """Longest context by variant; measured bytes are solid, counted ones hatched; the model's own limit is a line."""
    drawn = go.Figure()
    rows = [one for one in held if not one.reason]
    if not rows or not any(one.context for one in rows):
        return quiet(say(drawn, "The weights alone do not fit: take a larger card or a smaller format."), height=240)
    for one in rows:
        drawn.add_bar(
            x=[one.context],
            y=[one.label],
            orientation="h",
            showlegend=False,
            marker={
                "color": KEPT if one.origin == MEASURED else WINDOW,
                "pattern": {"shape": "" if one.origin == MEASURED else "/"},
            },
            text=[f"{one.context:,} tokens"],
            textposition="outside",
            cliponaxis=False,
            hovertemplate=f"<b>{one.label}</b><br>{memory(one.bytes)} a token ({one.origin})<br>"
            f"{one.context:,} tokens, or {one.batch:,} sequences<extra></extra>",
        )
    for origin, colour, shape in ((MEASURED, KEPT, ""), (COUNTED, WINDOW, "/")):
        drawn.add_bar(
            x=[None], y=[rows[0].label], orientation="h", name=f"bytes a token {origin}",
            marker={"color": colour, "pattern": {"shape": shape}},
        )  # fmt: skip
    top = max(one.context for one in rows)
    if 0.3 * top < context < 1.3 * top:
        drawn.add_vline(
            x=context,
            line={"dash": "dash", "width": 1, "color": QUIET},
            annotation_text=f"the model reads {context:,}",
            annotation_position="bottom left",
            annotation_font_color=QUIET,
        )
    drawn.update_xaxes(title="Longest context, tokens", range=[0, 1.3 * top], tickformat=",")
    drawn.update_yaxes(autorange="reversed", type="category")
    return quiet(drawn, height=130 + 32 * len(rows), barmode="overlay").update_yaxes(showgrid=False)


def sentence(held: list[Held], card_bytes: float, weights: float, itemsize: int, batch: int, reads: int = 0) -> str:
    """What dense and the smallest cache that applies let the card hold; ``reads`` is the model's longest context."""
    free = room(card_bytes, weights, itemsize)
    if free <= 0 or not math.isfinite(free):
        return f"The weights take {memory(weights * itemsize)}: they do not fit in {memory(card_bytes)}."
    dense, rest = held[0], [one for one in held[1:] if not one.reason]
    many = "one sequence" if batch == 1 else f"{batch:,} sequences"
    said = (
        f"Beside {memory(weights * itemsize)} of weights {memory(free)} are left: {many} of {dense.context:,} tokens "
        f"with dense attention"
    )
    if rest:
        best = max(rest, key=lambda one: one.context)
        said += f", {best.context:,} with {best.label} ({best.origin})"
    return f"{said}." + (f" The model itself reads at most {reads:,}." if 0 < reads < dense.context else "")
