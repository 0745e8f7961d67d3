"""What every attention variant is: a frozen config with its attention, cost and pattern.

Configs are read by the app's process, which must never import torch: variant modules import
torch inside the methods that compute.
"""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from focus_core.errors import InvalidInput
from focus_core.variants.call import AttentionCall, NewTokens, Packed, Prepared

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch
    from torch import nn

    from focus_core.models.facts import Latent, ModelFacts
    from focus_core.pattern import Pattern

LORA, FULL = "lora", "full"
CHANGES_MODEL = (LORA, FULL)
"""Kinds of the adapters that change the model itself, and go with every variant that needs none of its own."""
VARIANTS: dict[str, type[Variant]] = {}


def option(
    default: Any,
    help: str,
    *,
    choices: tuple | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
) -> Any:
    """A config field with its help text and the values it accepts."""
    return field(default=default, metadata={"help": help, "choices": choices, "minimum": minimum, "maximum": maximum})


@dataclass(frozen=True)
class Support:
    """Whether a variant can serve a model faithfully, and the reason when it cannot."""

    ok: bool
    reason: str = ""


@dataclass(frozen=True)
class Shape:
    """The size of one attention call: whole-sequence prefill, or decode with ``queries`` new tokens."""

    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    length: int
    queries: int | None = None
    itemsize: int = 4
    latent: Latent | None = None
    """Sizes of the model's own latent attention, of which ``head_dim`` is a query's."""


@dataclass(frozen=True)
class Cost:
    """Counted work of one attention call: operations, bytes moved at least once, cache bytes a token and layer."""

    flops: float
    bytes: float
    kv_bytes_per_token: float


@dataclass(frozen=True)
class Knob:
    """A setting that trades cost for quality: what is turned to make two variants cost the same.

    Attributes:
        field: the setting.
        low: smallest value to try.
        high: largest value to try; None is the length of the text.
        step: whole settings are tried in multiples of this.
        moves: what a larger value makes larger, ``pairs`` or ``cache``; empty where it moves quality alone.
    """

    field: str
    low: float
    high: float | None = None
    step: int = 1
    moves: str = "pairs"


@dataclass(frozen=True)
class RoutingSpace:
    """Where a learned router puts the new tokens of one call; see ``Router.points``.

    ``keys`` (B, R, N, d_g) and ``centroids`` (R, K, d_g); ``queries`` like the keys, None when they are the keys.
    """

    keys: torch.Tensor
    queries: torch.Tensor | None
    centroids: torch.Tensor


@dataclass(frozen=True)
class Variant:
    """Base of all variants. A subclass with a ``name`` registers itself."""

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    adapter_kind: ClassVar[str | None] = None
    """Kind of adapter that the variant cannot run without; None when it needs none."""
    adapter_optional: ClassVar[bool] = False
    """True when the variant runs without its adapter too, as another function."""
    packs_keys: ClassVar[bool] = False
    """True when a cache holds what ``pack`` makes of new tokens, and not their keys and values."""
    rotates_cached: ClassVar[bool] = False
    """True when ``AttentionCall.positions`` is needed: what is cached is rotated each time it is read."""
    serves_latent: ClassVar[bool] = False
    """Whether models with a latent attention of their own (``ModelFacts.latent``) are served."""
    keeps_memo: ClassVar[bool] = False
    """Whether decoding goes on from a summary of all earlier tokens (see ``AttentionCall.memo``)."""
    knobs: ClassVar[tuple[Knob, ...]] = ()
    """Settings that a larger value makes costlier and better, the first to be turned first."""
    pairs_by_settings: ClassVar[bool] = False
    """True when settings and length alone decide how many pairs are kept, in every text: ``cost`` then counts them."""
    computes_pairs: ClassVar[bool] = True
    """False where no pair is computed: a share of pairs kept then says nothing of the work."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # A name of its own: what only bends a variant for a while is none.
        if cls.__dict__.get("name"):
            VARIANTS[cls.name] = cls

    def __post_init__(self) -> None:
        """Check every field against its declared type, choices and range."""
        for item in dataclasses.fields(self):
            value, default, limits = getattr(self, item.name), item.default, item.metadata
            if isinstance(default, bool):
                ok = isinstance(value, bool)
            elif isinstance(default, int):
                ok = isinstance(value, int) and not isinstance(value, bool)
            elif isinstance(default, float):
                ok = isinstance(value, (int, float)) and not isinstance(value, bool)
            else:
                ok = isinstance(value, type(default))
            if not ok:
                raise InvalidInput(f"{self.name}.{item.name} must be {type(default).__name__}, not {value!r}.")
            if limits.get("choices") and value not in limits["choices"]:
                allowed = ", ".join(map(str, limits["choices"]))
                raise InvalidInput(f"{self.name}.{item.name} is {value!r}.", f"It can be {allowed}.")
            low, high = limits.get("minimum"), limits.get("maximum")
            # Not every value is comparable: NaN is in no range.
            if not ((low is None or value >= low) and (high is None or value <= high)):
                span = f"at least {low}" if high is None else f"at most {high}" if low is None else f"{low} to {high}"
                raise InvalidInput(f"{self.name}.{item.name} is {value}.", f"It can be {span}.")

    @property
    def served(self) -> bool:
        """True when this is the function that decoding runs; soft and leaking forms are not served."""
        return True

    @property
    def leaks(self) -> bool:
        """True when an output can depend on later tokens."""
        return False

    def supports(self, facts: ModelFacts) -> Support:
        """Say whether this variant can serve the model, with the reason when it cannot.

        A variant with more reasons asks this first.
        """
        if facts.latent is not None and not self.serves_latent:
            return Support(
                False,
                "it has multi-head latent attention, whose cache holds no keys and values; dense and mla serve it.",
            )
        return Support(True)

    @classmethod
    def read_adapter(cls, adapter: Any) -> Any:
        """The adapter that this variant reads: the given one, or where LoRA or all weights were trained
        through it, what these hold.

        None where there is none of the variant's kind.
        """
        if getattr(adapter, "kind", None) not in CHANGES_MODEL or cls.adapter_kind is None:
            return adapter
        held = adapter.reads
        return held if held is not None and held.kind == cls.adapter_kind else None

    def prepare(
        self, hidden: torch.Tensor, layer: int, positions: torch.Tensor, adapter: Any, first_key: torch.Tensor | None
    ) -> Prepared:
        """Derive per-token state from the hidden state (B, N, d) before attention runs.

        ``positions`` (B, N) counts real tokens from 0; padded tokens hold negative numbers.
        """
        return Prepared()

    def prepare_heads(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        layer: int,
        adapter: Any,
        first_real: torch.Tensor | None,
    ) -> Prepared | None:
        """Derive per-token state from the new tokens' queries (B, Hq, N, D) and keys (B, Hkv, N, D), rotated already.

        ``first_real`` (B,) is the first of these tokens that is not padding; None when none is padded. A variant that
        returns something here is not asked for ``prepare``.
        """
        return None

    @property
    def serves_graphs(self) -> bool:
        """Whether ``attend`` decodes with ``AttentionCall.steps``: a CUDA graph can then hold the step."""
        return False

    @property
    def dense_within(self) -> int:
        """Tokens of the longest text that it serves as dense attention does by definition: its window and sinks."""
        return getattr(self, "window", 0) + getattr(self, "sinks", 0)

    def attached(self, model: nn.Module) -> AbstractContextManager[None]:
        """What a retrofit holds open while this variant is in use: nothing, unless the model's own modules change."""
        return nullcontext()

    def derive(self, model: nn.Module, module: nn.Module, layer: int, adapter: Any) -> Any:
        """What this variant computes of a layer's weights, once a retrofit and where it is first read.

        ``module`` is the layer's attention; the result is freed with the retrofit.
        """
        return None

    def stand_in(self, new: NewTokens) -> Any:
        """Something random in place of what ``derive`` gives, to time attention on tokens without a model.

        Raises:
            InvalidInput: the variant cannot serve their shape.
        """
        return None

    def pack(self, new: NewTokens) -> Packed:
        """What a cache holds in place of new tokens' keys and values, each token's from its own."""
        return Packed(self.pack_keys(new.key, new.layer, new.adapter), new.value)

    def pack_keys(self, key: torch.Tensor, layer: int, adapter: Any) -> torch.Tensor:
        """``pack`` of a variant that keeps values as they are: (B, Hkv, N, ...) of keys (B, Hkv, N, D)."""
        raise TypeError(f"{type(self).__name__} does not define pack_keys")

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Attention output (B, Hq, Nq, Dv)."""
        raise TypeError(f"{type(self).__name__} does not define attend")

    def plain_call(self, call: AttentionCall) -> AttentionCall:
        """The call whose dense softmax over the pattern's pairs is what ``attend`` computes: this one, unless the
        variant changes queries and keys.
        """
        return call

    def pattern(self, call: AttentionCall) -> Pattern:
        """Which pairs this call keeps."""
        raise TypeError(f"{type(self).__name__} does not define pattern")

    def routing_space(self, call: AttentionCall) -> RoutingSpace | None:
        """The points that decided this call's groups; None when no learned router did."""
        return None

    def routing_width(self, config: Any) -> int:
        """Numbers a token and layer in ``routing_space``, from the adapter's config; 0 without a learned router."""
        return 0

    def cost(self, shape: Shape) -> Cost:
        """Counted work of one call of that shape, from the config alone."""
        raise TypeError(f"{type(self).__name__} does not define cost")

    def knob_range(self, knob: Knob, length: int, facts: ModelFacts) -> tuple[float, float]:
        """Smallest and largest value of a knob that mean something on ``length`` tokens of that model."""
        return knob.low, length if knob.high is None else knob.high

    def to_dict(self) -> dict[str, Any]:
        """The config as plain values."""
        return dataclasses.asdict(self)


def config_fields(variant: type[Variant]) -> dict[str, dict[str, Any]]:
    """Every field of a variant's config: ``{name: {default, help, choices, minimum, maximum}}``."""
    return {f.name: {"default": f.default, **f.metadata} for f in dataclasses.fields(variant)}


def make(name: str, settings: dict[str, Any] | None = None) -> Variant:
    """Build a variant from its name and settings; strings are converted to each field's type."""
    if name not in VARIANTS:
        raise InvalidInput(f"There is no variant {name!r}.", f"It can be {', '.join(sorted(VARIANTS))}.")
    cls = VARIANTS[name]
    fields = {f.name: f for f in dataclasses.fields(cls)}
    values = {}
    for key, value in (settings or {}).items():
        if key not in fields:
            raise InvalidInput(
                f"{name} has no setting {key!r}.", f"It has {', '.join(fields)}." if fields else "It has no settings."
            )
        values[key] = _convert(name, key, value, fields[key].default)
    return cls(**values)


def _convert(name: str, key: str, value: Any, default: Any) -> Any:
    if not isinstance(value, str) or isinstance(default, str):
        return value
    try:
        if isinstance(default, bool):
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[value.lower()]
        return type(default)(value)
    except (KeyError, ValueError):
        raise InvalidInput(f"{name}.{key} must be {type(default).__name__}, not {value!r}.") from None
