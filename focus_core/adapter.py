"""What was trained for a model, saved beside a fingerprint of that model.

An adapter is a folder with ``focus_config.json`` and ``focus_adapter.safetensors``; one that differs from another by
its config alone may name that one's folder as ``weights`` instead, where it lies beside it. The file names are
our own: a folder with PEFT's ``adapter_config.json`` would be loaded as PEFT by transformers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from focus_core.errors import InvalidInput

FORMAT = 1
CONFIG_FILE = "focus_config.json"
WEIGHTS_FILE = "focus_adapter.safetensors"
_HASHED_ROWS = 16


class Adapter(nn.Module):
    """Base of everything trainable. A subclass with a ``kind`` registers itself.

    Attributes:
        config: frozen dataclass that rebuilds the module.
        serve: settings of the variant that the adapter was trained to be served with.
        record: how it was trained: plain values.
    """

    kind: ClassVar[str] = ""
    config_class: ClassVar[type]
    kinds: ClassVar[dict[str, type[Adapter]]] = {}
    replaces_weights: ClassVar[bool] = False
    """Whether other weights compute in place of the model's own while it is in use."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.kind:
            Adapter.kinds[cls.kind] = cls

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.serve: dict[str, Any] = {}
        self.record: dict[str, Any] = {}

    def save_pretrained(self, folder: str | Path, model: nn.Module) -> Path:
        """Write the adapter for ``model``; each file is replaced atomically, weights first."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        document = {
            "format": FORMAT,
            "kind": self.kind,
            "config": dataclasses.asdict(self.config),
            "serve": self.serve,
            "model": fingerprint(model),
            "record": self.record,
        }
        state = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        _replace(folder / WEIGHTS_FILE, lambda path: save_file(state, path))
        text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
        _replace(folder / CONFIG_FILE, lambda path: path.write_text(text, encoding="utf-8"))
        return folder

    def attached(self, model: nn.Module) -> AbstractContextManager[None]:
        """What a retrofit holds open while this adapter is in use: nothing, unless the model's own modules change."""
        return nullcontext()

    def about(self, model: nn.Module) -> dict[str, Any]:
        """What the record of its training keeps beside what every kind's does."""
        return {}

    @staticmethod
    def from_pretrained(folder: str | Path, model: nn.Module | None = None, *, trainable: bool = False) -> Adapter:
        """Read an adapter of any kind; with ``model``, refuse one that was trained for another model.

        Raises:
            InvalidInput: no adapter there, another format, other tensors, or another model.
        """
        document = read_config(folder)
        cls = Adapter.kinds.get(document["kind"])
        if cls is None:
            known = ", ".join(sorted(Adapter.kinds))
            raise InvalidInput(f"{folder} holds an adapter of kind {document['kind']!r}.", f"Known kinds: {known}.")
        if model is not None:
            check_fingerprint(document["model"], fingerprint(model), str(folder))
        try:
            adapter = cls(cls.config_class(**document["config"]))
        except TypeError as error:
            raise InvalidInput(f"{folder} does not describe an adapter of kind {cls.kind!r} ({error}).") from None
        place = _weights_folder(Path(folder), document)
        try:
            adapter.load_state_dict(load_file(place / WEIGHTS_FILE), strict=True)
        except FileNotFoundError:
            raise InvalidInput(f"{folder} has {CONFIG_FILE} but there is no {WEIGHTS_FILE} in {place}.") from None
        except Exception as error:
            raise InvalidInput(f"{folder} does not hold the tensors its config asks for ({error}).") from None
        broken = [name for name, held in adapter.state_dict().items() if not torch.isfinite(held).all()]
        if broken:
            # What is no number compares as false: all keys would be kept, and a ruined router would pass as dense.
            raise InvalidInput(
                f"{folder} holds numbers that are not finite, in {broken[0]} first.", "Train it anew, or name another."
            )
        adapter.serve, adapter.record = document["serve"], document["record"]
        adapter.requires_grad_(trainable).train(trainable)
        if model is not None:
            adapter.to(next(model.parameters()).device)
        return adapter


class TrainedThrough(Adapter):
    """Base of what is trained through a variant, which may read an adapter of its own: a frozen copy of it is held.

    Attributes:
        reads: that copy, or None; the config's ``reads`` has its kind and config.
    """

    reads: Adapter | None

    def hold(self) -> None:
        """Make the place of what the variant reads, as the config says; after the own parameters, as files have it."""
        self.reads = None
        if self.config.reads is not None:
            cls = Adapter.kinds[self.config.reads["kind"]]
            self.reads = cls(cls.config_class(**self.config.reads["config"]))

    def ready(self, reads: Adapter | None) -> Self:
        """Copy in what the variant reads, and let the rest be trained."""
        if self.reads is not None and reads is not None:
            self.reads.load_state_dict(reads.state_dict())
        return self.requires_grad_(True)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """As for any module; what the variant reads stays frozen."""
        super().requires_grad_(requires_grad)
        if self.reads is not None:
            self.reads.requires_grad_(False)
        return self

    @staticmethod
    def described(reads: Adapter | None) -> dict[str, Any] | None:
        """What a config says of the adapter that the variant reads."""
        return None if reads is None else {"kind": reads.kind, "config": dataclasses.asdict(reads.config)}


def _weights_folder(folder: Path, document: dict[str, Any]) -> Path:
    """Where an adapter's weights lie: its own folder, or the one beside it that ``weights`` names."""
    beside = document.get("weights")
    if beside is None:
        return folder
    if not isinstance(beside, str) or not beside or Path(beside).name != beside or beside == "..":
        raise InvalidInput(f"{folder} says that its weights are in {beside!r}.", "Name a folder beside it.")
    return folder.absolute().parent / beside


def dense_by_definition(variant: Any, adapter: Adapter | None, length: int) -> bool:
    """Whether a variant with an adapter is the untouched model on a text of so many tokens.

    It is where all that a query may look at lies within window and sinks, unless the adapter trains what computes:
    attention is dense there too, and the model another one.
    """
    if isinstance(adapter, TrainedThrough):
        return False
    return bool(variant.name != "dense" and length <= variant.dense_within)


def own_parameters(adapter: nn.Module) -> int:
    """Numbers of an adapter, without those of an adapter that it holds for the variant to read."""
    held = getattr(adapter, "reads", None)
    return sum(p.numel() for p in adapter.parameters()) - (0 if held is None else own_parameters(held))


def load_adapter(folder: str | Path, model: nn.Module | None = None) -> Adapter:
    """``Adapter.from_pretrained`` for inference, with every kind this package has."""
    import focus_core.full
    import focus_core.lora
    import focus_core.routing  # noqa: F401

    return Adapter.from_pretrained(folder, model)


def read_config(folder: str | Path) -> dict[str, Any]:
    """The adapter's ``focus_config.json``; InvalidInput when it is missing, broken or of another format."""
    path = Path(folder) / CONFIG_FILE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidInput(f"There is no adapter at {folder}.", f"A folder with {CONFIG_FILE} is one.") from None
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path} cannot be read ({error}).") from None
    if not isinstance(document, dict):
        raise InvalidInput(f"{path} holds a {type(document).__name__}, not an adapter's settings.")
    missing = {"format", "kind", "config", "serve", "model", "record"} - set(document)
    if missing or document["format"] != FORMAT:
        what = f"lacks {', '.join(sorted(missing))}" if missing else f"has format {document['format']}"
        raise InvalidInput(f"{path} {what}.", f"This version reads format {FORMAT}.")
    if wrong := [part for part in ("config", "serve", "model", "record") if not isinstance(document[part], dict)]:
        raise InvalidInput(f"{path} holds no settings under {', '.join(wrong)}.", "Train it again, or take another.")
    return document


def fingerprint(model: nn.Module) -> dict[str, Any]:
    """What tells one base model from another, Base from Instruct included.

    Config fields, and a hash of the first and last norm and of fixed embedding rows as bf16, so that the dtype a
    model was loaded in does not matter.
    """
    # A model that is spread over processes has only parts of its tensors here.
    if (known := getattr(model, "focus_fingerprint", None)) is not None:
        return known
    config = model.config.get_text_config()
    embedding = model.get_input_embeddings().weight
    norms = [m.weight for m in model.modules() if "norm" in type(m).__name__.lower() and hasattr(m, "weight")]
    rows = torch.linspace(0, embedding.shape[0] - 1, _HASHED_ROWS).long().to(embedding.device)
    digest = hashlib.sha256()
    for tensor in (norms[0], norms[-1], embedding[rows]):
        digest.update(tensor.detach().to(torch.bfloat16).view(torch.int16).cpu().numpy().tobytes())
    return {
        "family": config.model_type,
        "layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "heads": config.num_attention_heads,
        "kv_heads": getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        "vocab": embedding.shape[0],
        "weights": digest.hexdigest()[:16],
    }


def check_fingerprint(wanted: dict[str, Any], found: dict[str, Any], name: str) -> None:
    """Raise InvalidInput with both fingerprints when an adapter belongs to another model."""
    if wanted == found:
        return
    differing = [key for key in wanted if wanted[key] != found.get(key)]
    show = "; ".join(f"{key}: adapter {wanted[key]}, model {found.get(key)}" for key in differing)
    raise InvalidInput(f"The adapter {name} was trained for another model ({show}).", "Train one for this model.")


def _replace(path: Path, write) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
