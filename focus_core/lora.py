"""LoRA (arXiv 2106.09685) through PEFT: low-rank updates of the attention's projections, the weights themselves kept.

The adapter's tensors have PEFT's own names, and its folder holds a copy in PEFT's own format (``peft``), which
``PeftModel.from_pretrained`` reads.
"""

from __future__ import annotations

import dataclasses
import json
import math
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from focus_core.adapter import Adapter, TrainedThrough
from focus_core.errors import InvalidInput

PEFT_FOLDER = "peft"
_PREFIX = "base_model.model."
_PROJECTIONS = {
    "q": ("q_proj", "query", "q_lin"),
    "k": ("k_proj", "key", "k_lin"),
    "v": ("v_proj", "value", "v_lin"),
    "o": ("o_proj", "out_proj", "c_proj", "dense", "out_lin"),
}
_FUSED = ("c_attn", "qkv_proj", "query_key_value", "Wqkv")


@dataclass(frozen=True)
class LoraSettings:
    """Shape of the updates.

    Attributes:
        modules: (name, inputs, outputs) of every projection that is updated.
        rank: r.
        alpha: an update is scaled by ``alpha / rank``.
        through: the variant that it was trained through; its settings are what the adapter is served with.
        reads: kind and config of the adapter that this variant reads, which lies in the same folder; None without one.
        seed: of the initial A; B starts as zeros, which leaves the model as it is.
    """

    modules: tuple
    rank: int = 8
    alpha: float = 16.0
    through: str = "dense"
    seed: int = 0
    reads: dict | None = None

    def __post_init__(self) -> None:
        """Check the ranges; a list, as a file has it, becomes a tuple."""
        object.__setattr__(self, "modules", tuple(tuple(entry) for entry in self.modules))
        if not self.modules or self.rank < 1 or not self.alpha > 0:
            raise InvalidInput(
                f"LoRA needs a projection, a rank and an alpha above 0, not {len(self.modules)}, {self.rank} and "
                f"{self.alpha}."
            )


class LoraAdapter(TrainedThrough):
    """A (r, inputs) and B (outputs, r) of every projection, under PEFT's names.

    Attributes:
        reads: the frozen adapter that the variant reads which this one was trained through, or None.
    """

    kind = "lora"
    config_class = LoraSettings

    def __init__(self, config: LoraSettings) -> None:
        super().__init__(config)
        generator = torch.Generator().manual_seed(config.seed)
        for name, inputs, outputs in config.modules:
            place = _place(self, _PREFIX + name)
            place.lora_A = nn.Linear(inputs, config.rank, bias=False)
            place.lora_B = nn.Linear(config.rank, outputs, bias=False)
            with torch.no_grad():
                bound = 1 / math.sqrt(inputs)
                place.lora_A.weight.uniform_(-bound, bound, generator=generator)
                place.lora_B.weight.zero_()
        self.hold()

    @contextmanager
    def attached(self, model: nn.Module) -> Iterator[None]:
        """Run the model with the updates inside a ``with`` block; the very same modules are back afterwards."""
        places = _wrapped(self, model)
        try:
            for parent, name, _, wrapper in places:
                setattr(parent, name, wrapper)
            yield
        finally:
            for parent, name, original, _ in places:
                setattr(parent, name, original)

    def peft_config(self, fused: bool = False) -> Any:
        """PEFT's description of this adapter; ``fused`` for layers that keep their weights transposed (GPT-2)."""
        from peft import LoraConfig

        return LoraConfig(
            r=self.config.rank,
            lora_alpha=self.config.alpha,
            target_modules=[name for name, _, _ in self.config.modules],
            lora_dropout=0.0,
            bias="none",
            fan_in_fan_out=fused,
            inference_mode=True,
        )

    def save_pretrained(self, folder: str | Path, model: nn.Module) -> Path:
        """See Adapter.save_pretrained; PEFT's own files are written beside."""
        folder = super().save_pretrained(folder, model)
        beside = folder / PEFT_FOLDER
        beside.mkdir(exist_ok=True)
        plain = self.peft_config(_transposed(model.get_submodule(self.config.modules[0][0]))).to_dict()
        listed = {k: sorted(v) if isinstance(v, set) else v for k, v in plain.items()}
        listed["peft_type"], listed["task_type"] = "LORA", "CAUSAL_LM"
        (beside / "adapter_config.json").write_text(json.dumps(listed, indent=1, default=str) + "\n", encoding="utf-8")
        state = {n: x.detach().cpu().contiguous() for n, x in self.state_dict().items() if n.startswith(_PREFIX)}
        save_file(state, beside / "adapter_model.safetensors", metadata={"format": "pt"})
        return folder


def new_lora(
    model: nn.Module,
    *,
    rank: int = 8,
    alpha: float = 16.0,
    targets: str = "qv",
    through: str = "dense",
    seed: int = 0,
    reads: Adapter | None = None,
) -> LoraAdapter:
    """An untrained adapter for the projections ``targets`` of a model's attention; it changes nothing yet.

    Args:
        model: a transformers causal language model.
        rank: r.
        alpha: an update is scaled by ``alpha / rank``.
        targets: letters of ``q``, ``k``, ``v`` and ``o``. Where one matrix makes q, k and v, it is updated whole.
        through: name of the variant that it will be trained through.
        seed: of the initial A.
        reads: the trained adapter that this variant reads, where it needs one: it is copied, and stays as it is.

    Raises:
        InvalidInput: a projection that the model does not have, or a rank above the projections' sides.
    """
    found = _targets(model, targets)
    most = max((min(inputs, outputs) for _, inputs, outputs in found), default=rank)
    if rank > most:
        raise InvalidInput(f"The update's rank is {rank}.", f"It can be 1 to {most}, which changes every weight.")
    about = TrainedThrough.described(reads)
    adapter = LoraAdapter(LoraSettings(tuple(found), rank, alpha, through, seed, about))
    return adapter.ready(reads)


def _targets(model: nn.Module, letters: str) -> list[tuple[str, int, int]]:
    from focus_core.models.facts import attention_modules

    if not letters or set(letters) - set(_PROJECTIONS) or len(set(letters)) < len(letters):
        raise InvalidInput(f"The projections are {letters!r}.", "They can be letters of q, k, v and o, each once.")
    names = {id(module): name for name, module in model.named_modules()}
    found: list[tuple[str, int, int]] = []
    for module in attention_modules(model):
        children = dict(module.named_children())
        for letter in letters:
            options = _PROJECTIONS[letter] + (_FUSED if letter != "o" else ())
            chosen = next((name for name in options if name in children), None)
            if chosen is None:
                raise InvalidInput(f"{type(module).__name__} has no projection {letter!r} that LoRA could update.")
            shape = tuple(children[chosen].weight.shape)
            inputs, outputs = shape if _transposed(children[chosen]) else shape[::-1]
            entry = (f"{names[id(module)]}.{chosen}", inputs, outputs)
            if entry not in found:
                found.append(entry)
    return found


def _transposed(module: nn.Module) -> bool:
    return type(module).__name__ == "Conv1D"


def _place(root: nn.Module, dotted: str) -> Any:
    """The module under a dotted name, made where there is none."""
    for part in dotted.split("."):
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root._modules[part]
    return root


_WRAPPED: weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[nn.Module, list]] = weakref.WeakKeyDictionary()


def _wrapped(adapter: LoraAdapter, model: nn.Module) -> list[tuple[nn.Module, str, nn.Module, nn.Module]]:
    """(parent, attribute, projection, the same inside PEFT's layer) of every projection; made once a model."""
    known = _WRAPPED.setdefault(adapter, weakref.WeakKeyDictionary())
    if model not in known:
        known[model] = _wrap(adapter, model)
    return known[model]


def _wrap(adapter: LoraAdapter, model: nn.Module) -> list[tuple[nn.Module, str, nn.Module, nn.Module]]:
    from peft import inject_adapter_in_model

    # PEFT replaces modules in what it is given: that is a list of the projections, and not the model.
    holder = nn.Module()
    originals = [model.get_submodule(name) for name, _, _ in adapter.config.modules]
    for number, original in enumerate(originals):
        holder.add_module(f"p{number}", original)
    before = [(p, p.requires_grad) for p in holder.parameters()]
    config = dataclasses.replace(
        adapter.peft_config(_transposed(originals[0])),
        target_modules=[f"p{number}" for number in range(len(originals))],
        inference_mode=False,
    )
    inject_adapter_in_model(config, holder, adapter_name=adapter.kind)
    for parameter, wanted in before:
        parameter.requires_grad_(wanted)
    made = []
    for number, (name, _, _) in enumerate(adapter.config.modules):
        wrapper: Any = holder.get_submodule(f"p{number}")
        ours = _place(adapter, _PREFIX + name)
        wrapper.lora_A[adapter.kind], wrapper.lora_B[adapter.kind] = ours.lora_A, ours.lora_B
        parent, _, attribute = name.rpartition(".")
        made.append((model.get_submodule(parent), attribute, originals[number], wrapper))
    return made
