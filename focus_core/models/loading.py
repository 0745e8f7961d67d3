"""Opens a model by name: the packaged one, a Hugging Face id, a folder or a GGUF file."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from focus_core.errors import Cancelled, FocusError, InvalidInput, NotAvailable, Unsupported
from focus_core.jobs.files import user_path
from focus_core.launched import number, processes
from focus_core.models import catalog
from focus_core.models.convert import content_key, prepare
from focus_core.models.facts import ModelFacts, facts_of
from focus_core.models.headers import Weights, folder_weights, gguf_values
from focus_core.models.memory import check_fits

if TYPE_CHECKING:
    import torch

Progress = Callable[[float, str], None]
Cancel = Callable[[], bool]

STORED = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
DTYPES = ("float32", "bfloat16", "float16")
AGAIN = "Download or save it again."
LONGEST_PART = 255
"""Bytes of a file name; the system refuses longer ones."""
WHAT_WORKS = "Use smollm2, gpt2-novels, a Hugging Face id such as org/name, a model folder or a .gguf file."


@dataclass(frozen=True)
class Loaded:
    """A model ready to run: eval mode, without gradients.

    Attributes:
        model: a transformers causal language model.
        tokenizer: its tokenizer.
        facts: its shape and where it comes from.
        name: the name it was asked for by.
        placed: what it takes of which devices, where it was spread over several.
    """

    model: Any
    tokenizer: Any
    facts: ModelFacts
    name: str
    placed: str = ""


@dataclass(frozen=True)
class Source:
    """Where a name leads: a folder on this machine with a config, a tokenizer and safetensors."""

    folder: Path
    revision: str
    note: str = ""


def load_model(
    name: str,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    device_map: str | dict[str, Any] | None = None,
    shard: str | None = None,
    progress: Progress | None = None,
    cancel: Cancel | None = None,
) -> Loaded:
    """Load a model and its tokenizer, after checking that it is allowed, can be retrofitted, and fits in memory.

    Args:
        name: ``smollm2``, ``gpt2-novels``, a Hugging Face id, a model folder or a ``.gguf`` file.
        device: where to put it; a CUDA device when there is one, else the CPU, by default.
        dtype: ``float32``, ``bfloat16``, ``float16`` or a torch dtype; by default the checkpoint's on a GPU, and
            float32 on a CPU.
        device_map: spread over the devices of this process, as transformers calls it; see ``models.placement``.
        shard: spread over the processes of ``accelerate launch``: ``full_shard`` or ``shard_grad_op``.
        progress: told the fraction done and a sentence.
        cancel: asked between steps, and five times a second while a GGUF file is read.

    Returns:
        The model, its tokenizer and its facts.

    Raises:
        InvalidInput: the name, a file or an argument is wrong, or the name is not on the server's list.
        NotAvailable: the model, the network or a package is missing.
        Unsupported: the architecture cannot be retrofitted.
        TooLarge: it does not fit in free memory; the hint offers bfloat16 where that fits.
        Cancelled: on request.
    """
    tell = progress or (lambda fraction, message: None)
    place = device_of(device)
    asked = _dtype_name(dtype)
    _stop(cancel)
    source = find_source(
        name, progress=lambda fraction, message: tell(0.8 * fraction, message), cancel=cancel, dtype=asked, device=place
    )
    _stop(cancel)
    tell(0.8, "Checking the model")
    weights = folder_weights(source.folder)
    chosen = asked or _default_dtype(weights, place)
    if device_map is None and shard is None:
        check_fits(name, weights.values, chosen, place)
    config = _config(source.folder, name)
    _check_architecture(config, name)
    tell(0.85, "Loading the weights")
    model, placed = _put(source.folder, name, config, chosen, place, device_map, shard)
    _stop(cancel)
    tell(0.95, "Loading the tokenizer")
    tokenizer = _tokenizer(source.folder, name)
    facts = facts_of(model, name, revision=source.revision, note=source.note)
    tell(1.0, "Loaded")
    return Loaded(model, tokenizer, facts, name, placed)


def _put(
    folder: Path, name: str, config: Any, dtype: str, device: str, device_map: Any, shard: str | None
) -> tuple[Any, str]:
    """The model where it is to run, frozen, and what it takes where it is spread."""
    if device_map is None and shard is None:
        return _load_weights(folder, name, dtype).to(device).eval().requires_grad_(False), ""
    from focus_core.models import placement
    from focus_core.models.text_only import text_only

    meta = _on_meta(config, name)
    if shard is not None:
        if device_map is not None:
            raise InvalidInput("A model is placed by a device map or sharded, not both.", "Leave out one of them.")
        return placement.shard(lambda: _load_weights(folder, name, dtype), text_only(meta), name, dtype, device, shard)
    found = placement.place(meta, name, device_map, dtype)
    if len(set(found.device_map.values())) > 1 and text_only(meta) is not meta:
        raise Unsupported(f"The text part of {name} cannot be taken out of a model on several devices.", WHAT_WORKS)
    return _load_weights(folder, name, dtype, found.device_map).eval().requires_grad_(False), found.told


def model_facts(name: str, *, progress: Progress | None = None, cancel: Cancel | None = None) -> ModelFacts:
    """The facts of a model without reading its weights; the dtype is the one it is stored in.

    Raises:
        FocusError: as ``load_model``, without the memory check.
    """
    source = find_source(name, progress=progress, cancel=cancel)
    config = _config(source.folder, name)
    stored = STORED.get(folder_weights(source.folder).dtype, "float32")
    facts = _check_architecture(config, name)
    return ModelFacts(**{**vars(facts), "revision": source.revision, "note": source.note, "dtype": stored})


def find_source(
    name: str,
    *,
    progress: Progress | None = None,
    cancel: Cancel | None = None,
    dtype: str | None = None,
    device: str = "cpu",
) -> Source:
    """The folder that a name leads to, converted or downloaded when that has not been done.

    Args:
        name: as for ``load_model``.
        progress: told the fraction done and a sentence.
        cancel: asked often; True stops the work.
        dtype: the dtype it will be loaded in, for the memory check before a conversion or a download.
        device: where it will be loaded.

    Raises:
        FocusError: as ``load_model``.
    """
    name = str(name).strip()
    if not name:
        raise InvalidInput("No model was named.", WHAT_WORKS)
    catalog.check_allowed(name)
    if name == catalog.DEFAULT:
        return _default_source(progress, cancel)
    if name == catalog.SMALL:
        return Source(catalog.SMALL_FOLDER, catalog.small_revision(), catalog.SMALL_NOTE)
    path = user_path(name)
    if any(len(os.fsencode(part)) > LONGEST_PART for part in path.parts):
        raise InvalidInput(f"{name[:80]!r}... cannot be the name of a model: it is too long.", WHAT_WORKS)
    if name.lower().endswith(".gguf"):
        if not path.is_file():
            raise InvalidInput(f"There is no file {path}.", WHAT_WORKS)
        check_fits(name, gguf_values(path), dtype or ("float32" if device == "cpu" else "bfloat16"), device)
        key = content_key(path)
        folder = prepare(path.resolve(), key, progress=progress, cancel=cancel)
        return Source(folder, key[-12:], f"Read from {path.name}, kept in bf16.")
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise InvalidInput(f"The folder {path} holds no config.json.", WHAT_WORKS)
        return Source(path.resolve(), "local")
    if path.exists():
        raise InvalidInput(f"{path} is a file, and not a .gguf.", WHAT_WORKS)
    if name.startswith(("/", ".", "~")) or "\\" in name:
        raise InvalidInput(f"There is no folder {path}.", WHAT_WORKS)
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", name):
        raise InvalidInput(f"{name[:80]!r} cannot be the name of a model.", WHAT_WORKS)
    from focus_core.models.hub import snapshot

    folder, revision = snapshot(name, progress=progress, cancel=cancel, dtype=dtype, device=device)
    return Source(folder, revision)


def _default_source(progress: Progress | None, cancel: Cancel | None) -> Source:
    revision = catalog.GGUF_SHA256[:12]
    if (folder := catalog.prepared_default()) is None:
        gguf = catalog.packaged_gguf()
        if gguf is None:
            raise NotAvailable(
                f"The package {catalog.PACKAGE}, which holds {catalog.TITLE}, is missing.", catalog.FETCH
            )
        from focus_core.models.fetch import check_hash

        check_hash(gguf)
        folder = prepare(gguf, f"{catalog.DEFAULT}-{revision}", progress=progress, cancel=cancel)
    return Source(folder, revision, catalog.NOTE)


def _config(folder: Path, name: str) -> Any:
    from transformers import AutoConfig, __version__

    try:
        document = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        kind = document["model_type"]
    except (OSError, ValueError, KeyError, TypeError):
        raise InvalidInput(f"The config.json of {name} names no model type.", WHAT_WORKS) from None
    if document.get("quantization_config"):
        method = document["quantization_config"].get("quant_method", "an unknown method")
        raise Unsupported(f"{name} is stored quantized ({method}).", "Use its unquantized checkpoint or its GGUF file.")
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise Unsupported(
            f"transformers {__version__} cannot read the model type {kind!r} of {name} ({reason}).",
            "Code that comes with a checkpoint is not run.",
        ) from None


def _check_architecture(config: Any, name: str) -> ModelFacts:
    """The facts of the model that a config describes, built without memory for its weights."""
    from focus_core.models.text_only import text_only

    return facts_of(text_only(_on_meta(config, name)), name)


def _on_meta(config: Any, name: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    if getattr(config, "is_encoder_decoder", False):
        raise Unsupported(
            f"{name} is an encoder-decoder ({config.model_type}); only decoders can be retrofitted.", WHAT_WORKS
        )
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except ValueError as error:
        reason = str(error).splitlines()[0][:120]
        raise Unsupported(
            f"{name} (model type {config.model_type!r}) is no causal language model ({reason}).", WHAT_WORKS
        ) from None
    except Exception as error:
        raise InvalidInput(
            f"No model can be built from the config.json of {name} ({type(error).__name__}: {str(error)[:120]}).", AGAIN
        ) from None
    return model


def _load_weights(folder: Path, name: str, dtype: str, device_map: dict[str, Any] | None = None) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    from focus_core.models.text_only import text_only

    try:
        with _without_bars():
            model, report = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=getattr(torch, dtype),
                device_map=device_map,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except (FocusError, MemoryError):
        raise
    except Exception as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise InvalidInput(
            f"The weights of {name} cannot be loaded ({reason}).", "Download or save it again."
        ) from None
    wrong = sorted(report["missing_keys"]) + sorted(str(k) for k in report["mismatched_keys"])
    if wrong:
        raise InvalidInput(f"The weights of {name} lack {len(wrong)} tensors of its config ({wrong[0]}).", AGAIN)
    return text_only(model)


@contextlib.contextmanager
def _without_bars() -> Iterator[None]:
    """Keep transformers' own progress bars off the terminal; ours say more."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _tokenizer(folder: Path, name: str) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise InvalidInput(
            f"{name} has no tokenizer that can be loaded ({reason}).", "Save the tokenizer beside the model."
        ) from None
    if not getattr(tokenizer, "is_fast", False):
        raise Unsupported(f"The tokenizer of {name} gives no byte spans.", "Save it in the tokenizer.json format.")
    return tokenizer


def device_of(device: Any) -> str:
    """The device to run on: a CUDA device when there is one and none is asked for; of several processes, each its own.

    Raises:
        InvalidInput: no such device on this machine.
    """
    import torch

    if device is None:
        return _own("cuda") if torch.cuda.is_available() else "cpu"
    try:
        parsed = torch.device(device)
    except (RuntimeError, TypeError):
        raise InvalidInput(f"{device!r} is no device.", "Use cpu, cuda or cuda:N.") from None
    if parsed.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (parsed.index or 0) >= count:
            raise InvalidInput(f"{device} was asked for, and this machine has {count} CUDA devices.", "Use cpu.")
    elif parsed.type != "cpu":
        raise InvalidInput(f"Models run on cpu or cuda, not on {device}.", "Use cpu or cuda.")
    return _own(str(parsed))


def _own(device: str) -> str:
    """Of several processes on one machine each has a GPU of its own."""
    import torch

    if device != "cuda" or processes()[1] == 1:
        return device
    return f"cuda:{number('LOCAL_RANK', 0) % torch.cuda.device_count()}"


def _dtype_name(dtype: Any) -> str | None:
    if dtype is None:
        return None
    found = str(dtype).removeprefix("torch.")
    if found not in DTYPES:
        raise InvalidInput(f"{dtype!r} is no dtype to load a model in.", f"Use {', '.join(DTYPES)}.")
    return found


def _default_dtype(weights: Weights, device: str) -> str:
    if device == "cpu":
        return "float32"
    stored = STORED.get(weights.dtype, "bfloat16")
    return stored if stored in DTYPES else "float32"


def _stop(cancel: Cancel | None) -> None:
    if cancel is not None and cancel():
        raise Cancelled("The loading of the model was stopped.", "Ask for it again to go on.")
