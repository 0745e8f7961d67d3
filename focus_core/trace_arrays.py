"""Which arrays a Trace file may hold, of which dtype, shape and values, and how they fit each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from focus_core.trace import Trace
from focus_core.trace_provenance import MAX_GROUPS, is_whole, wrong

_REAL = (("f2", "f4", "f8"), "real numbers")
_INTEGER = (("i4", "i8"), "whole numbers")
_SETS = (("i8",), "int64 sets")
_FLAGS = (("?",), "true and false")
_BITS = (("u1",), "bytes of packed bits")
_MOST_WIDTH = 4_096
_ROUNDING = 0.01
_MOST_NATS = 300.0
"""A perplexity is finite below: e to the power of twice this is a number."""
_FORMS = {"bits": _SETS, "integer": _INTEGER, "real": _REAL, "flags": _FLAGS, "packed": _BITS}


class _Header(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype: ...


@dataclass(frozen=True)
class _Rule:
    """One array: its dimensions by letter (see ``_Sizes``), what it holds, and the least and largest value."""

    dims: str
    form: str = "real"
    low: float | None = None
    high: float | None = None


_WHOLE = {
    "nll": _Rule("n", low=-_MOST_NATS, high=_MOST_NATS),
    "dense_nll": _Rule("n", low=-_MOST_NATS, high=_MOST_NATS),
    "kept_pairs": _Rule("LH", low=0, high=1),
    "mass_kept": _Rule("LH", low=0, high=1),
    "entropy": _Rule("LH", low=0, high=100),
    "sink_mass": _Rule("LH", low=0, high=1),
    "similar": _Rule("AA", low=-1, high=1),
    "token_ids": _Rule("N", "integer", 0),
    "byte_span": _Rule("N2", "integer", 0),
    "partial": _Rule("N", "flags"),
    "word": _Rule("N", "integer", -1),
    "key_bits": _Rule("LRN", "bits"),
    "query_bits": _Rule("LRN", "bits"),
    "kmeans_bits": _Rule("LSN", "bits"),
    "top_ids": _Rule("NT", "integer", 0),
    "dense_top_ids": _Rule("NT", "integer", 0),
    "top_p": _Rule("NT", low=0, high=1),
    "dense_top_p": _Rule("NT", low=0, high=1),
}
_BY_LAYER = {
    "queries": _Rule("HND"),
    "keys": _Rule("GND"),
    "key_points": _Rule("RNd"),
    "query_points": _Rule("RNd"),
    "centroids": _Rule("RKd"),
    "map": _Rule("RPN2"),
    "map_centroids": _Rule("RK2"),
    "block_mask": _Rule("Bbc", "packed"),
}
_NEEDED = ("kept_pairs", "nll", "dense_nll")
_TOGETHER = (("key_bits", "query_bits"), ("top_ids", "top_p"), ("dense_top_ids", "dense_top_p"))
_NEEDS_OF_LAYER = {"queries": "keys", "keys": "queries", "key_points": "centroids", "query_points": "key_points"}


def is_known(name: str) -> bool:
    """Whether a Trace may hold an array of this name."""
    head, dot, layer = name.partition(".")
    if not dot:
        return head in _WHOLE
    return head in _BY_LAYER and layer.isascii() and layer.isdecimal() and str(int(layer)) == layer and len(layer) < 6


class _Sizes:
    """What each letter of a rule stands for; a letter that the facts leave open is what the first array says."""

    def __init__(self, facts: Mapping[str, Any], tokens: int) -> None:
        layers, heads, kv = facts["layers"], facts["heads"], facts["kv_heads"]
        block = facts.get("block_size") or 1
        side = -(-tokens // block)
        self._known = {"L": layers, "H": heads, "G": kv, "A": layers * heads, "N": tokens, "n": tokens - 1, "2": 2}
        self._known |= {"b": side, "c": -(-side // 8)}
        if facts.get("head_dim"):
            self._known["D"] = facts["head_dim"]
        if facts.get("groups"):
            self._known["K"] = facts["groups"]
        width = range(1, _MOST_WIDTH + 1)
        self._open = {
            **{"R": (1, kv), "S": (1, kv), "P": (1, 2), "K": range(1, MAX_GROUPS + 1), "T": range(1, MAX_GROUPS + 1)},
            **{"D": width, "d": width, "B": [b for b in range(1, heads + 1) if heads % b == 0]},
        }

    def check(self, name: str, rule: _Rule, shape: tuple[int, ...]) -> None:
        if len(shape) == len(rule.dims):
            for letter, size in zip(rule.dims, shape, strict=True):
                if letter not in self._known and size in self._open[letter]:
                    self._known[letter] = size
        wanted = tuple(self._known.get(letter) for letter in rule.dims)
        if shape != wanted:
            said = ", ".join(self._say(letter) for letter in rule.dims)
            raise wrong(f"{name} has the shape {shape}, not ({said})")

    def _say(self, letter: str) -> str:
        if letter in self._known:
            return str(self._known[letter])
        sizes = sorted(set(self._open[letter]))
        return " or ".join(map(str, sizes)) if len(sizes) <= 2 else f"{sizes[0]} to {sizes[-1]}"


def check_shapes(facts: Mapping[str, Any], tokens: int, headers: Mapping[str, _Header]) -> None:
    """Refuse arrays that are not those of a Trace of this size; nothing but their headers is needed.

    Args:
        facts: the provenance, checked.
        tokens: length of the text.
        headers: shape and dtype of every array, all of known names.

    Raises:
        InvalidInput: with the array that is wrong.
    """
    if missing := [name for name in _NEEDED if name not in headers]:
        raise wrong(f"{', '.join(missing)} is missing")
    sizes = _Sizes(facts, tokens)
    for name in sorted(headers, key=_order):
        head, dot, layer = name.partition(".")
        rule, header = (_BY_LAYER if dot else _WHOLE)[head], headers[name]
        if dot and int(layer) >= facts["layers"]:
            raise wrong(f"{name} belongs to no layer")
        if head == "block_mask":
            _check_blocks(name, facts, header)
        dtypes, what = _FORMS[rule.form]
        if header.dtype not in [np.dtype(one) for one in dtypes]:
            raise wrong(f"{name} holds {str(header.dtype)[:60]}, not {what}")
        sizes.check(name, rule, header.shape)
    _check_together(facts, headers)


def _order(name: str) -> tuple[int, int]:
    """Sets first: the routers of the other arrays are held against theirs."""
    head, _, layer = name.partition(".")
    return [*_WHOLE, *_BY_LAYER].index(head), int(layer or 0)


def _check_blocks(name: str, facts: Mapping[str, Any], header: _Header) -> None:
    block, heads = facts.get("block_size"), facts["heads"]
    sharing = header.shape[0] if header.shape else 0
    if not is_whole(block, 1) or not sharing or heads % sharing or header.dtype != np.uint8:
        raise wrong(f"{name} is no mask of blocks of {str(block)[:20]} tokens for {heads} heads")


def _check_together(facts: Mapping[str, Any], headers: Mapping[str, _Header]) -> None:
    needs = dict(_TOGETHER) | {other: one for one, other in _TOGETHER}
    for name in headers:
        head, dot, layer = name.partition(".")
        need = f"{_NEEDS_OF_LAYER[head]}.{layer}" if dot and head in _NEEDS_OF_LAYER else needs.get(name)
        if need is not None and need not in headers:
            raise wrong(f"{need} is missing, and {name} is nothing without it")
        if head == "queries" and (facts.get("scale") is None or "softcap" not in facts):
            raise wrong(f"scale or softcap is missing, and {name} is nothing without it")


def check_values(trace: Trace) -> None:
    """Refuse values that no run gives: not finite, out of range, spans that are not the text's, unknown groups.

    Raises:
        InvalidInput: with the array that is wrong.
    """
    for name, array in trace.arrays.items():
        head, dot, _ = name.partition(".")
        rule = (_BY_LAYER if dot else _WHOLE)[head]
        if rule.form == "real" and not np.isfinite(array).all():
            raise wrong(f"{name} holds values that are not finite")
        _check_range(name, rule, array)
    _check_groups(trace)
    if "byte_span" in trace.arrays:
        _check_spans(trace.arrays["byte_span"], len(trace.text.encode()))


def _check_range(name: str, rule: _Rule, array: np.ndarray) -> None:
    slack = _ROUNDING if rule.form == "real" else 0
    low, high = (float(array.min()), float(array.max())) if rule.low is not None else (0.0, 0.0)
    if rule.low is not None and low < rule.low - slack:
        raise wrong(f"{name} holds {low:g}; its least value can be {rule.low:g}")
    top = rule.high if rule.high is not None else 2**31 - 1
    if rule.low is not None and high > top + slack:
        raise wrong(f"{name} holds {high:g}; its largest value can be {top:g}")


def _check_groups(trace: Trace) -> None:
    groups = trace.provenance.get("groups")
    if groups is None or groups == MAX_GROUPS:
        return
    for name in ("key_bits", "query_bits", "kmeans_bits"):
        if name in trace.arrays and (trace.arrays[name] >> groups).any():
            raise wrong(f"{name} names groups beyond the {groups} that there are")


def _check_spans(spans: np.ndarray, size: int) -> None:
    if int(spans.max()) > size:
        raise wrong(f"byte_span ends at byte {int(spans.max()):,} of a text of {size:,} bytes")
    if (np.diff(spans.astype(np.int64).ravel()) < 0).any():
        raise wrong("byte_span does not ascend: its tokens do not follow each other")
