"""Full fine-tuning: a trained copy of all weights of a model, which stands in their place while it is in use.

The model's own tensors are never written: like every adapter the copy is put in and taken out again. That costs a
second set of weights in memory, and as large a file; it is the rival that small adapters are compared with.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from focus_core.adapter import Adapter, TrainedThrough
from focus_core.errors import InvalidInput, TooLarge, Unsupported
from focus_core.variants.base import FULL

_COPIES = 4
"""Of the weights, beside the model's own: the trained ones, their gradient, and AdamW's two moments."""


@dataclass(frozen=True)
class FullSettings:
    """What is copied.

    Attributes:
        tensors: (name, shape) of every weight; one that has several names stands under its first.
        before: hash of the model's weights that the copy began as (``evaluation.weights.hash_of``).
        through: the variant that it was trained through; its settings are what the copy is served with.
        reads: kind and config of the adapter that this variant reads, which lies in the same folder; None without one.
    """

    tensors: tuple
    before: str
    through: str = "dense"
    reads: dict | None = None

    def __post_init__(self) -> None:
        """A list, as a file has it, becomes a tuple."""
        object.__setattr__(self, "tensors", tuple((name, tuple(shape)) for name, shape in self.tensors))


class FullWeights(TrainedThrough):
    """Every weight of a model, trained.

    Attributes:
        weights: modules that hold them under the model's own names.
        reads: the frozen adapter that the variant reads which this one was trained through, or None.
    """

    kind = FULL
    config_class = FullSettings
    replaces_weights = True

    def __init__(self, config: FullSettings) -> None:
        super().__init__(config)
        self.weights = nn.Module()
        for name, shape in config.tensors:
            *parts, last = name.split(".")
            place = self.weights
            for part in parts:
                if part not in place._modules:
                    place.add_module(part, nn.Module())
                place = place.get_submodule(part)
            place.register_parameter(last, nn.Parameter(torch.empty(shape)))
        self.hold()

    @contextmanager
    def attached(self, model: nn.Module) -> Iterator[None]:
        """Run the model with these weights inside a ``with`` block; its very own are back afterwards."""
        own = {name: self.weights.get_parameter(name) for name, _ in self.config.tensors}
        places = _places(model)
        if {name for _, _, name, _ in places} != set(own):
            raise InvalidInput("The trained weights are not those of this model.", "Train them for this model.")
        # Converted where the model is in another dtype; a weight with several names stays one.
        fitting = {name: own[name].to(original.device, original.dtype) for _, _, name, original in places}
        try:
            for module, attribute, name, _ in places:
                _put(module, attribute, fitting[name])
            yield
        finally:
            for module, attribute, _, original in places:
                _put(module, attribute, original)

    def about(self, model: nn.Module) -> dict[str, Any]:
        """Hashes of the model's weights before the training and of those that it made."""
        from focus_core.evaluation.weights import hash_of, named_weights

        with self.attached(model):
            return {"weights": {"before": self.config.before, "after": hash_of(named_weights(model))}}


def new_full(model: nn.Module, *, through: str = "dense", reads: Adapter | None = None) -> FullWeights:
    """A copy of a model's weights, which changes nothing until it is trained.

    Args:
        model: a transformers causal language model in float32, whole on one device.
        through: name of the variant that it will be trained through.
        reads: the trained adapter that this variant reads, where it needs one: it is copied, and stays as it is.

    Raises:
        Unsupported: a model in less than float32, or on several devices.
        TooLarge: what training takes does not fit in free memory.
    """
    from focus_core.evaluation.weights import hash_of, named_weights

    own = list(model.named_parameters())
    small = sorted({str(p.dtype).removeprefix("torch.") for _, p in own if p.dtype.itemsize < 4})
    if small:
        raise Unsupported(
            f"Steps of full fine-tuning are lost to rounding in {', '.join(small)}.", "Load the model in float32."
        )
    if hasattr(model, "focus_fingerprint") or len({p.device for _, p in own}) > 1:
        raise Unsupported("Full fine-tuning needs a whole model on one device.", "Leave out shard and device_map.")
    check_room(model)
    about = TrainedThrough.described(reads)
    tensors = tuple((name, tuple(p.shape)) for name, p in own)
    adapter = FullWeights(FullSettings(tensors, hash_of(named_weights(model)), through, about))
    with torch.no_grad():
        for name, parameter in own:
            adapter.weights.get_parameter(name).copy_(parameter)
    return adapter.ready(reads)


def check_room(model: nn.Module, free: int | None = None) -> None:
    """Refuse to train all weights where that does not fit.

    Args:
        model: the model, loaded already.
        free: free bytes on its device; measured by default.

    Raises:
        TooLarge: with what it takes and what is free. Activations come on top, and are the window's to choose.
    """
    from focus_core.models.memory import free_memory

    values = sum(p.numel() for p in model.parameters())
    device = next(model.parameters()).device
    free = free_memory(str(device)) if free is None else free
    need = 4 * values * _COPIES
    if need > free:
        raise TooLarge(
            f"To train all {values:,} weights takes {need / 1e9:.2f} GB beside the model ({_COPIES} times 4 bytes a "
            f"weight), and {free / 1e9:.2f} GB of memory on {device} is free.",
            f"Train adapters (kind lora or router), or a model of up to {int(free / (4 * _COPIES)):,} weights.",
        )


def _places(model: nn.Module) -> list[tuple[nn.Module, str, str, nn.Parameter]]:
    """(module, attribute, first name, weight) of every place that a weight has in a model."""
    first: dict[int, str] = {}
    found = []
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first.setdefault(id(parameter), name)
        owner, _, attribute = name.rpartition(".")
        found.append((model.get_submodule(owner), attribute, first[id(parameter)], parameter))
    return found


def _put(module: nn.Module, attribute: str, value: torch.Tensor) -> None:
    # A converted copy is no Parameter, which only the table itself takes.
    module._parameters[attribute] = value
