"""What the document of a Trace file may say: every fact that a page reads has the kind that the page takes it for."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from focus_core.errors import InvalidInput

MAX_LAYERS = MAX_HEADS = 1_024
MAX_TOKENS = 1 << 20
MAX_GROUPS = 64
_MAX_NAME = 1_000
_Test = Callable[[Any], bool]


def wrong(why: str) -> InvalidInput:
    """The refusal of a file, for one reason."""
    return InvalidInput(
        f"This is not a Trace file: {why}.", "Use one that was saved here, or written by `python -m focus_core trace`."
    )


def is_whole(value: Any, low: int = 0, high: int = (1 << 31) - 1) -> bool:
    """Whether a JSON value is a whole number in these bounds."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300


def _is_positive(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MAX_NAME and value.isprintable()


def _or_none(test: _Test) -> _Test:
    return lambda value: value is None or test(value)


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)


def _is_edits(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(edit, dict) for edit in value)


_NEEDED: dict[str, tuple[_Test, str]] = {
    "model": (_is_name, "a name"),
    "variant": (_is_name, "a name"),
    "layers": (lambda v: is_whole(v, 1, MAX_LAYERS), f"a whole number from 1 to {MAX_LAYERS:,}"),
    "heads": (lambda v: is_whole(v, 1, MAX_HEADS), f"a whole number from 1 to {MAX_HEADS:,}"),
    "kv_heads": (lambda v: is_whole(v, 1, MAX_HEADS), f"a whole number from 1 to {MAX_HEADS:,}"),
    "window": (is_whole, "a whole number"),
    "sinks": (is_whole, "a whole number"),
}
_MAY: dict[str, tuple[_Test, str]] = {
    **dict.fromkeys(("adapter", "text_name"), (_is_name, "a name")),
    **dict.fromkeys(("revision", "dtype", "device", "text_hash", "time", "note", "similar_how"), (_is_string, "text")),
    **dict.fromkeys(("config", "versions", "summary", "rescaled"), (_is_dict, "a list of names and values")),
    **dict.fromkeys(("sink_tokens", "sampled_queries", "rotary"), (is_whole, "a whole number")),
    **dict.fromkeys(("recorded", "dense_by_definition"), (_is_bool, "yes or no")),
    "groups": (lambda v: is_whole(v, 1, MAX_GROUPS), f"a whole number from 1 to {MAX_GROUPS}"),
    "head_dim": (lambda v: is_whole(v, 1), "a whole number from 1"),
    "seconds": (_is_number, "a number"),
    "scale": (_is_positive, "a number above 0"),
    "softcap": (_is_positive, "a number above 0"),
    "edits": (_is_edits, "a list of edits"),
}


def check_document(document: Any) -> None:
    """Refuse a document whose text, tokens or facts are not what a Trace's are.

    Args:
        document: what the file's JSON holds, of this version's format.

    Raises:
        InvalidInput: with the part that is wrong.
    """
    if not isinstance(document, dict):
        raise wrong("its document holds no provenance")
    facts, text, tokens = (document.get(name) for name in ("provenance", "text", "tokens"))
    if not isinstance(facts, dict) or not isinstance(text, str) or not isinstance(tokens, list):
        raise wrong("its text, tokens or provenance are missing")
    if not all(isinstance(token, str) for token in tokens):
        raise wrong("a token in it is no text")
    if not 2 <= len(tokens) <= MAX_TOKENS:
        raise wrong(f"it has {len(tokens):,} tokens, not 2 to {MAX_TOKENS:,}")
    written = document.get("top_text", {})
    if not isinstance(written, dict) or not all(_is_id(k) and isinstance(v, str) for k, v in written.items()):
        raise wrong("top_text does not give a text for token ids")
    for name, part in (("text", text), ("tokens", tokens), ("top_text", written), ("provenance", facts)):
        try:
            json.dumps(part, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise wrong(f"{name} holds half of a character (a lone surrogate)") from None
    _check_facts(facts)


def _check_facts(facts: dict[str, Any]) -> None:
    for name, (test, what) in _NEEDED.items():
        if not test(facts.get(name)):
            raise wrong(f"{name} is {_short(facts.get(name))}, not {what}")
    for name, (test, what) in _MAY.items():
        if not _or_none(test)(facts.get(name)):
            raise wrong(f"{name} is {_short(facts[name])}, not {what}")
    layers, heads, kv = facts["layers"], facts["heads"], facts["kv_heads"]
    if heads % kv:
        raise wrong(f"{heads} query heads do not share {kv} KV heads evenly")
    native = facts.get("native")
    if not isinstance(native, list) or len(native) != layers:
        raise wrong(f"its list of sliding windows (native) does not have {layers} layers")
    for layer, own in enumerate(native):
        if own is not None and not is_whole(own, 1):
            raise wrong(f"the sliding window (native) of layer {layer} is {_short(own)}, not a whole number from 1")
    for name, value in (facts.get("config") or {}).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise wrong(f"{_short(name)} in config is {value}, not a number")


def _is_id(key: str) -> bool:
    return key.isascii() and key.isdecimal() and len(key) <= 10


def _short(value: Any) -> str:
    said = repr(value)
    return said if len(said) <= 60 else f"{said[:60]} …"
