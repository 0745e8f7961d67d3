"""What a training run is asked to do, and what changes from step to step."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from focus_core.errors import InvalidInput
from focus_core.variants import VARIANTS, Variant, make
from focus_core.variants.base import CHANGES_MODEL, option

KINDS = ("router", "temperature", "lora", "full", "sfa", "latent")
FORMS = ("directed", "shared", "paper")
MAPS = ("balanced", "identity")
WEIGHTINGS = ("activations", "weights")
BALANCES = ("bias", "sinkhorn", "loss", "none")


@dataclass(frozen=True)
class TrainSettings:
    """A whole run. Defaults are the recipe of the shipped directed router at 4,096 tokens on a GPU.

    Every field says what it is in its help, which ``train --help`` prints.
    """

    kind: str = option(
        "router",
        "what is trained: router, temperature (control: one far-temperature a layer), lora (low-rank updates of "
        "the attention's projections), full (a copy of all weights, the rival of adapters), sfa (maps of queries and "
        "keys before their features are chosen), or latent (factors that make keys and values from a small latent)",
    )
    form: str = option(
        "directed",
        "router: one map for queries and one for keys (directed), one for both (shared), or the published form (paper)",
    )
    groups: int = option(16, "router: number of groups, K")
    dim: int = option(16, "router: size of the space that tokens are routed in")
    router_per_kv_head: bool = option(True, "router: one router a KV head instead of one a layer")
    query_topk: int = option(4, "groups that a query looks for, in the mask that is trained for and served")
    key_topk: int = option(1, "groups that a key belongs to")
    window: int = option(128, "nearest tokens that are always seen")
    sinks: int = option(4, "first tokens that are always seen")
    through: str = option(
        "dense",
        "lora and full: the variant that is trained through and served, with settings if any, for example 'performer "
        "features=128'; its window and sinks are those above unless named here",
    )
    through_adapter: str = option(
        "",
        "lora and full: folder of the adapter that this variant reads, where it needs one; it stays as it is, and the "
        "new adapter holds a copy of it",
    )
    rank: int = option(8, "lora and latent: rank of the factors, r")
    alpha: float = option(16.0, "lora: an update is scaled by alpha / r")
    targets: str = option("qv", "lora: projections that are updated, letters of qkvo")
    features: int = option(16, "sfa: features kept of every query and key, trained for and served")
    select: str = option(
        "features",
        "sfa: which are kept: features (the largest), or first (the same for every token: short embeddings)",
    )
    sparse: str = option("both", "sfa: what is made sparse: both queries and keys, or keys alone (keys)")
    maps: str = option(
        "balanced",
        "sfa: where the maps start: balanced (fitted to the model's own queries and keys) or identity",
    )
    rotary: int = option(0, "latent: rotated numbers of each KV head's key that are kept")
    weighting: str = option("activations", "latent: what the factors start from: activations or weights")
    output_weight: float = option(
        1.0,
        "sfa and latent: weight of the error against dense attention beside the language model's loss",
    )
    freeze_centroids: bool = option(
        False, "router (control): the random centroids stay where they start, and the projections alone are trained"
    )
    distil: float = option(
        0.0,
        "share of the loss that is the divergence from the dense model's next-token distribution instead of the text's "
        "own next token; 1 = the text's is not used",
    )
    start_from: str = option(
        "",
        "router: folder of a trained router whose weights and table of looks this run starts from; its groups, dim, "
        "form, routers and query_topk must be these settings'",
    )
    steps: int = option(550, "optimizer steps")
    context: int = option(4096, "tokens a window")
    batch: int = option(2, "windows a forward pass")
    accumulate: int = option(1, "forward passes a step")
    learning_rate: float = option(1e-2, "AdamW's peak rate")
    warmup: int = option(20, "steps of linear warm-up, then cosine")
    clip: float = option(1.0, "limit of the gradient's norm")
    temperature_start: float = option(0.3, "router: temperature of the soft memberships at the start")
    temperature_end: float = option(0.05, "router: that at the end, reached geometrically")
    straight_through_from: float = option(
        0.5,
        "router: share of the steps after which the forward pass is the served mask itself; 1 = never",
    )
    balance: str = option(
        "bias",
        "router: what keeps groups even: a bias moved by bias (sign of the hard-load error) or sinkhorn (duals), "
        "loss (a penalty beside the language model's loss, a soft constraint), or none",
    )
    balance_step_start: float = option(0.02, "router: size of a bias step at the start")
    balance_step_end: float = option(0.002, "router: that at the end, reached linearly")
    balance_weight: float = option(0.01, "router: weight of the penalty of balance=loss")
    validate_every: int = option(50, "steps between measurements of the served perplexity")
    validation_windows: int = option(8, "windows of each measurement")
    checkpoint_every: int = option(100, "steps between checkpoints; a killed run loses at most these")
    seed: int = option(0, "of the initial weights and of the windows drawn")

    def __post_init__(self) -> None:
        """Refuse what could not train, before any work."""
        choices = {"kind": KINDS, "form": FORMS, "balance": BALANCES, "maps": MAPS, "weighting": WEIGHTINGS}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise InvalidInput(
                    f"Training setting {name} is {getattr(self, name)!r}.", f"It can be {', '.join(allowed)}."
                )
        positive = (
            "groups dim query_topk key_topk window steps context batch accumulate validate_every validation_windows "
            "checkpoint_every learning_rate clip temperature_start temperature_end rank alpha"
        )
        for name in positive.split():
            if not getattr(self, name) > 0:
                raise InvalidInput(f"Training setting {name} is {getattr(self, name)}.", "It must be more than 0.")
        if not self.balance_weight >= 0:
            raise InvalidInput(f"Training setting balance_weight is {self.balance_weight}.", "It can be 0 or more.")
        if max(self.query_topk, self.key_topk) > self.groups:
            raise InvalidInput(
                f"A token cannot join {max(self.query_topk, self.key_topk)} of {self.groups} groups.",
                "Raise groups, or lower query_topk and key_topk.",
            )
        if self.form != "directed" and self.query_topk != self.key_topk:
            raise InvalidInput(
                f"A {self.form} router has one assignment for queries and keys, so query_topk {self.query_topk} and "
                f"key_topk {self.key_topk} must be equal.",
                "Use the directed form, or equal values.",
            )
        if not self.output_weight >= 0:
            raise InvalidInput(f"Training setting output_weight is {self.output_weight}.", "It can be 0 or more.")
        if not 0 <= self.distil <= 1:
            raise InvalidInput(f"Training setting distil is {self.distil}.", "It can be from 0 to 1.")
        if self.rotary < 0 or self.rotary % 2:
            raise InvalidInput(
                f"Training setting rotary is {self.rotary}.", "It can be 0, 2, 4 and so on: whole pairs."
            )
        if self.kind == "sfa" and self.select == "pairs":
            raise InvalidInput("Maps mix rotary pairs, so pairs cannot be chosen after them.", "Use select=features.")
        if self.kind in ("router", "temperature") and self.context <= self.window + self.sinks:
            raise InvalidInput(
                f"Nothing is far in {self.context} tokens when window and sinks keep {self.window + self.sinks}.",
                f"Use a context over {self.window + self.sinks}, or a smaller window.",
            )
        if not self.through.split():
            raise InvalidInput("Training setting through is empty.", "Name a variant, for example dense.")
        if self.start_from:
            self._check_start()
        for step in (None, 0, self.steps - 1):
            self.variant_at(step)

    def to_dict(self) -> dict:
        """The settings as plain values."""
        return dataclasses.asdict(self)

    def variant_at(self, step: int | None) -> Variant:
        """The variant of a training step, or the served one when ``step`` is None."""
        if self.kind == "temperature":
            return make("temperature", {"window": self.window, "sinks": self.sinks})
        if self.kind in CHANGES_MODEL:
            return self._through()
        if self.kind == "sfa":
            return make("sfa", {name: getattr(self, name) for name in ("features", "select", "sparse")})
        if self.kind == "latent":
            return make("mla", {"rank": self.rank, "rotary": self.rotary})
        mask = {name: getattr(self, name) for name in ("groups", "query_topk", "key_topk", "window", "sinks")}
        if step is None:
            return make("focus", mask)
        return make("focus", {**mask, "gate": self.gate_at(step), "temperature": self.temperature_at(step)})

    def _check_start(self) -> None:
        """Refuse to start from what is another router than these settings ask for."""
        from focus_core.adapter import read_config

        found = read_config(self.start_from)
        if self.kind != "router" or found["kind"] != "router":
            raise InvalidInput(
                f"{self.start_from} is an adapter of kind {found['kind']}, and one of kind {self.kind} is trained.",
                "A router starts from a router.",
            )
        has = {name: found["config"].get(name) for name in ("groups", "dim", "form")}
        if found["config"].get("looks") is not None:
            has["query_topk"] = found["serve"].get("query_topk")
        if wrong := [name for name, value in has.items() if value != getattr(self, name)]:
            raise InvalidInput(
                f"{self.start_from} has {', '.join(f'{name} {has[name]}' for name in wrong)}, and the run "
                f"{', '.join(str(getattr(self, name)) for name in wrong)}.",
                f"Give {' '.join(f'--{name} {has[name]}'.replace('_', '-') for name in wrong)}.",
            )

    def _through(self) -> Variant:
        name, *given = self.through.split()
        if name not in VARIANTS:
            raise InvalidInput(f"There is no variant {name!r} to train through.", f"It can be {', '.join(VARIANTS)}.")
        if wrong := [item for item in given if "=" not in item]:
            raise InvalidInput(f"{wrong[0]!r} is no setting of {name}.", "Write FIELD=VALUE.")
        served = self._through_served(name)
        fields = {field.name for field in dataclasses.fields(VARIANTS[name])}
        near = {key: getattr(self, key) for key in ("window", "sinks") if key in fields}
        return make(name, near | served | dict(item.split("=", 1) for item in given))

    def _through_served(self, name: str) -> dict:
        """The settings that the variant's own adapter is served with."""
        from focus_core.adapter import read_config

        kind = VARIANTS[name].adapter_kind
        if not self.through_adapter:
            if kind and not VARIANTS[name].adapter_optional:
                raise InvalidInput(
                    f"{name} reads an adapter of kind {kind}, and none was named.", "Name its folder: through_adapter."
                )
            return {}
        found = read_config(self.through_adapter)
        if found["kind"] != kind:
            raise InvalidInput(
                f"{self.through_adapter} is an adapter of kind {found['kind']}; {name} reads "
                f"{f'one of kind {kind}' if kind else 'none'}.",
                "Leave out through_adapter." if kind is None else "",
            )
        return dict(found["serve"])

    @property
    def penalty_weight(self) -> float:
        """Weight of the loss beside the language model's; 0 where there is none."""
        if self.kind in ("sfa", "latent"):
            return self.output_weight
        return self.balance_weight if self.balance == "loss" else 0.0

    def learning_rate_at(self, step: int) -> float:
        """Linear warm-up, then cosine to zero."""
        ramp = min(1.0, (step + 1) / max(1, self.warmup))
        return self.learning_rate * ramp * (0.5 + 0.5 * math.cos(math.pi * step / self.steps))

    def temperature_at(self, step: int) -> float:
        """Geometric from the start to the end temperature."""
        return self.temperature_start * (self.temperature_end / self.temperature_start) ** (step / self.steps)

    def balance_step_at(self, step: int) -> float:
        """Linear from the start to the end step."""
        return self.balance_step_start + (self.balance_step_end - self.balance_step_start) * step / self.steps

    def gate_at(self, step: int) -> str:
        """The training gate of this step."""
        if self.form == "paper":
            return "paper"
        return "straight_through" if step >= self.straight_through_from * self.steps else "soft"
