"""A model's own rotary embedding, applied to keys that were cached before it."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch
from torch import nn

from focus_core.errors import Unsupported

_CHANGING = ("dynamic", "longrope")
"""Kinds whose angles depend on the length of the text, so that keys rotated earlier have other angles."""


class Rotation:
    """Rotates keys by their positions exactly as the model does; angles are computed once and kept.

    Made by ``rotation_of``.
    """

    def __init__(self, rotary: nn.Module, apply: Any, extra: dict[str, Any], width: int | None = None) -> None:
        self._rotary, self._apply, self._extra, self._width = rotary, apply, extra, width
        self._table: tuple[torch.Tensor, torch.Tensor] | None = None
        self._made_for: tuple[Any, ...] = ()
        self._by_halves: bool | None = None

    def __call__(self, key: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotated keys.

        Args:
            key: (B, H, N, D), not rotated.
            positions: (B or 1, N), each at least 0.
        """
        cos, sin = self._angles(key, positions)
        return self._turned(key, cos, sin)

    def halves(self, like: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Cosines and sines (B or 1, N, D/2) of pairs (u, u + D/2), where that is all there is to the rotation.

        Args:
            like: (B, H, n, D), a tensor of the keys' type and place.
            positions: (B or 1, N), each at least 0.

        Returns:
            The angles, of the model's type; None for a rotation of another form, or of some of a head's numbers.
        """
        dim = like.shape[-1]
        cos, sin = self._angles(like, positions)
        if self._width not in (None, dim) or cos.shape[-1] != dim or dim % 2:
            return None
        cos, sin = cos[..., : dim // 2], sin[..., : dim // 2]
        if self._by_halves is None:
            assert self._table is not None
            angles = [x[None, 1:9].double() for x in self._table]
            probe = torch.arange(8 * dim, device=like.device).view(1, 1, 8, dim).double().sin()
            first, second = probe.chunk(2, -1)
            a, b = (x[:, None, :, : dim // 2] for x in angles)
            wanted = torch.cat([first * a - second * b, second * a + first * b], -1)
            self._by_halves = torch.allclose(self._turned(probe, *angles).double(), wanted, atol=1e-4)
        return (cos, sin) if self._by_halves else None

    def undo(self, key: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """The keys that ``__call__`` would rotate into these."""
        cos, sin = (angle.to(torch.promote_types(angle.dtype, key.dtype)) for angle in self._angles(key, positions))
        # Some models scale cosine and sine, and so the rotated keys.
        squared = cos * cos + sin * sin
        return self._turned(key, cos / squared, -sin / squared)

    def _turned(self, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        width = self._width or key.shape[-1]
        turned = self._apply(key[:, :0, :, :width], key[..., :width], cos, sin)[1]
        return turned if width == key.shape[-1] else torch.cat([turned, key[..., width:]], -1)

    def _angles(self, key: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        end = int(positions.max()) + 1 if positions.numel() else 1
        known, wanted = self._table, (key.dtype, key.device)
        if known is None or known[0].shape[0] < end or self._made_for != wanted:
            size = max(256, 1 << (end - 1).bit_length())
            every = torch.arange(size, device=key.device)[None]
            cos, sin = self._rotary(key, every, **self._extra)
            # In the model's own type: some rotate 16-bit keys by fp32 angles.
            known, self._made_for = (cos[0], sin[0]), wanted
            self._table = known
        if positions.shape[0] == 1 or bool((positions == positions[:1]).all()):
            row = positions[0]
            return known[0][row][None], known[1][row][None]
        return known[0][positions], known[1][positions]


def rotation_of(model: nn.Module, module: nn.Module) -> Rotation | None:
    """The rotation of one attention module's keys; None where nothing in the model rotates.

    Raises:
        Unsupported: angles that change with the length of the text, or a rotary embedding of an unknown form.
    """
    found = [m for m in model.modules() if any(n.endswith("inv_freq") for n, _ in m.named_buffers(recurse=False))]
    if not found:
        return None
    name = type(module).__name__
    apply = getattr(sys.modules[type(module).__module__], "apply_rotary_pos_emb", None)
    if len(found) > 1 or apply is None:
        raise Unsupported(f"The rotary embedding of {name} cannot be found, so its keys cannot be rotated when read.")
    rotary = found[0]
    kinds, extra = getattr(rotary, "rope_type", "default"), {}
    if "layer_type" in inspect.signature(rotary.forward).parameters:
        extra = {"layer_type": module.config.layer_types[module.layer_idx]}
        kinds = kinds[extra["layer_type"]] if isinstance(kinds, dict) else kinds
    if kinds in _CHANGING:
        raise Unsupported(
            f"The rotary embedding of {name} is of kind {kinds!r}: its angles change with the length of the text, so "
            f"that keys cannot be rotated anew."
        )
    # Modules with this field may cut off the numbers that rotate before they call the function.
    return Rotation(rotary, apply, extra, getattr(module, "rotary_ndims", None))
