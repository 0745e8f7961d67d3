"""What a key's own score does to its own weight: the part of KArAt that stands where softmax has its exponential."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from focus_core.errors import InvalidInput

if TYPE_CHECKING:
    import torch

    from focus_core.vision.vit import ViT


def scores_of(model: ViT, images: torch.Tensor) -> np.ndarray:
    """The scores Q K^T / sqrt(d) of one image before softmax or the learned functions: [depth, heads, N, N]."""
    import torch

    found: list[torch.Tensor] = []
    with torch.no_grad():
        model(images, watch=lambda layer, weights, scores, values: found.append(scores[0].float()))
    return torch.stack(found).cpu().numpy()


def own_curves(model: ViT, layer: int, head: int, x: np.ndarray) -> np.ndarray:
    """The curve of every key: the sum over p of W[k, p] phi_pk(x), before any projection onto the simplex.

    Every weight of a KArAt row depends on all N scores; this is the part that depends on the key's own. With the
    projection of the rank vector it is what the part would be without it.

    Args:
        model: a KArAt model.
        layer: from 0.
        head: from 0.
        x: scores, [points].

    Returns:
        [N, points].

    Raises:
        InvalidInput: the model has no learned functions.
    """
    import torch
    import torch.nn.functional as F

    from focus_core.vision.bases import features

    operator = model.operator(layer)
    if operator is None:
        raise InvalidInput("A softmax model has no learned functions.", "Choose a KArAt model.")
    given = torch.from_numpy(np.ascontiguousarray(x, np.float32))
    basis = features(given, operator.config.basis, operator.config.grid)
    with torch.no_grad():
        weights = (operator.coefficients * operator.scale.unsqueeze(2))[head].float()
        phi = torch.einsum("pfq,fx->pqx", weights, basis)
        if operator.config.base_function == "silu":
            phi = phi + operator.base[head].float().unsqueeze(-1) * F.silu(given)
        if operator.mix is None:
            return phi.diagonal().T.contiguous().numpy()
        return torch.einsum("kp,pkx->kx", operator.mix[head].float(), phi).numpy()
