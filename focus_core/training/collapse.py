"""Does one group take everything? One small model, one router, several ways of keeping groups even, side by side.

The seeds claim that a soft constraint (a balance loss) is evaded when the rest of the model can move, by three ways:
centroids drift together, the projection folds, or the hidden states themselves change. Here each is measured, and at
every look each part is put back to how it began, alone: the part whose return evens the groups is the one that
carries the collapse.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F

from focus_core.errors import Cancelled, InvalidInput
from focus_core.routing.balance import LoadMeter, move_bias, move_duals
from focus_core.routing.router import PAPER_TEMPERATURE, Router, sinkhorn_over_sequence
from focus_core.training.settings import TrainSettings
from focus_core.training.trainer import RoutedModel, draw_windows, new_adapter
from focus_core.variants import make

ORDER = ("none", "loss", "sinkhorn", "bias", "paper")
"""The balancings, softest first; ``paper`` is the published one: Sinkhorn inside the forward pass, over the sequence,
which makes a token's groups depend on later tokens."""
PARTS = ("centroids", "projection", "hidden")
"""What can move, in the order of the seeds: centroid drift, projection bypass, representational bypass."""


@dataclass(frozen=True)
class CollapseSettings:
    """One experiment.

    Attributes:
        balances: which balancings run, of ``ORDER``; they see the same windows in the same order.
        steps: optimizer steps.
        moves_from: step from which the model's own weights are trained too; None keeps them frozen.
        groups, dim, window, sinks: the router (shared form, one a layer) and the mask that is served.
        context, batch: tokens a window, windows a step.
        learning_rate, model_rate: of the router and of the model's weights (AdamW, no decay, 10 steps of warm-up).
        temperature: of the soft memberships, constant, as in the paper.
        balance_weight, balance_step: of the balance loss, and of a bias step.
        look_every: steps between two looks at the moving parts and the served perplexity.
        seed: of the router and of the windows.
    """

    balances: tuple[str, ...] = ORDER
    steps: int = 300
    moves_from: int | None = None
    groups: int = 8
    dim: int = 16
    window: int = 16
    sinks: int = 2
    context: int = 256
    batch: int = 8
    learning_rate: float = 3e-3
    model_rate: float = 1e-3
    temperature: float = 0.1
    balance_weight: float = 0.01
    balance_step: float = 0.02
    look_every: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what could not run."""
        if not self.balances or set(self.balances) - set(ORDER):
            raise InvalidInput(f"The balancings are {self.balances!r}.", f"Each can be {', '.join(ORDER)}.")
        for name in ("look_every", "model_rate"):
            if not getattr(self, name) > 0:
                raise InvalidInput(f"{name} is {getattr(self, name)}.", "It must be more than 0.")
        self.training("none")

    def training(self, balance: str) -> TrainSettings:
        """The settings of one balancing's router, as for any training."""
        taken = ("steps", "groups", "dim", "window", "sinks", "context", "batch", "learning_rate", "balance_weight")
        return TrainSettings(
            form="paper" if balance == "paper" else "shared",
            router_per_kv_head=False,
            query_topk=1,
            balance="none" if balance == "paper" else balance,
            temperature_start=self.temperature,
            temperature_end=self.temperature,
            straight_through_from=1.0,
            seed=self.seed,
            **{name: getattr(self, name) for name in taken},
        )


def compare_balances(
    loaded: Any,
    training_ids: torch.Tensor,
    validation_ids: torch.Tensor,
    settings: CollapseSettings,
    *,
    on_record: Callable[[dict[str, Any]], None] | None = None,
    progress: Callable[[float, str], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> list[dict[str, Any]]:
    """Train one router a balancing, step by step in turn, each beside its own copy of the model.

    Args:
        loaded: anything with ``model`` and ``facts``; the model is copied, not changed.
        training_ids: (T,) ids that windows are drawn from.
        validation_ids: (V,) ids of another text; its first windows are looked at.
        settings: the experiment.
        on_record: told every step of every balancing as it is known.
        progress: told the fraction done.
        cancel: asked at every step of every balancing.

    Returns:
        One record a step and balancing: ``balance``, ``step`` (updates so far), ``loss`` (of the language model, soft
        gate, training windows), ``load`` (L, K) share of the tokens in each group (hard, as the method assigns them in
        training; sinks left out), and at looks what ``_Run.look`` gives.

    Raises:
        Cancelled: on request.
    """
    runs = [_Run(loaded, balance, validation_ids, settings) for balance in settings.balances]
    records = []
    for step in range(settings.steps + 1):
        for i, run in enumerate(runs):
            if cancel is not None and cancel():
                raise Cancelled(f"Stopped after {step} of {settings.steps} steps.")
            record = run.step(training_ids, step)
            records.append(record)
            if on_record is not None:
                on_record(record)
            if progress is not None:
                done = (step * len(runs) + i + 1) / ((settings.steps + 1) * len(runs))
                progress(done, f"Step {step} of {settings.steps}, balancing {run.balance}")
    return records


class _PaperMeter(LoadMeter):
    """Counts the groups that Sinkhorn over the sequence assigns, as the paper does."""

    def _count(self, call, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return super()._count(call, sinkhorn_over_sequence(logits / PAPER_TEMPERATURE, call.first_key))


class _Run:
    """One balancing: its own copy of the model, its router, and how both began."""

    def __init__(self, loaded: Any, balance: str, validation_ids: torch.Tensor, settings: CollapseSettings) -> None:
        self.balance, self.settings = balance, settings
        self.training = settings.training(balance)
        self.model = copy.deepcopy(loaded.model)
        self.loaded = SimpleNamespace(model=self.model, facts=loaded.facts)
        router = new_adapter(loaded.facts, self.training)
        assert isinstance(router, Router)
        self.router = router.to(self.model.device)
        self.routed = RoutedModel(self.model, self.router)
        self.optimizer = torch.optim.AdamW(self.router.parameters(), lr=settings.learning_rate, weight_decay=0.0)
        self.meter = (_PaperMeter if balance == "paper" else LoadMeter)(
            self.router,
            1,
            settings.sinks,
            keep_logits=balance == "sinkhorn",
            temperature=settings.temperature if balance == "loss" else None,
        )
        count = max(1, min(4, len(validation_ids) // settings.context))
        self.probe = validation_ids[: count * settings.context].view(count, -1).to(self.model.device)
        self.began = copy.deepcopy(self.router)
        self.hidden_began, _ = self._hidden()

    def step(self, training_ids: torch.Tensor, step: int) -> dict[str, Any]:
        """Record what the parameters after ``step`` updates do, then update them once more."""
        settings = self.settings
        looks = step % settings.look_every == 0 or step == settings.steps
        seen = self.look() if looks else {}
        if step == settings.moves_from:
            self.model.requires_grad_(True)
            self.optimizer.add_param_group({"params": list(self.model.parameters()), "model": True})
        self.meter.reset()
        last = step == settings.steps
        ids = draw_windows(training_ids, self.training, step, 0).to(self.model.device)
        with torch.set_grad_enabled(not last):
            loss, penalty = self.routed(ids, self.training.variant_at(min(step, settings.steps - 1)), self.meter)
        if not math.isfinite(loss.item()):
            raise InvalidInput(f"The loss is {loss.item()} at step {step}.", "Lower the learning rates.")
        load = self.meter.load[:, 0]
        load = load / load.sum(-1, keepdim=True).clamp_min(1)
        if not last:
            self._update(loss + settings.balance_weight * penalty, step)
        rounded = [[round(x, 4) for x in row] for row in load.tolist()]
        return {"balance": self.balance, "step": step, "loss": loss.item(), "load": rounded, **seen}

    def _update(self, loss: torch.Tensor, step: int) -> None:
        settings = self.settings
        for group in self.optimizer.param_groups:
            own = group.get("model", False)
            since = step - (settings.moves_from or 0) if own else step
            group["lr"] = (settings.model_rate if own else settings.learning_rate) * min(1.0, (since + 1) / 10)
        self.optimizer.zero_grad()
        loss.backward()
        for group in self.optimizer.param_groups:
            torch.nn.utils.clip_grad_norm_(group["params"], 1.0)
        self.optimizer.step()
        if self.balance == "bias":
            move_bias(self.router, self.meter, settings.balance_step)
        elif self.balance == "sinkhorn":
            move_duals(self.router, self.meter)

    @torch.no_grad()
    def look(self) -> dict[str, Any]:
        """Perplexities of the held-back windows, dense and served, and the state of all that can move.

        Returns:
            ``dense_ppl``, ``served_ppl``, ``kept_pairs``; ``certainty`` (mean largest soft share of a token) and
            ``soft_largest`` (largest mean soft share); ``largest`` (share of tokens in the fullest group when each
            token is routed by itself, as in serving); for each part ``back`` (``largest`` with that part alone as it
            began) and ``moved`` (how far it is from its start: angle of centroids in degrees, relative change of the
            projection, 1 - cosine of the hidden states); ``spread`` of centroids, routed points and hidden states
            (1 - squared length of the mean direction: 0 when all point the same way); ``rank`` of the points
            (participation ratio). All are means over layers.
        """
        from focus_core.evaluation.likelihood import token_nll
        from focus_core.evaluation.recorders import PairCounter
        from focus_core.retrofit import retrofit

        hidden, dense = self._hidden()
        pairs = PairCounter()
        served = self.training.variant_at(None)
        with retrofit(self.model, served, adapter=self.router, recorder=pairs):
            nll = token_nll(self.model, self.probe).mean().item()
        kept = [k for b in range(len(self.probe)) for k in pairs.kept(b)]
        layers = [self._layer(layer, hidden[layer], self.hidden_began[layer]) for layer in range(len(hidden))]
        return {
            "dense_ppl": round(math.exp(dense), 4),
            "served_ppl": round(math.exp(nll), 4),
            "kept_pairs": round(sum(kept) / len(kept), 5),
            **_mean(layers),
        }

    def _layer(self, layer: int, hidden: torch.Tensor, hidden_began: torch.Tensor) -> dict[str, Any]:
        now = _Parts.of(self.router, layer, hidden)
        began = _Parts.of(self.began, layer, hidden_began)
        logits = now.logits()
        soft = (logits / self.settings.temperature).softmax(-1)
        points = now.points()
        variances = torch.linalg.eigvalsh((points - points.mean(0)).T @ (points - points.mean(0))).clamp_min(0)
        turn = (now.directions() * began.directions()).sum(-1).clamp(-1, 1).acos().rad2deg()
        return {
            "certainty": soft.amax(-1).mean(),
            "soft_largest": soft.mean(0).max(),
            "largest": now.largest(),
            "rank": variances.sum() ** 2 / (variances**2).sum().clamp_min(1e-12),
            "back": {part: dataclasses.replace(now, **{part: getattr(began, part)}).largest() for part in PARTS},
            "moved": {
                "centroids": turn.mean(),
                "projection": (now.projection - began.projection).norm() / began.projection.norm(),
                "hidden": 1 - F.cosine_similarity(now.hidden, began.hidden, dim=-1).mean(),
            },
            "spread": {
                "centroids": _spread(now.directions()),
                "projection": _spread(points),
                "hidden": _spread(F.normalize(now.hidden, dim=-1)),
            },
        }

    @torch.no_grad()
    def _hidden(self) -> tuple[list[torch.Tensor], float]:
        """What each layer's router reads under dense attention (tokens, d), sinks left out; and the dense loss."""
        from focus_core.evaluation.likelihood import token_nll
        from focus_core.retrofit import retrofit

        found: dict[int, torch.Tensor] = {}
        sinks = self.settings.sinks

        class Keep:
            def record(self, call, variant) -> None:
                found[call.layer] = call.hidden[:, sinks:].float().flatten(0, 1)

        with retrofit(self.model, make("dense"), recorder=Keep()):
            loss = token_nll(self.model, self.probe).mean().item()
        return [found[layer] for layer in sorted(found)], loss


@dataclass(frozen=True)
class _Parts:
    """What decides one layer's groups: each part may be exchanged."""

    hidden: torch.Tensor
    projection: torch.Tensor
    centroids: torch.Tensor
    bias: torch.Tensor
    unit: bool

    @classmethod
    def of(cls, router: Router, layer: int, hidden: torch.Tensor) -> _Parts:
        projection, centroids, bias = (
            part[layer, 0].detach().float() for part in (router.key_projection, router.centroids, router.bias)
        )
        return cls(hidden, projection, centroids, bias, unit=not router.is_paper)

    def points(self) -> torch.Tensor:
        return F.normalize(self.hidden @ self.projection, dim=-1)

    def directions(self) -> torch.Tensor:
        return F.normalize(self.centroids, dim=-1)

    def logits(self) -> torch.Tensor:
        if self.unit:
            return self.points() @ self.directions().T + self.bias
        return self.hidden @ self.projection @ self.centroids.T + self.bias

    def largest(self) -> torch.Tensor:
        """Share of the tokens in the fullest group."""
        chosen = self.logits().argmax(-1)
        return torch.bincount(chosen, minlength=len(self.centroids)).max() / len(chosen)


def _spread(directions: torch.Tensor) -> torch.Tensor:
    return 1 - directions.mean(0).square().sum()


def _mean(layers: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean over layers of nested numbers, rounded."""
    first = layers[0]
    return {
        name: _mean([layer[name] for layer in layers])
        if isinstance(first[name], dict)
        else round(float(sum(float(layer[name]) for layer in layers)) / len(layers), 5)
        for name in first
    }
