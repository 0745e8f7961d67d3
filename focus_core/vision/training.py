"""Trains a vision transformer; one recipe for every arm, so that only the attention differs."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from focus_core.errors import Cancelled, InvalidInput
from focus_core.evaluation.environment import environment
from focus_core.vision.config import ViTConfig, operator_count, parameter_count
from focus_core.vision.data import BLACK, normalise
from focus_core.vision.vit import ViT

Progress = Callable[[float, str], None]
CURVE = 120
"""Points kept of a loss curve."""


@dataclass(frozen=True)
class Recipe:
    """The training of every arm: AdamW, linear warm-up, cosine, label smoothing, clipping, flips and shifts.

    Attributes:
        epochs: over the training images less the validation images.
        batch: images a step.
        learning_rate: its peak.
        floor: the rate at the end.
        warmup: epochs of rising rate.
        weight_decay: of all parameters.
        label_smoothing: of the loss that is trained.
        clip: greatest norm of the gradient.
        flip: whether images are mirrored at random.
        shift: greatest random shift, pixels.
        validation: training images held out; the test images are looked at once, at the end.
        seed: of the weights, the order and the augmentation.
    """

    epochs: int = 20
    batch: int = 512
    learning_rate: float = 2e-3
    floor: float = 1e-5
    warmup: float = 2.0
    weight_decay: float = 0.05
    label_smoothing: float = 0.1
    clip: float = 1.0
    flip: bool = True
    shift: int = 2
    validation: int = 5000
    seed: int = 0


DIGITS_RECIPE = Recipe(epochs=60, batch=128, flip=False, shift=1, validation=200, warmup=4.0, learning_rate=4e-3)


@dataclass(frozen=True)
class Images:
    """Training and test images as uint8 [n, side, side], labels int64 [n]."""

    train: np.ndarray
    train_labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray


def train(
    config: ViTConfig,
    images: Images,
    recipe: Recipe,
    out: str | Path,
    device: str = "cpu",
    progress: Progress | None = None,
    cancel: Callable[[], bool] | None = None,
    checkpoint_every: int = 5,
) -> tuple[ViT, dict[str, Any]]:
    """Train one model.

    Args:
        config: its shape and attention.
        images: all of them are put on the device.
        recipe: the training.
        out: the checkpoint's file; a run with the same settings goes on from it, and ends as if never stopped.
            Whoever keeps the model removes it then.
        device: ``cpu`` or ``cuda``; on a GPU the matrix products are in bf16.
        progress: told the fraction done.
        cancel: asked every epoch; the checkpoint is written before Cancelled is raised.
        checkpoint_every: epochs.

    Returns:
        The model in evaluation mode, and the run's document.

    Raises:
        InvalidInput: the checkpoint is damaged or of another run, or there are too few images.
        Cancelled: on request.
    """
    from accelerate import Accelerator

    path = Path(out)
    cuda = torch.device(device).type == "cuda"
    accelerator = Accelerator(cpu=not cuda, mixed_precision="bf16" if cuda else "no")
    place = torch.device(device)
    if config.attention.kind == "xattention":
        raise InvalidInput("XAttention is not trained.", "Train softmax, and look at it under XAttention.")
    count = len(images.train) - recipe.validation
    steps = count // recipe.batch
    if recipe.validation < 1:
        raise InvalidInput(f"{recipe.validation} images are held out.", "Hold out 1 or more of 5 or more images.")
    if steps < 1:
        raise InvalidInput(f"{count} training images are fewer than a batch of {recipe.batch}.", "Make it smaller.")
    torch.manual_seed(recipe.seed)
    model = ViT(config).to(place)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay, fused=cuda
    )
    identity = {"model": config.as_dict(), "recipe": dataclasses.asdict(recipe), "images": len(images.train)}
    history: dict[str, list] = {"losses": [], "validation": [], "epoch_seconds": []}
    start = 0
    if path.is_file():
        try:
            stored = torch.load(path, map_location=place, weights_only=True)
            made_by = stored["identity"]
        except Exception as error:
            raise InvalidInput(
                f"{path} is no checkpoint that can be read ({type(error).__name__}).", "Remove it to begin anew."
            ) from None
        if made_by != json.dumps(identity):
            raise InvalidInput(f"{path} is a checkpoint of another run.", "Name another file, or remove it.")
        model.load_state_dict(stored["model"])
        optimizer.load_state_dict(stored["optimizer"])
        history, start = stored["history"], stored["epoch"]
    runner, prepared = accelerator.prepare(model, optimizer, device_placement=[False, False])
    x, y = torch.tensor(images.train, device=place), torch.tensor(images.train_labels, device=place)
    order = np.random.default_rng(0).permutation(len(images.train))
    held = torch.tensor(order[: recipe.validation], device=place)
    pool = torch.tensor(order[recipe.validation :], device=place)
    total = steps * recipe.epochs

    def save(epoch: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "history": history, "epoch": epoch}
        torch.save(state | {"identity": json.dumps(identity)}, path.with_suffix(".part"))
        os.replace(path.with_suffix(".part"), path)

    for epoch in range(start, recipe.epochs):
        if cancel is not None and cancel():
            save(epoch)
            raise Cancelled
        # Everything random of an epoch comes from its number, so that a resumed run is the same run.
        chance = torch.Generator(place).manual_seed(recipe.seed * 100_003 + epoch)
        shuffled = pool[torch.randperm(count, generator=chance, device=place)]
        model.train()
        losses, begun = [], time.perf_counter()
        for step in range(steps):
            _set_rate(optimizer, _rate(recipe, epoch * steps + step, steps, total))
            index = shuffled[step * recipe.batch : (step + 1) * recipe.batch]
            batch = augment(fit(x[index], config), recipe, config, chance)
            with accelerator.autocast():
                logits = runner(batch)
            loss = F.cross_entropy(logits.float(), y[index], label_smoothing=recipe.label_smoothing)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), recipe.clip)
            prepared.step()
            prepared.zero_grad(set_to_none=True)
            losses.append(loss.detach())
        history["losses"] += torch.stack(losses).tolist()
        history["epoch_seconds"].append(time.perf_counter() - begun)
        history["validation"].append(accuracy(model, x[held], y[held]))
        if (epoch + 1) % checkpoint_every == 0 and epoch + 1 < recipe.epochs:
            save(epoch + 1)
        if progress is not None:
            progress((epoch + 1) / recipe.epochs, f"epoch {epoch + 1}: {history['validation'][-1]:.1%} held out")
    # Prepared for mixed precision, a model stays in it; what is kept and tested computes in fp32.
    trained = model
    model = ViT(config).to(place)
    model.load_state_dict(trained.state_dict())
    model.eval()
    tested = accuracy(model, torch.tensor(images.test, device=place), torch.tensor(images.test_labels, device=place))
    document = {
        "accuracy": tested,
        "parameters": parameter_count(config),
        "operator_parameters": operator_count(config),
        "tokens": config.tokens,
        "validation": history["validation"],
        "loss": _thin(history["losses"]),
        "loss_spread": spikes(history["losses"]),
        "epoch_seconds": history["epoch_seconds"],
        "steps_an_epoch": steps,
        "train_images": count,
        "peak_memory_bytes": torch.cuda.max_memory_allocated(place) if cuda else None,
        "precision": "bf16 autocast" if cuda else "float32",
        **identity,
        "environment": environment(place),
    }
    return model, document


def fit(images: torch.Tensor, config: ViTConfig) -> torch.Tensor:
    """uint8 images [batch, side, side] as the model takes them; enlarged where its side is greater."""
    found = normalise(images)
    if found.shape[-1] != config.image:
        found = F.interpolate(found, size=config.image, mode="bilinear", align_corners=False)
    return found


def augment(images: torch.Tensor, recipe: Recipe, config: ViTConfig, chance: torch.Generator) -> torch.Tensor:
    """Random mirror images and shifts, each image its own; what moves in is black. Same shape."""
    n, _, side, _ = images.shape
    place = images.device
    reach = recipe.shift * config.image // 28 if config.image > 28 else recipe.shift
    moved = torch.randint(0, 2 * reach + 1, (2, n, 1), generator=chance, device=place)
    along = torch.arange(side, device=place)
    rows, columns = moved[0] + along, moved[1] + along
    if recipe.flip:
        mirrored = torch.rand(n, 1, generator=chance, device=place) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
    padded = F.pad(images, (reach,) * 4, value=BLACK)
    which = torch.arange(n, device=place).view(n, 1, 1)
    return padded[which, 0, rows.unsqueeze(2), columns.unsqueeze(1)].unsqueeze(1)


@torch.no_grad()
def accuracy(model: ViT, images: torch.Tensor, labels: torch.Tensor, batch: int = 1000, **how: Any) -> float:
    """The share of uint8 images [n, side, side] classified right, in fp32; ``how`` goes to the model."""
    model.eval()
    right = torch.zeros((), device=labels.device, dtype=torch.long)
    for i in range(0, len(images), batch):
        logits = model(fit(images[i : i + batch], model.config), **how)
        right += (logits.argmax(-1) == labels[i : i + batch]).sum()
    return right.item() / len(images)


def spikes(losses: list[float], window: int = 25) -> dict[str, float]:
    """How unsteady a loss curve is: differences from the median of the ``window`` steps before.

    Returns:
        ``early`` and ``late``: mean loss of the first and last tenth; ``roughness``: the standard deviation of the
        differences over the last half; ``spikes``: the share of those steps more than 0.3 above the median.
    """
    tenth = max(len(losses) // 10, 1)
    half = range(max(len(losses) // 2, 1), len(losses))
    gaps = [losses[i] - statistics.median(losses[max(0, i - window) : i]) for i in half] or [0.0]
    return {
        "early": statistics.fmean(losses[:tenth]),
        "late": statistics.fmean(losses[-tenth:]),
        "roughness": statistics.pstdev(gaps),
        "spikes": sum(g > 0.3 for g in gaps) / len(gaps),
    }


def _rate(recipe: Recipe, step: int, steps: int, total: int) -> float:
    warm = max(round(recipe.warmup * steps), 1)
    if step < warm:
        return recipe.learning_rate * (step + 1) / warm
    along = (step - warm) / max(total - warm, 1)
    return recipe.floor + (recipe.learning_rate - recipe.floor) * 0.5 * (1 + math.cos(math.pi * along))


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def _thin(losses: list[float]) -> dict[str, list]:
    at = np.unique(np.linspace(0, len(losses) - 1, min(CURVE, len(losses))).round().astype(int))
    return {"step": at.tolist(), "loss": [round(losses[i], 4) for i in at]}
