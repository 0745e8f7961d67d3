"""Images as the model takes them, and their random shifts and mirror images; and the loss that is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from focus_core.vision.config import ViTConfig
from focus_core.vision.data import BLACK, normalise

if TYPE_CHECKING:
    from focus_core.vision.training import Recipe


def fit(images: torch.Tensor, config: ViTConfig) -> torch.Tensor:
    """uint8 images [batch, side, side] as the model takes them; enlarged where its side is greater."""
    found = normalise(images)
    if found.shape[-1] != config.image:
        found = F.interpolate(found, size=config.image, mode="bilinear", align_corners=False)
    return found


def augment(images: torch.Tensor, recipe: Recipe, config: ViTConfig, chance: torch.Generator) -> torch.Tensor:
    """Random mirror images and shifts, each image its own; what moves in is black. Same shape."""
    return move(images, *draw(len(images), recipe, config, chance), reach_of(recipe, config))


def draw(
    n: int, recipe: Recipe, config: ViTConfig, chance: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What is random of ``n`` images: where a window begins in the padded image, [2, n, 1], and which are mirrored."""
    reach = reach_of(recipe, config)
    moved = torch.randint(0, 2 * reach + 1, (2, n, 1), generator=chance, device=chance.device)
    return moved, torch.rand(n, 1, generator=chance, device=chance.device) < 0.5 if recipe.flip else None


def move(images: torch.Tensor, moved: torch.Tensor, mirrored: torch.Tensor | None, reach: int) -> torch.Tensor:
    """Images [n, 1, side, side] as drawn, at most ``reach`` pixels away. Same shape."""
    n, _, side, _ = images.shape
    place = images.device
    along = torch.arange(side, device=place)
    rows, columns = moved[0] + along, moved[1] + along
    if mirrored is not None:
        columns = torch.where(mirrored, columns.flip(1), columns)
    padded = F.pad(images, (reach,) * 4, value=BLACK)
    which = torch.arange(n, device=place).view(n, 1, 1)
    return padded[which, 0, rows.unsqueeze(2), columns.unsqueeze(1)].unsqueeze(1)


def reach_of(recipe: Recipe, config: ViTConfig) -> int:
    """The greatest shift in pixels: the recipe's belongs to 28."""
    return recipe.shift * config.image // 28 if config.image > 28 else recipe.shift


def smoothed_loss(logits: torch.Tensor, labels: torch.Tensor, smoothing: float) -> torch.Tensor:
    """Cross-entropy with smoothed labels, as torch's own, which may count the labels on the host."""
    log_p = logits.log_softmax(-1)
    return (1 - smoothing) * F.nll_loss(log_p, labels) - log_p.sum(1).mean() * (smoothing / logits.shape[1])
