"""Trace files from elsewhere: opened with limits, checked before anything is drawn, and never unpickled."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from focus_core.errors import InvalidInput, TooLarge
from focus_core.trace import Trace

MAX_BYTES = 128 << 20
"""Largest file that is opened: a Trace holds at most 64 MB of queries and keys, and little beside them."""
MAX_UNPACKED = 1 << 30
_WHOLE = ("layers", "heads", "kv_heads", "window")
_TEXTS = ("model", "variant")


def open_trace(path: Path | str) -> Trace:
    """Read a Trace file that someone else may have made.

    Raises:
        InvalidInput: it is no Trace, or its parts do not fit each other. TooLarge: it is larger than a Trace can be.
    """
    path = Path(path)
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise TooLarge(f"The file has {size / 1e6:,.0f} MB; a Trace has {MAX_BYTES / 1e6:,.0f} MB at most.")
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(info.file_size for info in archive.infolist())
    except (zipfile.BadZipFile, OSError) as error:
        raise _wrong(f"it is no .npz archive ({error})") from None
    if unpacked > MAX_UNPACKED:
        raise TooLarge(
            f"Unpacked, the file has {unpacked / 1e6:,.0f} MB; a Trace has {MAX_UNPACKED / 1e6:,.0f} at most."
        )
    try:
        trace = Trace.load(path)
    except InvalidInput:
        raise
    except Exception as error:
        raise _wrong(f"it cannot be read ({type(error).__name__})") from None
    _check(trace)
    return trace


def _wrong(why: str) -> InvalidInput:
    return InvalidInput(
        f"This is not a Trace file: {why}.", "Use one that was saved here, or written by `python -m focus_core trace`."
    )


def _check(trace: Trace) -> None:
    """Refuse a Trace whose parts do not fit each other, before a page fails on it."""
    p, n = trace.provenance, len(trace.tokens) if isinstance(trace.tokens, list) else 0
    if not isinstance(p, dict) or not isinstance(trace.text, str) or not n:
        raise _wrong("its text, tokens or provenance are missing")
    if not all(isinstance(token, str) for token in trace.tokens):
        raise _wrong("a token in it is no text")
    for name in _WHOLE:
        if not _count(p.get(name)):
            raise _wrong(f"{name} is {p.get(name)!r}, not a whole number")
    for name in _TEXTS:
        if not isinstance(p.get(name), str):
            raise _wrong(f"{name} is {p.get(name)!r}, not a name")
    layers, heads, kv = (int(p[name]) for name in _WHOLE[:3])
    if not kv or heads % kv:
        raise _wrong(f"{heads} query heads do not share {kv} KV heads evenly")
    if not isinstance(p.get("native"), list) or len(p["native"]) != layers:
        raise _wrong(f"its list of sliding windows does not have {layers} layers")
    shapes: dict[str, tuple[Any, ...]] = {
        "kept_pairs": (layers, heads),
        "mass_kept": (layers, heads),
        "nll": (n - 1,),
        "dense_nll": (n - 1,),
        "token_ids": (n,),
        "byte_span": (n, 2),
        "query_bits": (layers, None, n),
        "key_bits": (layers, None, n),
    }
    for name, array in trace.arrays.items():
        head, _, layer = name.partition(".")
        wanted = shapes.get(name)
        if head in ("queries", "keys"):
            wanted = (heads if head == "queries" else kv, n, None)
            if not layer.isdecimal() or int(layer) >= layers:
                raise _wrong(f"{name} belongs to no layer")
        if head == "block_mask":
            block, sharing = p.get("block_size"), array.shape[0] if array.ndim else 0
            if not _count(block) or not block or not sharing or heads % sharing or array.dtype != np.uint8:
                raise _wrong(f"{name} is no mask of blocks of {block!r} tokens for {heads} heads")
            if not layer.isdecimal() or int(layer) >= layers:
                raise _wrong(f"{name} belongs to no layer")
            side = -(-n // block)
            wanted = (sharing, side, -(-side // 8))
        if wanted is not None and not _fits(array.shape, wanted):
            raise _wrong(f"{name} has the shape {array.shape}, not {wanted}".replace("None", "any"))
        if not np.issubdtype(array.dtype, np.number) and array.dtype != bool:
            raise _wrong(f"{name} holds {array.dtype}, not numbers")
    missing = {"kept_pairs", "nll", "dense_nll"} - set(trace.arrays)
    if missing:
        raise _wrong(f"{', '.join(sorted(missing))} is missing")


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


def _fits(shape: tuple[int, ...], wanted: tuple[Any, ...]) -> bool:
    return len(shape) == len(wanted) and all(w is None or s == w for s, w in zip(shape, wanted, strict=True))
