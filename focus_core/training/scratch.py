"""Trains a whole model from nothing through a variant: a model's shape and tokenizer, new weights.

The recipe is the same for every variant. A router is trained with the model from the first step, through the soft gate
and then through the mask that is served. Gradients reach every weight that the variant's attention uses.
"""

from __future__ import annotations

import copy
import hashlib
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from focus_core.adapter import Adapter, own_parameters
from focus_core.errors import Cancelled, InvalidInput
from focus_core.evaluation.environment import environment
from focus_core.evaluation.likelihood import token_nll
from focus_core.jobs.files import read_json, write_json
from focus_core.models.facts import facts_of
from focus_core.retrofit import Retrofit, retrofit
from focus_core.routing.balance import LoadMeter, move_bias
from focus_core.routing.feature_maps import FeatureMaps, FeatureMapsConfig
from focus_core.routing.router import Router, RouterConfig
from focus_core.training.checkpoint import FILE, load_checkpoint, read_checkpoint, save_checkpoint, state_of
from focus_core.training.lengths import check_window
from focus_core.training.scratch_settings import ScratchSettings, adapter_kind, schedule, settings_of
from focus_core.variants import Variant

Progress = Callable[[float, str], None]
RECORD_FILE, ADAPTER_FOLDER = "training_record.json", "adapter"
CURVE = 40
"""Points of the recorded loss curve, each the mean of its share of the steps."""
_LOST = 700.0
"""Nats a token whose perplexity is no number any more."""
_READ_EVERY = 25
"""Steps between looks at the losses, which wait for the device."""


class Whole(nn.Module):
    """Model and adapter as one thing to train and to keep; tied weights are kept once."""

    def __init__(self, model: nn.Module, adapter: Adapter | None) -> None:
        super().__init__()
        self.model, self.adapter = model, adapter

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """See ``nn.Module.state_dict``."""
        own = {name for name, _ in (*self.named_parameters(), *self.named_buffers())}
        return {name: value for name, value in super().state_dict(*args, **kwargs).items() if name in own}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """See ``nn.Module.load_state_dict``; of tied weights one is enough."""
        if strict and set(state) != set(self.state_dict()):
            raise ValueError("it is of another model")
        return super().load_state_dict(state, strict=False, assign=assign)


def new_model(like: nn.Module, seed: int) -> Any:
    """An untrained fp32 model of the same class and shape, in training mode.

    Attention dropout is off, which variants do not have; GPT-2's approximate GELU is computed by one kernel and not by
    eight.
    """
    config = copy.deepcopy(like.config)
    config.dtype = torch.float32
    for name in ("attn_pdrop", "attention_dropout"):
        if getattr(config, name, 0):
            setattr(config, name, 0.0)
    if getattr(config, "activation_function", None) == "gelu_new":
        config.activation_function = "gelu_pytorch_tanh"
    torch.manual_seed(seed)
    kind: Any = type(like)
    return kind(config).float().requires_grad_(True).train()


def new_adapter(variant: Variant, facts: Any, seed: int) -> Adapter | None:
    """What is trained or fixed beside the model's weights; see ``adapter_kind``."""
    kind, own = adapter_kind(variant), variant.to_dict()
    if kind == "router":
        form = "directed"
        router = Router(
            RouterConfig(facts.layers, facts.hidden_size, own["groups"], routers=facts.kv_heads, form=form, seed=seed)
        )
        router.serve = {name: own[name] for name in ("groups", "query_topk", "key_topk", "window", "sinks")}
        return router
    if kind is None:
        return None
    # Trained from nothing, the projections themselves learn what comes first: the maps stay the identity.
    maps = FeatureMaps(FeatureMapsConfig(facts.layers, facts.heads, facts.kv_heads, facts.head_dim))
    maps.serve = {name: own[name] for name in ("features", "select", "sparse")}
    return maps.requires_grad_(False)


def pretrain(
    loaded: Any,
    variant: Variant,
    training_ids: torch.Tensor,
    validation_ids: torch.Tensor,
    settings: ScratchSettings,
    out: str | Path,
    *,
    texts: str = "",
    on_step: Callable[[dict[str, Any]], None] | None = None,
    progress: Progress | None = None,
    cancel: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    """Train a model from nothing.

    Args:
        loaded: a loaded model, whose shape, tokenizer and device are used; its weights are not.
        variant: the attention that is trained through and served.
        training_ids: (T,) token ids that windows are drawn from: the same ones for every variant at the same seed.
        validation_ids: (V,) ids of another text, measured as served; they choose nothing, the last step is kept.
        settings: the recipe.
        out: folder of the model, its tokenizer, ``adapter`` where there is one, and the record. A run with the same
            settings goes on from its checkpoint as if it had never stopped; other settings are refused.
        texts: what the ids are, for the record.
        on_step: told the figures of every validation.
        progress: told the fraction done.
        cancel: asked every step; the checkpoint is written before Cancelled is raised.

    Returns:
        The record: ``settings``, ``step``, ``tokens``, ``seconds``, ``parameters``, ``adapter_parameters``, ``log`` (of
        every validation), ``losses`` (the curve), ``environment``.

    Raises:
        InvalidInput: the texts are shorter than a window, the folder holds another run or a model, or the loss is not
            finite.
        TooLarge: a window is longer than what the model reads.
        Unsupported: the variant cannot be trained so.
        Cancelled: on request.
    """
    out, device = Path(out), loaded.model.device
    for name, ids in (("training", training_ids), ("validation", validation_ids)):
        if len(ids) < settings.context:
            raise InvalidInput(
                f"The {name} text has {len(ids)} tokens and a window takes {settings.context}.",
                "Use a longer text or a smaller context.",
            )
    check_window(settings.context, loaded)
    plan = schedule(variant, settings)
    state = _new_state(variant, training_ids, validation_ids, settings)
    finished = read_json(out / RECORD_FILE)
    if finished is not None:
        _check_same_run(out, finished, state)
        return dict(finished)
    content = read_checkpoint(out)
    if content is None and (out / "config.json").exists():
        raise InvalidInput(f"{out} holds a model, and no run that could go on.", "Name another folder, or delete it.")
    model = new_model(loaded.model, settings.seed).to(device)
    made = new_adapter(variant, facts_of(model), settings.seed)
    adapter = None if made is None else made.to(device)
    whole = Whole(model, adapter)
    optimizer = _optimizer(model, adapter, settings)
    if content is not None:
        state = _go_on(content, out, whole, optimizer, state)
    meter = LoadMeter(adapter, plan.key_topk, plan.sinks) if plan is not None and isinstance(adapter, Router) else None
    held = _windows(validation_ids, settings).to(device)
    training_ids = training_ids.to(device)
    started, before = time.monotonic(), state["seconds"]
    waiting: list[torch.Tensor] = []

    def read_losses() -> None:
        if not waiting:
            return
        found = torch.stack(waiting).tolist()
        waiting.clear()
        if not all(map(math.isfinite, found)):
            raise InvalidInput(f"The loss is {found[-1]} at step {state['step']}.", "Lower the learning rate.")
        state["losses"] += [round(value, 4) for value in found]
        state["seconds"] = before + time.monotonic() - started

    with retrofit(model, variant, adapter, recorder=meter) as active:
        for step in range(state["step"], settings.steps):
            if cancel is not None and cancel():
                read_losses()
                save_checkpoint(out, whole, optimizer, state)
                raise Cancelled(
                    f"Training stopped after {step} of {settings.steps} steps.", "Run it again to go on from here."
                )
            active.variant = variant if plan is None else plan.variant_at(step)
            waiting.append(_step(model, optimizer, training_ids, settings, step, meter))
            if plan is not None and meter is not None:
                move_bias(meter.router, meter, plan.balance_step_at(step))
            state["step"] = step + 1
            if (step + 1) % _READ_EVERY == 0:
                read_losses()
                if progress is not None:
                    progress((step + 1) / settings.steps, f"Step {step + 1}, loss {state['losses'][-1]:.3f}")
            if (step + 1) % settings.validate_every == 0 or step + 1 == settings.steps:
                read_losses()
                state["log"].append(_look(active, held, variant, meter, settings, state))
                if on_step is not None:
                    on_step(state["log"][-1])
            if (step + 1) % settings.checkpoint_every == 0 and step + 1 < settings.steps:
                read_losses()
                save_checkpoint(out, whole, optimizer, state)
    return _keep(out, loaded, whole, settings, state, texts)


def _step(
    model: Any,
    optimizer: torch.optim.Optimizer,
    ids: torch.Tensor,
    settings: ScratchSettings,
    step: int,
    meter: LoadMeter | None,
) -> torch.Tensor:
    """One step; its loss stays on the device."""
    model.train()
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * settings.rate_at(step)
    if meter is not None:
        meter.reset()
    # Everything random of a step comes from its number, so that a resumed run is the same run.
    seed = settings.seed * 1_000_003 + step
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    offsets = torch.arange(settings.context, device=ids.device)
    total = torch.zeros((), device=ids.device)
    optimizer.zero_grad(set_to_none=True)
    for _ in range(settings.accumulate):
        starts = torch.randint(0, len(ids) - settings.context + 1, (settings.batch,), generator=generator)
        window = ids[starts.to(ids.device)[:, None] + offsets].long()
        loss = loss_of(model, window)
        (loss / settings.accumulate).backward()
        total += loss.detach() / settings.accumulate
    nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], settings.clip)
    optimizer.step()
    return total


def loss_of(model: Any, window: torch.Tensor) -> torch.Tensor:
    """Mean next-token loss of windows (B, N); on a GPU the matrix products are in bf16."""
    with torch.autocast(window.device.type, torch.bfloat16, enabled=window.is_cuda):
        logits = model(input_ids=window, use_cache=False).logits
    return F.cross_entropy(logits[:, :-1].float().flatten(0, 1), window[:, 1:].flatten())


def _optimizer(model: Any, adapter: Adapter | None, settings: ScratchSettings) -> torch.optim.AdamW:
    groups: list[dict[str, Any]] = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    for group in groups:
        group["peak"] = settings.learning_rate
    if adapter is not None and (own := [p for p in adapter.parameters() if p.requires_grad]):
        groups.append({"params": own, "weight_decay": 0.0, "peak": settings.router_rate})
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.95), fused=model.device.type == "cuda")


@torch.no_grad()
def _look(
    active: Retrofit,
    held: torch.Tensor,
    variant: Variant,
    meter: LoadMeter | None,
    settings: ScratchSettings,
    state: dict[str, Any],
) -> dict[str, Any]:
    """The served perplexity of the validation windows, in fp32, and the mean loss since the last look."""
    recorder, active.recorder, active.variant = active.recorder, None, variant
    active.model.eval()
    nll = [token_nll(active.model, part).double() for part in held.split(settings.batch)]
    active.recorder = recorder
    mean = torch.cat(nll).mean().item()
    if not mean < _LOST:
        raise InvalidInput(f"The validation loss is {mean:.4g} at step {state['step']}.", "Lower the learning rate.")
    since = state["log"][-1]["step"] if state["log"] else 0
    recent = state["losses"][since:]
    found = {
        "step": state["step"],
        "loss": round(sum(recent) / len(recent), 4),
        "served_ppl": round(math.exp(mean), 4),
    }
    return found if meter is None else found | {"largest_group": round(meter.share().max().item(), 3)}


def _windows(ids: torch.Tensor, settings: ScratchSettings) -> torch.Tensor:
    count = min(settings.validation_windows, len(ids) // settings.context)
    return ids[: count * settings.context].view(count, settings.context).long()


def _new_state(
    variant: Variant, training_ids: torch.Tensor, validation_ids: torch.Tensor, settings: ScratchSettings
) -> dict[str, Any]:
    ids = torch.cat([training_ids, validation_ids]).to(torch.int64).cpu()
    return {
        "settings": settings_of(variant, settings),
        "ids": hashlib.sha256(ids.numpy().tobytes()).hexdigest()[:16],
        "step": 0,
        "log": [],
        "losses": [],
        "seconds": 0.0,
    }


def _check_same_run(out: Path, found: dict[str, Any], asked: dict[str, Any]) -> None:
    changed = [name for name, value in asked["settings"].items() if found["settings"].get(name) != value]
    if changed or found["ids"] != asked["ids"]:
        what = f"other settings ({', '.join(changed)})" if changed else "other texts"
        raise InvalidInput(f"{out} holds a run with {what}.", "Use another folder, or delete it.")


def _go_on(
    content: bytes, out: Path, whole: Whole, optimizer: torch.optim.AdamW, asked: dict[str, Any]
) -> dict[str, Any]:
    """Restore what a checkpoint holds, in place; gives its state."""
    found = state_of(content, out)
    _check_same_run(out, found, asked)
    load_checkpoint(content, out, whole, optimizer)
    for parameter, moments in optimizer.state.items():
        # A fused optimizer counts its steps where it computes.
        moments["step"] = moments["step"].to(parameter.device if parameter.is_cuda else "cpu")
    return found


def _keep(
    out: Path, loaded: Any, whole: Whole, settings: ScratchSettings, state: dict[str, Any], texts: str
) -> dict[str, Any]:
    """Save what was trained; the record comes last and says that all of it is there."""
    model, adapter = whole.model.eval(), whole.adapter
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    if loaded.tokenizer is not None:
        loaded.tokenizer.save_pretrained(out)
    losses = state["losses"]
    size = -(-len(losses) // CURVE)
    record = state | {
        "tokens": settings.tokens,
        "texts": texts,
        "like": loaded.name,
        "seconds": round(state["seconds"], 1),
        "parameters": sum(p.numel() for p in model.parameters()),
        "adapter_parameters": 0 if adapter is None else own_parameters(adapter),
        "losses": [
            [min(i + size, len(losses)), round(sum(losses[i : i + size]) / len(losses[i : i + size]), 4)]
            for i in range(0, len(losses), size)
        ],
        "precision": "bf16 autocast" if model.device.type == "cuda" else "float32",
        "environment": environment(model.device),
    }
    if adapter is not None:
        adapter.record = {name: record[name] for name in ("settings", "step", "tokens", "texts")}
        adapter.eval().save_pretrained(out / ADAPTER_FOLDER, model)
    write_json(out / RECORD_FILE, record, indent=1)
    (out / FILE).unlink(missing_ok=True)
    return record
