"""Fields that several kinds of requests share, read without torch, and what they cost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from focus_core import assets
from focus_core.errors import InvalidInput, TooLarge
from focus_core.jobs.costs import Estimate, Host
from focus_core.jobs.files import read_json, user_path
from focus_core.models.catalog import DEFAULT, allowed_models, check_allowed, prepared_default
from focus_core.models.shapes import Shape, fits, shape_of
from focus_core.variants import CHANGES_MODEL, VARIANTS, make

if TYPE_CHECKING:
    from focus_core.variants import Variant

MAX_TEXT_BYTES = 4_000_000
LOGIT_BYTES = 300_000_000
"""Peak of scoring: tiles of the logits in fp32, with what the runtime keeps."""
_JUDGED_SLACK = 1.25
"""A text whose tokens are judged by its bytes may have so many times more."""
_FLOPS_PER_CORE = 7e10
_FLOPS_CARD = 2e13
_LOAD_BYTES_PER_SECOND = 3e8
_FIRST_PREPARE_SECONDS = 20.0


def model_name(request: dict[str, Any]) -> str:
    """The model that the request names, if this server may load it."""
    name = request.get("model")
    if not isinstance(name, str) or not name.strip():
        raise InvalidInput("No model is named.", f"Name one, for example {DEFAULT}.")
    check_allowed(name)
    return name


def text_of(request: dict[str, Any]) -> tuple[str, str | None]:
    """The text and its shipped name; the name alone is enough.

    Raises:
        InvalidInput: no text, an unknown name, or more bytes than are taken.
    """
    text, name = request.get("text"), request.get("text_name")
    if text is None and name:
        if name not in (names := assets.text_names()):
            raise InvalidInput(f"There is no shipped text {name!r}.", f"Shipped texts: {', '.join(names)}.")
        return assets.load_text(name).text, name
    if not isinstance(text, str) or not text.strip():
        raise InvalidInput("The text is empty.", "Write or choose some text.")
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_TEXT_BYTES:
        raise InvalidInput(
            f"The text has {size / 1e6:.1f} MB; {MAX_TEXT_BYTES / 1e6:.0f} MB are taken.",
            "Cut out the part that matters.",
        )
    return text.encode("utf-8", "replace").decode(), name


def count_tokens(text: str, name: str | None, model: str) -> tuple[int, bool]:
    """Number of tokens, and whether it is exact (a shipped text with the default model) or judged by bytes."""
    if name and model == DEFAULT and name in assets.text_names():
        shipped = assets.load_text(name)
        if shipped.tokens and shipped.text == text:
            return shipped.tokens, True
    narrow = sum(c < "\x80" for c in text)
    wide = len(text.encode()) - narrow
    return max(1, round(narrow / 4.2 + wide / 1.5)), False


def check_length(
    request: dict[str, Any], needed: int, *, shorter: Callable[[int], str], longer: str
) -> tuple[Shape | None, int]:
    """Refuse more tokens than the text has or the model reads, before the model loads.

    Args:
        request: with ``model`` and a text.
        needed: tokens that would be read.
        shorter: the way out for a limit of so many tokens; empty where there is none.
        longer: what else helps where the text is too short.

    Returns:
        The model's shape, None when it is not known, and the text's tokens, exact or judged.

    Raises:
        TooLarge: with both numbers.
    """
    model = model_name(request)
    tokens, exact = count_tokens(*text_of(request), model)
    shape = shape_of(model)
    if needed > tokens * (1 if exact else _JUDGED_SLACK):
        way = shorter(tokens if shape is None else min(tokens, shape.context))
        raise TooLarge(
            f"The text has {'' if exact else 'about '}{tokens:,} tokens and {needed:,} were asked for.",
            f"{way}, or {longer}." if way else f"Take {longer}.",
        )
    if shape is not None and needed > shape.context:
        raise TooLarge(
            f"{model} reads at most {shape.context:,} tokens and {needed:,} were asked for.",
            f"{shorter(shape.context)}.",
        )
    return shape, tokens


def adapter_folder(name: str | None) -> Path | None:
    """Folder of a shipped adapter by its name, or of any by its path where models are not limited to a list.

    Raises:
        InvalidInput: there is no adapter there, or it is not shipped and there is a list.
    """
    if name is None or name == "":
        return None
    shipped = assets.adapters()
    if name not in shipped and allowed_models() is not None:
        raise InvalidInput(f"The adapter {name!r} is not on this server's list.", f"It can be {', '.join(shipped)}.")
    folder = Path(shipped[name]["path"]) if name in shipped else user_path(name)
    if not (folder / "focus_config.json").is_file():
        known = f"There are {', '.join(shipped)}; or give a folder." if shipped else "Give the folder of one."
        raise InvalidInput(f"There is no adapter {name!r}.", known)
    return folder


def check_variant(request: dict[str, Any]) -> None:
    """Refuse an unknown variant, wrong settings, or an adapter that is missing or not wanted, before a model loads."""
    name, config = request.get("variant", "dense"), request.get("config") or {}
    folder = adapter_folder(request.get("adapter"))
    make(name, config)
    kind = VARIANTS[name].adapter_kind
    if kind and folder is None and not VARIANTS[name].adapter_optional:
        model = str(request.get("model", ""))
        known = {name: entry["config"] for name, entry in assets.adapters().items()}
        own = [n for n, c in known.items() if c.get("kind", kind) == kind and fits(c.get("model"), model)]
        free = ", ".join(n for n, c in VARIANTS.items() if c.adapter_kind is None)
        raise InvalidInput(
            f"{name} needs a trained adapter{'' if own else ', and none ships for this model'}.",
            f"Choose one: {', '.join(own)}." if own else f"Without one there are {free}; or train one for this model.",
        )


def adapter_document(request: dict[str, Any]) -> dict[str, Any] | None:
    """What the requested adapter says of itself, read without torch; None where the variant takes none."""
    folder = adapter_folder(request.get("adapter"))
    kind = VARIANTS[request.get("variant", "dense")].adapter_kind
    document = read_json(folder / "focus_config.json") if folder is not None and kind is not None else None
    if not isinstance(document, dict) or document.get("kind") != kind:
        return None
    return document if all(isinstance(document.get(part), dict) for part in ("config", "serve")) else None


def build_variant(request: dict[str, Any], model: Any) -> tuple[Variant, Any, str | None]:
    """The variant, its adapter and the adapter's name; settings the adapter is served with, then the request's.

    An adapter beside a variant that takes none is left aside, unless it changes the model itself, as LoRA does.
    """
    name, config = request.get("variant", "dense"), request.get("config") or {}
    folder = adapter_folder(request.get("adapter"))
    changes = adapter_kind(folder) in CHANGES_MODEL
    if folder is None or (VARIANTS[name].adapter_kind is None and not changes):
        return make(name, config), None, None
    from focus_core.adapter import load_adapter

    adapter = load_adapter(folder, model)
    serve = adapter.serve if not changes or adapter.config.through == name else {}
    return make(name, {**serve, **config}), adapter, request["adapter"]


def adapter_kind(folder: Path | None) -> str | None:
    """What an adapter's folder says it is, read without torch; None without a folder or a word."""
    document = read_json(folder / "focus_config.json") if folder is not None else None
    return document.get("kind") if isinstance(document, dict) else None


def files_identity(request: dict[str, Any]) -> list[Any]:
    """Ages and sizes of the files that a request names: another adapter at the same path is another run."""
    found: list[Any] = []
    folder = adapter_folder(request.get("adapter"))
    model = user_path(str(request.get("model", "")))
    named = sorted(folder.glob("focus_*")) if folder else []
    named += sorted(model.glob("*")) if model.is_dir() else [model] if model.is_file() else []
    for path in named:
        status = path.stat()
        found.append([path.name, status.st_size, status.st_mtime_ns])
    return found


def forward_seconds(shape: Shape, tokens: int, host: Host, passes: float = 1.0) -> float:
    """Raw seconds of scoring one text, from its operations."""
    pairs = tokens * (tokens + 1) / 2
    flops = 2.0 * shape.inner * tokens + 2 * shape.vocab * shape.hidden * tokens
    flops += 4 * pairs * shape.heads * shape.head_dim * shape.layers
    rate = _FLOPS_CARD if host.device.startswith("cuda") else _FLOPS_PER_CORE * host.cores
    return passes * (flops / rate + 0.004 * shape.layers)


def forward_bytes(shape: Shape, tokens: int) -> int:
    """Peak bytes of scoring one text beyond the weights."""
    return LOGIT_BYTES + tokens * shape.hidden * 4 * 40


def loading(model: str, host: Host) -> tuple[float, int]:
    """Seconds and bytes to load the model; nothing when it is there or its size is not known."""
    shape = shape_of(model)
    if host.loaded == model or shape is None:
        return 0.0, 0
    first = _FIRST_PREPARE_SECONDS if model == DEFAULT and prepared_default() is None else 0.0
    # Weights are read and widened to fp32 while the read copy is still there.
    return 2.0 + first + 4 * shape.values / _LOAD_BYTES_PER_SECOND, round(4 * shape.values * 1.5)


def unknown_cost(model: str) -> Estimate:
    """For a model whose size is not known before it is loaded; the loader checks it against the memory."""
    return Estimate(0.0, 0, f"The cost is known once {model} is loaded.")
