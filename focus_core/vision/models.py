"""The trained vision models that ship; listing them needs no torch."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from focus_core.assets import DATA
from focus_core.errors import InvalidInput, NotAvailable
from focus_core.vision.config import ViTConfig

if TYPE_CHECKING:
    from focus_core.vision.vit import ViT

FOLDER = Path(os.environ.get("FOCUS_LAB_VISION_MODELS") or DATA / "vision" / "models")
"""Where weights are looked for; the environment may name another folder, such as that of one's own training."""


@dataclass(frozen=True)
class VisionModelInfo:
    """A trained model on disk.

    Attributes:
        name: the folder's name.
        title: what a person reads.
        config: its shape and attention.
        data: ``fashion`` or ``digits``.
        seed: of its training.
        accuracy: on the test images, 0 to 1.
        path: the folder with config.json and model.safetensors (fp16).
        record: what else config.json says (epochs, parameters, classes' names).
    """

    name: str
    title: str
    config: ViTConfig
    data: str
    seed: int
    accuracy: float
    path: Path
    record: dict[str, Any]


def vision_models(folder: str | Path | None = None) -> list[VisionModelInfo]:
    """All models in a folder, by default those that ship, by name.

    Raises:
        InvalidInput: a config.json is damaged.
    """
    found = sorted(Path(folder or FOLDER).glob("*/config.json"))
    return [_read(path) for path in found if (path.parent / "model.safetensors").is_file()]


def load_vision_model(name: str, folder: str | Path | None = None) -> ViT:
    """A trained model in fp32 and evaluation mode, on the CPU.

    Raises:
        NotAvailable: there is no such model.
        InvalidInput: its files are damaged.
    """
    known = {info.name: info for info in vision_models(folder)}
    if name not in known:
        raise NotAvailable(f"There is no vision model {name!r}.", f"There are {', '.join(known) or 'none'}.")
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from focus_core.vision.vit import ViT

    model = ViT(known[name].config)
    weights = known[name].path / "model.safetensors"
    try:
        model.load_state_dict({k: v.float() for k, v in load_file(weights).items()})
    except (SafetensorError, RuntimeError) as error:
        raise InvalidInput(
            f"{weights} does not hold the weights of its config.json ({type(error).__name__}).",
            "Train or copy it again.",
        ) from None
    return model.eval()


def save_vision_model(model: ViT, folder: str | Path, **record: Any) -> Path:
    """Write config.json and the weights in fp16; ``record`` needs title, data, seed and accuracy."""
    from safetensors.torch import save_file

    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    state = {name: value.detach().cpu().half().contiguous() for name, value in model.state_dict().items()}
    save_file(state, target / "model.safetensors")
    document = {**record, "model": model.config.as_dict()}
    (target / "config.json").write_text(json.dumps(document, indent=1) + "\n")
    return target


def _read(path: Path) -> VisionModelInfo:
    try:
        document = json.loads(path.read_text())
        config = ViTConfig.from_dict(document.pop("model"))
        return VisionModelInfo(
            path.parent.name,
            document.pop("title"),
            config,
            document.pop("data"),
            int(document.pop("seed")),
            float(document.pop("accuracy")),
            path.parent,
            document,
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InvalidInput(
            f"{path} does not describe a vision model ({type(error).__name__}: {error}).",
            "Remove it, or copy it again.",
        ) from None
