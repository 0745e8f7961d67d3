"""What Slim attention makes of one layer's weights: how its state is computed, and keys and values from the state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from focus_core.errors import Unsupported
from focus_core.models.projections import Projection, projections_of
from focus_core.models.rotation import Rotation, rotation_of

if TYPE_CHECKING:
    from focus_core.kernels.slim.operands import Finish
    from focus_core.variants.base import AttentionCall

_KEY_NORMS = ("k_norm", "k_layernorm", "key_norm", "key_layernorm")
_AGREES = {torch.float64: 1e-3, torch.float32: 1e-3}
_AGREES_16 = 0.1


def between(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The matrix M with ``source @ M = target``, solved in fp64 and left there.

    Args:
        source: (d, d).
        target: (d, e).

    Raises:
        Unsupported: ``source`` is not square, or has no inverse.
    """
    if source.shape[0] != source.shape[1]:
        raise Unsupported(f"A projection of {source.shape[0]} to {source.shape[1]} numbers has no inverse.")
    try:
        return torch.linalg.solve(source.double(), target.double())
    except RuntimeError as problem:
        raise Unsupported("A projection has no inverse: it is singular in double precision.") from problem


@dataclass(frozen=True)
class Parts:
    """One attention module's projections and what follows its keys'.

    Attributes:
        query, key, value: its projections.
        heads, head_dim: its shape.
        norm: the norm of its keys; None without.
        rotation: of its keys; None without.
    """

    query: Projection
    key: Projection
    value: Projection
    heads: int
    head_dim: int
    norm: nn.Module | None
    rotation: Rotation | None

    @property
    def placed(self) -> bool:
        """Whether keys are changed after their projection."""
        return self.norm is not None or self.rotation is not None

    def finish(self, key: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Keys (R, H, n, D) as attention takes them, at positions (R or 1, n)."""
        if self.norm is not None:
            # A norm of all heads at once sees them as they leave the projection.
            if getattr(self.norm, "weight", key).numel() > self.head_dim:
                key = self.norm(key.transpose(1, 2).flatten(2)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            else:
                key = self.norm(key)
        return key if self.rotation is None else self.rotation(key, positions)


def parts_of(model: nn.Module, module: nn.Module) -> Parts:
    """Read an attention module of a model whose query heads have a key and value head each.

    Raises:
        Unsupported: it cannot be read.
    """
    config: Any = module.config
    heads = int(config.num_attention_heads)
    head_dim = int(getattr(module, "head_dim", None) or config.hidden_size // heads)
    children = dict(module.named_children())
    norm = next((children[name] for name in _KEY_NORMS if name in children), None)
    return Parts(*projections_of(module, heads, head_dim), heads, head_dim, norm, rotation_of(model, module))


def random_parts(key: torch.Tensor) -> Parts:
    """Random projections for keys (B, H, N, D), of a hidden state as wide as they are together."""
    _, heads, _, dim = key.shape
    generator = torch.Generator().manual_seed(0)

    def draw() -> Projection:
        weight = torch.randn(heads * dim, heads * dim, generator=generator) / (heads * dim) ** 0.5
        return Projection(weight.to(key.device, key.dtype), None)

    return Parts(draw(), draw(), draw(), heads, dim, None, None)


class SlimLayer:
    """One layer's form of Slim attention.

    Attributes:
        form: ``k`` (raw keys are cached), ``v`` (values), ``x`` (the layer's input) or ``dense`` (keys and values).
        key_weight, value_weight, key_bias, value_bias: as ``slim_attention`` takes them.
    """

    def __init__(self, parts: Parts, form: str, layer: int, *, checked: bool = False) -> None:
        self.parts, self.form, self.layer = parts, form, layer
        self._checked = checked
        key, value = parts.key, parts.value
        self.key_bias, self.value_bias = key.bias, value.bias
        self.key_weight: torch.Tensor | None = key.weight if form == "x" else None
        self.value_weight: torch.Tensor | None = value.weight if form == "x" else None
        if form == "k":
            self.value_weight = self._solved(key.weight, value.weight, "W_K^-1 W_V")
        if form == "v":
            if parts.placed:
                raise Unsupported(
                    f"Layer {layer} rotates or normalises its keys, and a V-cache leaves no place for that.",
                    "Cache k.",
                )
            self.key_weight = self._solved(value.weight, key.weight, "W_V^-1 W_K")

    def _solved(self, source: torch.Tensor, target: torch.Tensor, what: str) -> torch.Tensor:
        made = between(source, target)
        cast = made.to(source.dtype)
        if not torch.isfinite(cast).all():
            raise Unsupported(
                f"Layer {self.layer}: {what} reaches {float(made.abs().max()):.3g}, more than "
                f"{str(source.dtype).removeprefix('torch.')} holds.",
                "Serve in float32, or with an adapter of kind slim, which gives such layers another cache.",
            )
        return cast

    def state(self, hidden: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """(B, N, w) of new tokens, from the layer's input (B, N, d) and their keys and values (B, H, N, D).

        Biases are left out, and keys are as they were before any norm or rotation: where the model's own are not so,
        they are projected once more.
        """
        if self.form == "x":
            return hidden
        if self.form == "v":
            return value.transpose(1, 2).flatten(2) if self.value_bias is None else hidden @ self.parts.value.weight
        if self.key_bias is None and not self.parts.placed:
            return key.transpose(1, 2).flatten(2)
        return hidden @ self.parts.key.weight

    def finish(self, positions: torch.Tensor | None) -> Finish | None:
        """``finish`` of ``slim_attention``, for tokens at positions (B, Nk); None where keys are ready."""
        if not self.parts.placed:
            return None
        assert positions is not None, "keys that are placed when read need their positions"
        turned = self._turned(positions)
        if turned is not None:
            return turned

        def finish(key: torch.Tensor, rows: slice, tokens: slice) -> torch.Tensor:
            return self.parts.finish(key, positions[rows, tokens])

        return finish

    def _turned(self, positions: torch.Tensor) -> Finish | None:
        """A rotation as tables, which a kernel can read; None where keys get more than that.

        16-bit keys on a CPU are rotated by the model's own function, which rounds in between.
        """
        from focus_core.kernels.slim import Turned

        weight, rotation = self.parts.key.weight, self.parts.rotation
        if self.parts.norm is not None or rotation is None or (weight.dtype.itemsize < 4 and not weight.is_cuda):
            return None
        angles = rotation.halves(weight.new_empty(1, 1, 1, self.parts.head_dim), positions)
        return None if angles is None else Turned(*angles)

    def check(self, call: AttentionCall) -> None:
        """Refuse a layer whose keys and values are not what its weights make of its input; looked at once.

        Whatever a model does beside its projections (it clips, scales, or lays heads out in another way) shows here.
        """
        if self._checked or call.new_key is None or call.new_value is None or call.positions is None:
            return
        new, keys = call.query.shape[2], call.positions.shape[1]
        batch = call.query.shape[0]
        first = torch.zeros(batch, dtype=torch.long) if call.first_key is None else call.first_key.cpu()
        at = (first - (keys - new)).clamp_min(0).tolist()
        errors = []
        for row, begin in enumerate(at):
            some = slice(begin, begin + 2)
            if begin >= new:
                continue
            hidden = call.hidden[row : row + 1, some]
            shape = (self.parts.heads, self.parts.head_dim)
            key, value = (p(hidden).unflatten(-1, shape).transpose(1, 2) for p in (self.parts.key, self.parts.value))
            key = self.parts.finish(key, call.positions[row : row + 1, keys - new :][:, some])
            errors.append(max(_apart(key, call.new_key[row, :, some]), _apart(value, call.new_value[row, :, some])))
        if not errors:
            return
        # A row that ends in padding may have positions of the model's own there: one row that agrees is enough.
        if not min(errors) <= _AGREES.get(call.query.dtype, _AGREES_16):
            raise Unsupported(
                f"Layer {self.layer} does more to its keys and values than its projections say (they differ by "
                f"{min(errors):.2g} of their size), so they cannot be made from a cached state."
            )
        self._checked = True


def _apart(made: torch.Tensor, own: torch.Tensor) -> float:
    return float((made[0] - own).double().norm() / own.double().norm().clamp_min(1e-30))
