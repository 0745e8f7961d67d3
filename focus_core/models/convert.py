"""Reads a GGUF file once and keeps it as bf16 safetensors with its tokenizer, in a process of its own.

The process of its own can be ended at any moment, and gives its memory back.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from focus_core.errors import Cancelled, FocusError, InvalidInput, NotAvailable, Unsupported
from focus_core.jobs.files import cache_folder
from focus_core.models.child import answer, follow, module_command, reraise
from focus_core.models.folders import models_folder, whole_folder
from focus_core.models.headers import gguf_values

Progress = Callable[[float, str], None]
Cancel = Callable[[], bool]

MARK = "conversion.json"
FORMAT = 1
STAGES = {
    "start": (0.0, 4.0, "Starting"),
    "tokenizer": (0.15, 4.5, "Reading the tokenizer"),
    "config": (0.35, 3.5, "Reading the model's shape"),
    "weights": (0.5, 9.0, "Reading the weights"),
    "save": (0.9, 1.5, "Writing them as bf16"),
    "done": (1.0, 0.0, "Written"),
}
"""Each stage of the conversion: the fraction it begins at, the seconds it takes on two cores, and its sentence."""


def prepared(key: str) -> Path | None:
    """The folder of a conversion that finished; None when there is none."""
    folder = cache_folder().resolve() / "models" / key  # one that can only be read will do
    try:
        mark = json.loads((folder / MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return folder if mark.get("format") == FORMAT else None


def prepare(gguf: Path, key: str, *, progress: Progress | None = None, cancel: Cancel | None = None) -> Path:
    """The folder with a GGUF file's model as safetensors, made now when it is not there.

    Args:
        gguf: the file.
        key: name of the folder; it stands for the file's content.
        progress: told the fraction done and a sentence.
        cancel: asked five times a second; True ends the conversion at once.

    Returns:
        A folder that transformers loads: config, tokenizer and bf16 weights.

    Raises:
        InvalidInput: the file is not a GGUF that can be read.
        Unsupported: its architecture cannot be read.
        NotAvailable: a package that reads GGUF files is missing.
        Cancelled: on request; nothing half-written is left.
    """
    if (found := prepared(key)) is not None:
        return found
    gguf_values(gguf)
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise NotAvailable(f"Reading a GGUF file needs {' and '.join(missing)}.", f"pip install {' '.join(missing)}")
    target = models_folder() / key
    with whole_folder(target) as folder:
        _run(gguf, folder, progress, cancel)
        (folder / MARK).write_text(json.dumps({"format": FORMAT, "source": gguf.name, "key": key}), encoding="utf-8")
    return target


def content_key(gguf: Path) -> str:
    """A folder name for a GGUF file: its stem, and a hash of its size, time, beginning and end."""
    status = gguf.stat()
    digest = hashlib.sha256(f"{status.st_size} {status.st_mtime_ns}".encode())
    with gguf.open("rb") as file:
        digest.update(file.read(1 << 20))
        file.seek(max(0, status.st_size - (1 << 20)))
        digest.update(file.read())
    stem = "".join(c if c.isalnum() or c in "-_." else "_" for c in gguf.stem)[:60]
    return f"{stem}-{digest.hexdigest()[:12]}"


def _run(gguf: Path, folder: Path, progress: Progress | None, cancel: Cancel | None) -> None:
    tell = progress or (lambda fraction, message: None)
    stage, since = "start", time.monotonic()

    def line(text: str) -> None:
        nonlocal stage, since
        document = json.loads(text)
        reraise(document)
        stage, since = document["stage"], time.monotonic()

    command, environment = module_command("focus_core.models.convert", str(gguf), str(folder))
    code, last = follow(
        command,
        line=line,
        tick=lambda: tell(*_fraction(stage, time.monotonic() - since)),
        cancel=cancel,
        stopped=Cancelled("The preparation of the model was stopped.", "It starts anew when the model is used."),
        environment=environment | {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"},
    )
    if code != 0 or stage != "done":
        raise FocusError(
            f"The conversion of {gguf.name} ended early (exit {code}: {last or 'no message'}).",
            "Nothing half-written is left: try again with more free memory and disk.",
        )
    tell(1.0, STAGES["done"][2])


def _fraction(stage: str, seconds: float) -> tuple[float, str]:
    """Where the bar stands: the stage's start, nearing the next one's as its expected seconds pass."""
    names = list(STAGES)
    start, expected, message = STAGES[stage]
    end = STAGES[names[min(names.index(stage) + 1, len(names) - 1)]][0]
    share = 1 - math.exp(-1.5 * seconds / expected) if expected else 0.0
    return start + share * (end - start), message


def _convert(gguf: Path, folder: Path, tell: Callable[[str], None]) -> None:
    """The work itself, in the child."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(max(1, min(4, os.cpu_count() or 1)))
    place, file = str(gguf.parent), gguf.name
    tell("tokenizer")
    try:
        AutoTokenizer.from_pretrained(place, gguf_file=file).save_pretrained(folder)
        tell("config")
        config = AutoConfig.from_pretrained(place, gguf_file=file)
    except Exception as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise Unsupported(
            f"transformers cannot read the tokenizer or the architecture of {file} ({reason}).",
            "Use the model's safetensors instead.",
        ) from None
    tell("weights")
    model, report = AutoModelForCausalLM.from_pretrained(
        place, gguf_file=file, config=config, dtype=torch.bfloat16, output_loading_info=True, **_plain()
    )
    weights = {k: v.to(torch.bfloat16) for k, v in model.state_dict().items()}
    if missing := sorted(report["missing_keys"]):
        raise InvalidInput(f"{file} misses {len(missing)} weights ({missing[0]}).", "Download it again.")
    # A model read from GGUF refuses to be saved: its weights go into one built from the clean config.
    for leftover in ("quantization_config", "_pre_quantization_dtype"):
        if hasattr(config, leftover):
            delattr(config, leftover)
    with torch.device("meta"):
        clean = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    clean.load_state_dict(weights, strict=True, assign=True)
    clean.tie_weights()
    tell("save")
    clean.save_pretrained(folder)
    tell("done")


def _plain() -> dict[str, Any]:
    """What asks transformers for plain weights; older versions know nothing else."""
    try:
        from transformers import GgufConfig
    except ImportError:
        return {}
    return {"quantization_config": GgufConfig(dequantize=True)}


if __name__ == "__main__":
    answer(lambda send: _convert(Path(sys.argv[1]), Path(sys.argv[2]), lambda stage: send({"stage": stage})))
