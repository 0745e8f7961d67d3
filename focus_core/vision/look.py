"""What one image does in a model: weights of all heads, rollout, row sums, negative weights, learned curves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from focus_core.errors import InvalidInput

if TYPE_CHECKING:
    import torch

    from focus_core.vision.config import AttentionConfig
    from focus_core.vision.vit import ViT


@dataclass(frozen=True)
class VisionLook:
    """One image through one model.

    Attributes:
        logits: [classes].
        probabilities: [classes], softmax of the logits.
        maps: [depth, heads, N, N], what multiplies the values; signed for KArAt. Token 0 is the class token.
        rollout: [side, side] in patches: the class token's row of the product of (|weights| + identity) / 2, heads
            averaged and rows normalised; sums to 1 with what stays on the class token.
        row_sums: [depth, heads, N]; all 1 for softmax.
        negative_share: [depth, heads], the share of the weights that are negative.
        object_mass: [depth, heads], the share of the class token's |weights| on patches that lies on pixels that are
            not zero, each patch counted by its share of such pixels.
        rollout_mass: the same of the rollout.
        uniform_mass: the same of equal weights: the share of pixels that are not zero.
        kept: [depth], the share of pairs kept; 1 but under XAttention.
    """

    logits: np.ndarray
    probabilities: np.ndarray
    maps: np.ndarray
    rollout: np.ndarray
    row_sums: np.ndarray
    negative_share: np.ndarray
    object_mass: np.ndarray
    rollout_mass: float
    uniform_mass: float
    kept: np.ndarray


def look(model: ViT, images: torch.Tensor, attention: AttentionConfig | None = None) -> VisionLook:
    """Run one image and keep what its attention did.

    Args:
        model: a trained model.
        images: [1, channels, side, side], as ``data.prepare_image`` gives it.
        attention: a trained softmax under XAttention; None: as trained.

    Raises:
        InvalidInput: not exactly one image.
    """
    import torch

    if len(images) != 1:
        raise InvalidInput(f"There are {len(images)} images.", "Give one.")
    maps: list[torch.Tensor] = []
    counts: list[float] = []
    with torch.no_grad():
        logits = model(
            images, watch=lambda layer, w, scores, v: maps.append(w.float()), counts=counts, attention=attention
        )
    weights = torch.stack(maps, 1)
    rolled, cover = rollout(weights), coverage(images, model.config.patch)
    side = model.config.image // model.config.patch
    found = weights[0].cpu().numpy()
    return VisionLook(
        logits[0].float().cpu().numpy(),
        logits[0].float().softmax(-1).cpu().numpy(),
        found,
        rolled[0].view(side, side).cpu().numpy(),
        found.sum(-1),
        (found < 0).mean((-1, -2)),
        object_mass(weights[:, :, :, 0, 1:], cover)[0].cpu().numpy(),
        float(object_mass(rolled, cover)[0]),
        float(cover.mean()),
        np.array(counts or [1.0] * len(maps)),
    )


def coverage(images: torch.Tensor, patch: int) -> torch.Tensor:
    """The share of every patch's pixels that are not black, [batch, patches], from normalised images."""
    import torch.nn.functional as F

    from focus_core.vision.data import BLACK

    shown = (images > BLACK + 1e-3).any(1, keepdim=True).float()
    return F.avg_pool2d(shown, patch).flatten(1)


def rollout(maps: torch.Tensor) -> torch.Tensor:
    """Attention rollout of the class token over the patches.

    Args:
        maps: [batch, depth, heads, N, N].

    Returns:
        [batch, N - 1].
    """
    import torch

    size = maps.abs()
    mean = (size / size.sum(-1, keepdim=True).clamp_min(1e-12)).mean(2)
    eye = torch.eye(maps.shape[-1], device=maps.device)
    total = eye[:1].expand(len(maps), -1, -1)
    for layer in reversed(range(maps.shape[1])):
        total = total @ ((mean[:, layer] + eye) / 2)
    return total[:, 0, 1:]


def object_mass(weights: torch.Tensor, cover: torch.Tensor) -> torch.Tensor:
    """The share of |weights| that lies on the object.

    Args:
        weights: [batch, ..., patches].
        cover: [batch, patches], the share of object pixels of every patch.

    Returns:
        [batch, ...].
    """
    size = weights.abs()
    shape = (len(cover), *([1] * (weights.ndim - 2)), cover.shape[-1])
    return (size * cover.view(shape)).sum(-1) / size.sum(-1).clamp_min(1e-12)


def curves(
    model: ViT, layer: int, head: int, points: int = 121, edges: list[tuple[int, int]] | None = None, span: float = 4.0
) -> tuple[np.ndarray, dict[tuple[int, int], np.ndarray]]:
    """The learned functions of one head.

    Args:
        model: a KArAt model.
        layer: from 0.
        head: from 0.
        points: how many scores from -span to span.
        edges: which (p, q): p of the r numbers, q of the N tokens. None: the four of greatest weight, and the class
            token's of the first p.
        span: the greatest score.

    Returns:
        The scores [points], and the curve of every edge [points].

    Raises:
        InvalidInput: a softmax model, which has no learned functions, or no such edge.
    """
    import torch

    from focus_core.vision.bases import features

    operator = model.operator(layer)
    if operator is None:
        raise InvalidInput("A softmax model has no learned functions.", "Choose a KArAt model.")
    weights = (operator.coefficients * operator.scale.unsqueeze(2))[head].detach().float()
    if edges is None:
        strongest = weights.norm(dim=1).flatten().topk(4).indices.tolist()
        edges = list(dict.fromkeys([divmod(i, operator.tokens) for i in strongest] + [(0, 0)]))
    if any(not (0 <= p < weights.shape[0] and 0 <= q < weights.shape[2]) for p, q in edges):
        raise InvalidInput(f"There is no such edge in {edges}.", f"p < {weights.shape[0]}, q < {weights.shape[2]}.")
    x = torch.linspace(-span, span, points)
    basis = features(x, operator.config.basis, operator.config.grid)
    extra = torch.nn.functional.silu(x) if operator.config.base_function == "silu" else torch.zeros_like(x)
    bases = operator.base[head].detach()
    found = {(p, q): (weights[p, :, q] @ basis + bases[p, q] * extra).numpy() for p, q in edges}
    return x.numpy(), found
