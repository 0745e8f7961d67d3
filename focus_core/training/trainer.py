"""The training loop: a frozen model, a small adapter, and the served function watched all the way."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from focus_core.adapter import CONFIG_FILE, WEIGHTS_FILE, Adapter, fingerprint, load_adapter, own_parameters
from focus_core.errors import Cancelled, InvalidInput, Unsupported
from focus_core.processes import Processes
from focus_core.routing.balance import LoadMeter, move_bias, move_duals
from focus_core.routing.factorise import factorise, latent_settings
from focus_core.routing.feature_maps import FeatureMaps, FeatureMapsConfig, fit_feature_maps
from focus_core.routing.latent import LatentFactors
from focus_core.routing.router import Router, RouterConfig
from focus_core.routing.temperature import FarTemperature, FarTemperatureConfig
from focus_core.training.checkpoint import load_checkpoint, read_checkpoint, save_checkpoint, state_of
from focus_core.training.lengths import check_window
from focus_core.training.output_error import OutputError
from focus_core.training.settings import TrainSettings
from focus_core.training.validation import Validator
from focus_core.variants import CHANGES_MODEL, FULL, Variant, make

Progress = Callable[[float, str], None]
RECORD_FILE = "training_record.json"
_FIT_WINDOWS = 8


class RoutedModel(nn.Module):
    """Base model and adapter, and what is learned from: the loss of one forward."""

    def __init__(self, base: nn.Module, adapter: Adapter, distil: float = 0.0) -> None:
        super().__init__()
        self.base, self.adapter, self.distil = base, adapter, distil

    def forward(
        self, ids: torch.Tensor, variant: Variant, meter: LoadMeter | OutputError | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean next-token loss of ``ids`` (B, N) with the variant in the model, and the meter's loss (0 without).

        A share ``distil`` of it is the divergence KL(dense || variant) of the next-token distributions.
        """
        from focus_core.retrofit import retrofit
        from focus_core.training.distil import divergence

        dense = None
        if self.distil:
            with torch.no_grad(), retrofit(self.base, make("dense")):
                dense = self.base(input_ids=ids, use_cache=False).logits[:, :-1]
        with retrofit(self.base, variant, adapter=self.adapter, recorder=meter):
            logits = self.base(input_ids=ids, use_cache=False).logits[:, :-1]
        loss = torch.zeros((), device=logits.device)
        if self.distil < 1:
            loss = (1 - self.distil) * F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
        if dense is not None:
            loss = loss + self.distil * divergence(dense, logits)
        penalty = None if meter is None else meter.take_loss()
        return loss, torch.zeros_like(loss) if penalty is None else penalty


def new_adapter(facts: Any, settings: TrainSettings, model: nn.Module | None = None) -> Adapter:
    """An untrained adapter of the settings' kind for a model with these facts; what changes the model looks at it."""
    if settings.kind in CHANGES_MODEL:
        from focus_core.full import new_full
        from focus_core.lora import new_lora

        assert model is not None, "LoRA updates modules of a model, and full fine-tuning copies its weights"
        folder, through = settings.through_adapter, settings.variant_at(None).name
        reads = load_adapter(folder, model) if folder else None
        if settings.kind == FULL:
            return new_full(model, through=through, reads=reads)
        shape: dict[str, Any] = {name: getattr(settings, name) for name in ("rank", "alpha", "targets", "seed")}
        return new_lora(model, **shape, through=through, reads=reads)
    if settings.kind == "sfa":
        return FeatureMaps(FeatureMapsConfig(facts.layers, facts.heads, facts.kv_heads, facts.head_dim))
    if settings.kind == "latent":
        return LatentFactors(latent_settings(facts, settings.rank, settings.rotary))
    if settings.kind == "temperature":
        return FarTemperature(FarTemperatureConfig(facts.layers))
    routers = facts.kv_heads if settings.router_per_kv_head else 1
    config = RouterConfig(
        facts.layers, facts.hidden_size, settings.groups, settings.dim, routers, settings.form, settings.seed
    )
    router = _started(settings.start_from, config, model) if settings.start_from else Router(config)
    router.centroids.requires_grad_(not settings.freeze_centroids)
    return router


def _started(folder: str, config: RouterConfig, model: nn.Module | None) -> Router:
    """The router of a folder, trainable; InvalidInput where it has another shape than this one."""
    router = Adapter.from_pretrained(folder, model, trainable=True)
    assert isinstance(router, Router), "the settings have refused every other kind"
    if router.config.routers != config.routers:
        raise InvalidInput(
            f"{folder} has {router.config.routers} routers a layer, and the run {config.routers}.",
            f"Give --{'' if router.config.routers > 1 else 'no-'}router-per-kv-head.",
        )
    return router


def train(
    loaded: Any,
    training_ids: torch.Tensor,
    validation_ids: torch.Tensor,
    settings: TrainSettings,
    out: str | Path,
    *,
    texts: str = "",
    on_step: Callable[[dict[str, Any]], None] | None = None,
    watch: Callable[[int, Adapter, torch.Tensor | None], None] | None = None,
    validate_start: bool = False,
    progress: Progress | None = None,
    cancel: Callable[[], bool] | None = None,
) -> Adapter:
    """Train an adapter; the folder holds the best one by SERVED validation perplexity at any time.

    Args:
        loaded: a loaded model (``focus_core.models.load_model``); its weights are not changed.
        training_ids: (T,) token ids that windows are drawn from.
        validation_ids: (V,) token ids of another text; the first windows of it choose the adapter that is kept.
        settings: the run.
        out: folder of the adapter, its record and its checkpoint. A run with the same settings goes on from the
            checkpoint; other settings are refused.
        texts: what the ids are, for the record.
        on_step: told every step's metrics: step, loss, temperature, gate, largest_group (share over fair share), and
            on validation steps served_ppl, kept_pairs.
        watch: shown the adapter before the first step of this process and after every step: steps done, the adapter
            (to look at, not to change), and each group's load over its fair share (L, R, K); None before a step and
            for a control without groups.
        validate_start: measure the untrained adapter too, as step 0; ``on_step`` is then told its served_ppl,
            kept_pairs and dense_ppl.
        progress: told the fraction done.
        cancel: asked every step; the checkpoint is written before Cancelled is raised.

    Returns:
        The adapter that is kept, in eval mode.
    """
    out = Path(out)
    _check_lengths(training_ids, validation_ids, settings)
    check_window(settings.context, loaded)
    processes = Processes(loaded.model.device)
    _check_shares(processes, settings)
    if settings.kind == "latent" and hasattr(loaded.model, "focus_fingerprint"):
        raise Unsupported("A latent's factors are made of whole weights, and the model is sharded.", "Leave out shard.")
    processes.hint = f"What was done up to the last checkpoint is in {out}: start the same command again to go on."
    adapter = new_adapter(loaded.facts, settings, loaded.model).to(loaded.model.device)
    optimizer = torch.optim.AdamW(
        (p for p in adapter.parameters() if p.requires_grad), lr=settings.learning_rate, weight_decay=0.0
    )
    state = _new_state(loaded.model, training_ids, validation_ids, settings)
    processes.check_alike("settings, weights or texts", json.dumps([state["settings"], state["model"], state["ids"]]))
    # Only the first process needs the folder: the others may be on other machines.
    content = processes.told(read_checkpoint(out) if processes.main else None)
    if content is not None:
        found = state_of(content, out)
        _check_same_run(out, found, state)
        load_checkpoint(content, out, adapter, optimizer)
        state = found
    elif settings.kind == "latent" or (settings.kind == "sfa" and settings.maps == "balanced"):
        adapter.load_state_dict(_fitted(loaded.model, training_ids, settings).state_dict())
    processes.same(adapter.state_dict().values())
    routed = RoutedModel(loaded.model, adapter, settings.distil)
    meter = _meter(adapter, settings, processes)
    validator = Validator(loaded, adapter, validation_ids, settings, processes)
    if state["dense_ppl"] is None:
        state["dense_ppl"] = validator.dense()
    started, before = time.monotonic(), state["seconds"]
    if validate_start and state["step"] == 0 and on_step is not None:
        on_step({"step": 0, "dense_ppl": state["dense_ppl"]} | validator.served())
    if watch is not None:
        watch(state["step"], adapter, None)

    def checkpoint() -> None:
        state["seconds"] = before + time.monotonic() - started
        if processes.main:
            save_checkpoint(out, adapter, optimizer, state)
            _write_record(out, state)
        # One that ended before it is written would have the launcher end the writer.
        processes.wait()

    for step in range(state["step"], settings.steps):
        if _stop_asked(processes, cancel):
            checkpoint()
            raise Cancelled(
                f"Training stopped after {step} of {settings.steps} steps.", "Run it again to go on from here."
            )
        metrics = _step(processes, routed, optimizer, meter, training_ids, settings, step)
        state["step"] = step + 1
        if (step + 1) % settings.validate_every == 0 or step + 1 == settings.steps:
            metrics |= validator.served()
            if not math.isfinite(metrics["served_ppl"]):
                raise InvalidInput(f"The served loss is no number at step {step + 1}.", "Lower the learning rate.")
            if metrics["served_ppl"] < (state["best_ppl"] or math.inf):
                state |= {"best_ppl": metrics["served_ppl"], "best_step": step + 1}
                state["seconds"] = before + time.monotonic() - started
                if processes.main:
                    _keep(out, adapter, loaded, settings, state, texts, processes.count)
        state["log"].append(metrics)
        if on_step is not None:
            on_step(metrics)
        if watch is not None:
            watch(step + 1, adapter, meter.share() if isinstance(meter, LoadMeter) else None)
        if progress is not None:
            progress((step + 1) / settings.steps, f"Step {step + 1} of {settings.steps}, loss {metrics['loss']:.3f}")
        if (step + 1) % settings.checkpoint_every == 0:
            checkpoint()
    checkpoint()
    return _kept(out, loaded.model, processes)


def _kept(out: Path, model: nn.Module, processes: Processes) -> Adapter:
    """The folder's adapter, for processes without the folder too."""
    files = [
        processes.told((out / name).read_bytes() if processes.main else None) for name in (CONFIG_FILE, WEIGHTS_FILE)
    ]
    if processes.main:
        return Adapter.from_pretrained(out, model)
    with tempfile.TemporaryDirectory() as folder:
        for name, content in zip((CONFIG_FILE, WEIGHTS_FILE), files, strict=True):
            (Path(folder) / name).write_bytes(content or b"")
        return Adapter.from_pretrained(folder, model)


def _fitted(model: nn.Module, ids: torch.Tensor, settings: TrainSettings) -> Adapter:
    """What training starts from where it does not start from nothing."""
    drawn = [draw_windows(ids, settings, 0, -1 - i)[:1] for i in range(_FIT_WINDOWS)]
    windows = torch.cat(drawn)
    if settings.kind == "sfa":
        return fit_feature_maps(model, windows)
    return factorise(model, windows, settings.rank, rotary=settings.rotary, weighting=settings.weighting)


def _new_state(
    model: nn.Module, training_ids: torch.Tensor, validation_ids: torch.Tensor, settings: TrainSettings
) -> dict[str, Any]:
    ids = torch.cat([training_ids, validation_ids]).to(torch.int64).cpu()
    return {
        "settings": settings.to_dict(),
        "model": fingerprint(model),
        "ids": hashlib.sha256(ids.numpy().tobytes()).hexdigest()[:16],
        "step": 0,
        "log": [],
        "best_ppl": None,
        "best_step": None,
        "dense_ppl": None,
        "seconds": 0.0,
    }


def _check_same_run(out: Path, found: dict[str, Any], asked: dict[str, Any]) -> None:
    """Refuse to go on with another run than the one that the folder holds."""
    # A setting that came with a later version had its default before.
    before = {**TrainSettings().to_dict(), **found["settings"]}
    changed = [name for name, value in asked["settings"].items() if before[name] != value]
    if changed:
        what = f"other settings ({', '.join(changed)})"
    elif found.get("model") != asked["model"]:
        what = "another model"
    elif found.get("ids") != asked["ids"]:
        what = "other texts"
    else:
        return
    raise InvalidInput(f"{out} holds a run with {what}.", "Use another folder, or delete it.")


def _stop_asked(processes: Processes, cancel: Callable[[], bool] | None) -> bool:
    """Whether any process was asked to stop: one that left alone would keep the others waiting for its gradients."""
    return bool(processes.sum(torch.tensor(float(cancel is not None and cancel()))) > 0)


def _check_lengths(training_ids: torch.Tensor, validation_ids: torch.Tensor, settings: TrainSettings) -> None:
    for name, ids in (("training", training_ids), ("validation", validation_ids)):
        if len(ids) < settings.context:
            raise InvalidInput(
                f"The {name} text has {len(ids)} tokens and a window takes {settings.context}.",
                "Use a longer text or a smaller context.",
            )


def _check_shares(processes: Processes, settings: TrainSettings) -> None:
    if settings.batch % processes.count:
        fitting = -(-settings.batch // processes.count) * processes.count
        raise InvalidInput(
            f"A batch of {settings.batch} windows cannot be shared evenly by {processes.count} processes.",
            f"The batch is that of all processes together: take {fitting}, or start fewer processes.",
        )


def _meter(adapter: Adapter, settings: TrainSettings, processes: Processes) -> LoadMeter | OutputError | None:
    if settings.kind in ("sfa", "latent") and settings.output_weight:
        return OutputError(processes.mean)
    if not isinstance(adapter, Router):
        return None
    meter = LoadMeter(adapter, settings.key_topk, settings.sinks, keep_logits=settings.balance == "sinkhorn")
    meter.summed, meter.processes = processes.sum, processes.count
    return meter


def _step(processes, routed, optimizer, meter, training_ids, settings, step) -> dict[str, Any]:
    variant = settings.variant_at(step)
    for group in optimizer.param_groups:
        group["lr"] = settings.learning_rate_at(step)
    weight = settings.penalty_weight
    if meter is not None:
        meter.reset()
    if isinstance(meter, LoadMeter):
        meter.temperature = settings.temperature_at(step) if weight else None
    total = 0.0
    optimizer.zero_grad()
    for part in range(settings.accumulate):
        ids = processes.own(draw_windows(training_ids, settings, step, part)).to(processes.device)
        loss, penalty = routed(ids, variant, meter)
        whole = loss + weight * penalty if weight else loss
        (whole / settings.accumulate).backward()
        total += processes.mean(loss.detach()).item() / settings.accumulate
    if not math.isfinite(total):
        raise InvalidInput(f"The loss is {total} at step {step}.", "Lower the learning rate.")
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    processes.average_gradients(trained)
    nn.utils.clip_grad_norm_(trained, settings.clip)
    optimizer.step()
    metrics = {"step": step + 1, "loss": total, "temperature": settings.temperature_at(step)}
    if isinstance(meter, OutputError):
        metrics["output_error"] = processes.mean(torch.tensor(meter.seen)).mean().item()
    if isinstance(meter, LoadMeter):
        meter.load = processes.sum(meter.load)
        if settings.balance == "bias":
            move_bias(meter.router, meter, settings.balance_step_at(step))
        elif settings.balance == "sinkhorn":
            meter.logits = {n: processes.gather(x.transpose(0, 1)).transpose(0, 1) for n, x in meter.logits.items()}
            move_duals(meter.router, meter)
        share = meter.share().amax(-1)
        metrics |= {
            "gate": variant.to_dict()["gate"],
            "largest_group": share.max().item(),
            "mean_largest_group": share.mean().item(),
        }
    return metrics


def draw_windows(ids: torch.Tensor, settings: TrainSettings, step: int, part: int) -> torch.Tensor:
    """(batch, context) windows of all processes; they depend on the step alone, so a resumed run sees the same."""
    generator = torch.Generator().manual_seed(((settings.seed * 1_000_003 + step) * 101 + part) * 1_009)
    starts = torch.randint(0, len(ids) - settings.context + 1, (settings.batch,), generator=generator)
    return torch.stack([ids[s : s + settings.context] for s in starts]).long()


def _keep(
    out: Path, adapter: Adapter, loaded: Any, settings: TrainSettings, state: dict, texts: str, processes: int
) -> None:
    from focus_core.evaluation.environment import environment

    served = settings.variant_at(None).to_dict()
    if settings.kind in CHANGES_MODEL:
        adapter.serve = served
    elif settings.kind == "latent":
        adapter.serve = {name: served[name] for name in ("rank", "rotary")}
    else:
        adapter.serve = {name: value for name, value in served.items() if name in settings.to_dict()}
    adapter.record = {
        "settings": settings.to_dict(),
        "trained_parameters": own_parameters(adapter),
        "tokens": state["step"] * settings.batch * settings.accumulate * settings.context,
        "texts": texts,
        "step": state["step"],
        "seconds": round(state["seconds"], 1),
        **({"processes": processes} if processes > 1 else {}),
        "served_validation_ppl": state["best_ppl"],
        "dense_validation_ppl": state["dense_ppl"],
        **adapter.about(loaded.model),
        "environment": environment(loaded.model.device),
    }
    adapter.save_pretrained(out, loaded.model)


def _write_record(out: Path, state: dict[str, Any]) -> None:
    temporary = out / f".{RECORD_FILE}.{os.getpid()}"
    temporary.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, out / RECORD_FILE)
