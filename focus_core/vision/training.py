"""Trains a vision transformer; one recipe for every arm, so that only the attention differs."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from focus_core.errors import Cancelled, InvalidInput
from focus_core.evaluation.environment import environment
from focus_core.vision.augment import draw, fit, move, reach_of, smoothed_loss
from focus_core.vision.config import ViTConfig, operator_count, parameter_count
from focus_core.vision.graphed_step import Drawn, GraphedSteps, eager_steps
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


class Training:
    """One run, an epoch at a time: ``begin`` starts an epoch's steps, ``end`` waits for them.

    Args:
        config: the model's shape and attention.
        images: all of them are put on the device.
        recipe: the training.
        out: the checkpoint's file; a run with the same settings goes on from it, and ends as if never stopped.
            Whoever keeps the model removes it then.
        device: ``cpu`` or ``cuda``; on a GPU the matrix products are in bf16.
        graph: whether each step is one captured CUDA graph; None: on a GPU. The same operations either way.
        checkpoint_every: epochs.
        own_stream: on a GPU, work on a stream of its own, so that several runs of one process overlap there.

    Attributes:
        epoch: how many are done.
        done: whether all are.

    Raises:
        InvalidInput: the checkpoint is damaged or of another run, or there are too few images.
    """

    def __init__(
        self,
        config: ViTConfig,
        images: Images,
        recipe: Recipe,
        out: str | Path,
        device: str = "cpu",
        graph: bool | None = None,
        checkpoint_every: int = 5,
        own_stream: bool = False,
    ) -> None:
        self.config, self.images, self.recipe, self.path = config, images, recipe, Path(out)
        self.place, self.checkpoint_every = torch.device(device), checkpoint_every
        self.cuda = self.place.type == "cuda"
        if config.attention.kind == "xattention":
            raise InvalidInput("XAttention is not trained.", "Train softmax, and look at it under XAttention.")
        self.count = len(images.train) - recipe.validation
        self.steps = self.count // recipe.batch
        if recipe.validation < 1:
            raise InvalidInput(f"{recipe.validation} images are held out.", "Hold out 1 or more of 5 or more images.")
        if self.steps < 1:
            raise InvalidInput(
                f"{self.count} training images are fewer than a batch of {recipe.batch}.", "Make it smaller."
            )
        self._stream = torch.cuda.Stream(self.place) if self.cuda and own_stream else None
        with self._here():
            self._prepare(self.cuda if graph is None else graph)

    def _here(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _prepare(self, graph: bool) -> None:
        from accelerate import Accelerator

        recipe, images, place = self.recipe, self.images, self.place
        self.accelerator = Accelerator(cpu=not self.cuda, mixed_precision="bf16" if self.cuda else "no")
        torch.manual_seed(recipe.seed)
        self.model = ViT(self.config).to(place)
        if self.cuda:
            torch.cuda.reset_peak_memory_stats(place)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay, fused=self.cuda
        )
        self.identity = {
            "model": self.config.as_dict(),
            "recipe": dataclasses.asdict(recipe),
            "images": len(images.train),
        }
        self.history: dict[str, list] = {"losses": [], "validation": [], "epoch_seconds": []}
        self.epoch = 0
        if self.path.is_file():
            self._resume()
        self.runner, self.prepared = self.accelerator.prepare(
            self.model, self.optimizer, device_placement=[False, False]
        )
        self.x = torch.tensor(images.train, device=place)
        self.y = torch.tensor(images.train_labels, device=place)
        order = np.random.default_rng(0).permutation(len(images.train))
        self.held = torch.tensor(order[: recipe.validation], device=place)
        self.pool = torch.tensor(order[recipe.validation :], device=place)
        self.graphed = GraphedSteps(self._learn, self.optimizer, place) if graph else None

    def _resume(self) -> None:
        try:
            stored = torch.load(self.path, map_location=self.place, weights_only=True)
            made_by = stored["identity"]
        except Exception as error:
            raise InvalidInput(
                f"{self.path} is no checkpoint that can be read ({type(error).__name__}).", "Remove it to begin anew."
            ) from None
        if made_by != json.dumps(self.identity):
            raise InvalidInput(f"{self.path} is a checkpoint of another run.", "Name another file, or remove it.")
        self.model.load_state_dict(stored["model"])
        self.optimizer.load_state_dict(stored["optimizer"])
        self.history, self.epoch = stored["history"], stored["epoch"]

    @property
    def done(self) -> bool:
        """Whether all epochs are made."""
        return self.epoch >= self.recipe.epochs

    def save(self) -> None:
        """Write the checkpoint of the epochs that are done."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        optimizer = self.optimizer.state_dict()
        # A captured step has its rate on the device; a checkpoint is the same for both.
        for group in optimizer["param_groups"]:
            group |= {"lr": float(group["lr"]), "capturable": False}
        state = {"model": self.model.state_dict(), "optimizer": optimizer, "history": self.history, "epoch": self.epoch}
        torch.save(state | {"identity": json.dumps(self.identity)}, self.path.with_suffix(".part"))
        os.replace(self.path.with_suffix(".part"), self.path)

    def begin(self) -> None:
        """Start the steps of the next epoch."""
        recipe, steps = self.recipe, self.steps
        with self._here():
            # Everything random of an epoch comes from its number, so that a resumed run is the same run.
            chance = torch.Generator(self.place).manual_seed(recipe.seed * 100_003 + self.epoch)
            shuffled = self.pool[torch.randperm(self.count, generator=chance, device=self.place)]
            self.model.train()
            self._begun = time.perf_counter()
            drawn = [draw(recipe.batch, recipe, self.config, chance) for _ in range(steps)]
            given = Drawn(
                shuffled[: steps * recipe.batch].view(steps, recipe.batch),
                torch.stack([moved for moved, _ in drawn]),
                torch.stack([mirrored for _, mirrored in drawn if mirrored is not None]) if recipe.flip else None,
            )
            total = steps * recipe.epochs
            rates = [_rate(recipe, self.epoch * steps + step, steps, total) for step in range(steps)]
            if self.graphed is None:
                self._losses = torch.stack(eager_steps(self._learn, self.optimizer, given, rates))
            else:
                self._losses = self.graphed(given, rates)

    def _learn(self, index: torch.Tensor, moved: torch.Tensor, mirrored: torch.Tensor | None) -> torch.Tensor:
        """One step. Nothing in it waits on the host, so that it can be captured."""
        batch = move(fit(self.x[index], self.config), moved, mirrored, reach_of(self.recipe, self.config))
        with self.accelerator.autocast():
            logits = self.runner(batch)
        loss = smoothed_loss(logits.float(), self.y[index], self.recipe.label_smoothing)
        self.accelerator.backward(loss)
        self.accelerator.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self.prepared.step()
        self.prepared.zero_grad(set_to_none=True)
        return loss.detach()

    def end(self) -> None:
        """Wait for the epoch that was begun, and hold it against the validation images."""
        with self._here():
            self.history["losses"] += self._losses.tolist()
            self.history["epoch_seconds"].append(time.perf_counter() - self._begun)
            self.history["validation"].append(accuracy(self.model, self.x[self.held], self.y[self.held]))
            self.epoch += 1
            if self.epoch % self.checkpoint_every == 0 and not self.done:
                self.save()

    def finish(self) -> tuple[ViT, dict[str, Any]]:
        """The trained model in evaluation mode, and the run's document."""
        config, images, place, history = self.config, self.images, self.place, self.history
        with self._here():
            # Prepared for mixed precision, a model stays in it; what is kept and tested computes in fp32.
            model = ViT(config).to(place)
            model.load_state_dict(self.model.state_dict())
            model.eval()
            labels = torch.tensor(images.test_labels, device=place)
            tested = accuracy(model, torch.tensor(images.test, device=place), labels)
        alone = self.cuda and self._stream is None
        why = "It was not asked for." if self.graphed is None else self.graphed.why_not()
        document = {
            "accuracy": tested,
            "parameters": parameter_count(config),
            "operator_parameters": operator_count(config),
            "tokens": config.tokens,
            "validation": history["validation"],
            "loss": _thin(history["losses"]),
            "loss_spread": spikes(history["losses"]),
            "epoch_seconds": history["epoch_seconds"],
            "steps_an_epoch": self.steps,
            "train_images": self.count,
            "peak_memory_bytes": torch.cuda.max_memory_allocated(place) if alone else None,
            "precision": "bf16 autocast" if self.cuda else "float32",
            "step": {"captured": not why, "why_not": why},
            **self.identity,
            "environment": environment(place),
        }
        return model, document


def train(
    config: ViTConfig,
    images: Images,
    recipe: Recipe,
    out: str | Path,
    device: str = "cpu",
    progress: Progress | None = None,
    cancel: Callable[[], bool] | None = None,
    checkpoint_every: int = 5,
    graph: bool | None = None,
) -> tuple[ViT, dict[str, Any]]:
    """Train one model.

    Args:
        config: as of ``Training``, and so all that follow.
        images: all of them.
        recipe: the training.
        out: the checkpoint's file.
        device: ``cpu`` or ``cuda``.
        progress: told the fraction done.
        cancel: asked every epoch; the checkpoint is written before Cancelled is raised.
        checkpoint_every: epochs.
        graph: whether each step is one captured CUDA graph; None: on a GPU.

    Returns:
        The model in evaluation mode, and the run's document.

    Raises:
        InvalidInput: the checkpoint is damaged or of another run, or there are too few images.
        Cancelled: on request.
    """
    run = Training(config, images, recipe, out, device, graph, checkpoint_every)
    while not run.done:
        if cancel is not None and cancel():
            run.save()
            raise Cancelled
        run.begin()
        run.end()
        if progress is not None:
            progress(run.epoch / recipe.epochs, f"epoch {run.epoch}: {run.history['validation'][-1]:.1%} held out")
    return run.finish()


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


def _thin(losses: list[float]) -> dict[str, list]:
    at = np.unique(np.linspace(0, len(losses) - 1, min(CURVE, len(losses))).round().astype(int))
    return {"step": at.tolist(), "loss": [round(losses[i], 4) for i in at]}
