"""Everything a run needs to go on: weights, optimizer moments, log. Safetensors and JSON, no pickle."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save_file
from torch import nn

from focus_core.errors import InvalidInput

FILE = "checkpoint.safetensors"


def save_checkpoint(folder: Path, module: nn.Module, optimizer: torch.optim.AdamW, state: dict[str, Any]) -> None:
    """Replace the folder's checkpoint atomically; ``state`` is JSON values."""
    tensors = {f"weight.{name}": value for name, value in module.state_dict().items()}
    for name, parameter in module.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{key}.{name}"] = value
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{FILE}.{os.getpid()}"
    try:
        save_file(tensors, temporary, metadata={"state": json.dumps(state)})
        os.replace(temporary, folder / FILE)
    finally:
        temporary.unlink(missing_ok=True)


def read_checkpoint(folder: Path) -> bytes | None:
    """The folder's checkpoint as it lies there; None when there is none."""
    try:
        return (folder / FILE).read_bytes()
    except FileNotFoundError:
        return None


def state_of(content: bytes, folder: Path) -> dict[str, Any]:
    """The state that a checkpoint's bytes hold; ``folder`` is named where they cannot be read."""
    try:
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        return json.loads(header["__metadata__"]["state"])
    except Exception as error:
        raise _unreadable(folder / FILE, error) from None


def load_checkpoint(content: bytes, folder: Path, module: nn.Module, optimizer: torch.optim.AdamW) -> None:
    """Restore module and optimizer in place from a checkpoint's bytes."""
    parameters = dict(module.named_parameters())
    try:
        tensors = load(content)
        module.load_state_dict({n.removeprefix("weight."): t for n, t in tensors.items() if n.startswith("weight.")})
        for name, value in tensors.items():
            if name.startswith("optimizer."):
                _, key, parameter = name.split(".", 2)
                target = parameters[parameter]
                optimizer.state[target][key] = value if key == "step" else value.to(target.device)
    except Exception as error:
        raise _unreadable(folder / FILE, error) from None


def _unreadable(path: Path, error: Exception) -> InvalidInput:
    return InvalidInput(f"The checkpoint {path} cannot be read ({error}).", "Delete it to start again.")
