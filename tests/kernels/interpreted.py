"""Runs cases of Focus's Triton kernels under Triton's interpreter: ``python -m tests.kernels.interpreted``.

A process of its own, because Triton reads TRITON_INTERPRET when the kernels are defined. Prints one JSON line a case.
"""

from __future__ import annotations

import json
import sys

import torch

from benchmarks.gpu_focus_checks import check, check_refusal_to_guess
from tests.kernels.cases import tiled_attention, varlen_attention

_SMALL = {"keys": 70, "dim": 16, "heads": 2, "kv": 1, "window": 9, "sinks": 2, "groups": 4, "dtype": "float32"}
_PADDED = {"batch": 2, "first": [25, 70], "looks": 2}
CASES = {
    "one token": {"keys": 1, "window": 1},
    "two tokens": {"keys": 2, "window": 1, "sinks": 0, "queries": 1},
    "a full tile and one": {"keys": 129, "looks": 2, "members": (2, 1)},
    "a router a key head": {"heads": 4, "kv": 2, "routers": 2, "members": (1, 1)},
    "three query heads a key head": {"heads": 3, "kv": 1, "dim": 8},
    "no sinks, window of one": {"window": 1, "sinks": 0},
    "window over everything": {"window": 200},
    "sinks over everything": {"sinks": 68, "window": 3},
    "more sinks than a block": {"sinks": 40},
    "a query in all groups, in two rounds": {"looks": 6, "groups": 6, "members": (6, 1), "twice": True},
    "both sides in several groups": {"looks": 3, "held": 2, "groups": 6, "softcap": 0.8, "scale": 0.5},
    "sixty-four groups and bit 63": {"groups": 64, "routers": 2, "kv": 2, "looks": 2},
    "no groups": {"members": (0, 0), "groups": 1, "looks": 0, "held": 0},
    "odd head size": {"dim": 24, "value_dim": 40},
    "negative scale": {"scale": -0.4},
    "half precision": {"dtype": "float16", "dim": 80},
    "queries after a cache": {"queries": 40, "keys": 150, "looks": 2},
    "left padding": _PADDED | {"twice": True},
    "left padding after a cache": _PADDED | {"queries": 50},
    "strided by token": {"layout": "tokens", "batch": 2},
    "decode": {"queries": 1, "heads": 4, "kv": 2, "routers": 2, "looks": 2, "twice": True},
    "decode over several chunks": {"queries": 1, "keys": 2100, "dtype": "float16"},
    "decode of three": {"queries": 3, "held": 2, "looks": 2, "softcap": 0.8},
    "decode with left padding": _PADDED | {"queries": 2},
    "decode, all padding": {"queries": 1, "batch": 2, "first": [0, 70]},
    "longer plan": {"keys": 700, "heads": 1, "short": 256, "looks": 2, "first": [33], "window": 70},
    "copied blocks": {"copies": True, "keys": 150, "dim": 24},
    "copied blocks, both sides": {"copies": True, "looks": 2, "held": 2},
}
_FLASH = {"backend": "flash", "dtype": "float16"}
CASES |= {
    f"flash: {name}": _FLASH | case
    for name, case in {
        "one line": {"members": (1, 1)},
        "just past the window": {"keys": 12, "members": (1, 1)},
        "a router a key head": {"heads": 4, "kv": 2, "routers": 2, "batch": 2},
        "three query heads a key head": {"heads": 3, "kv": 1, "dim": 8, "value_dim": 24},
        "tokens in no group": {"layout": "tokens", "heads": 4, "kv": 2, "routers": 2, "keys": 150},
        "one group": {"groups": 1},
        "sixty-four groups": {"groups": 64, "keys": 150},
        "no sinks, window of one": {"window": 1, "sinks": 0},
        "more sinks than a block": {"sinks": 40},
        "window over everything": {"window": 200},
        "left padding": {"batch": 2, "first": [25, 70], "twice": True},
        "left padding after a cache": {"batch": 2, "first": [25, 70], "queries": 50},
        "queries after a cache": {"queries": 40, "keys": 150, "layout": "tokens"},
        "queries after a cache, a router a key head": {"queries": 40, "kv": 2, "routers": 2, "keys": 150},
        "sets of unknown origin": {"copied": True},
        "directed": {"apart": True, "keys": 150, "layout": "tokens"},
        "directed, a router a key head": {"apart": True, "keys": 150, "heads": 4, "kv": 2, "routers": 2},
        "directed, four groups a query": {"apart": True, "looks": 4, "heads": 4, "kv": 2, "routers": 2, "batch": 2},
        "directed, heads in pieces": {"apart": True, "looks": 3, "heads": 6, "kv": 3, "keys": 50, "twice": True},
        "directed, rounds and pieces": {"apart": True, "looks": 6, "groups": 6, "kv": 2, "routers": 2, "keys": 50},
        "directed, keys in two groups": {"apart": True, "held": 2, "keys": 150},
        "directed, padded, after a cache": {"apart": True, "batch": 2, "first": [25, 70], "queries": 50, "looks": 2},
        "directed, several tiles": {"apart": True, "keys": 500, "groups": 2, "heads": 4, "kv": 2, "routers": 2},
        "directed, soft cap": {"apart": True, "keys": 300, "groups": 1, "softcap": 0.8, "scale": 0.5},
        "sets copied, as said": {"copied": True, "members": (1, 1), "equal": True},
        "soft cap": {"softcap": 0.8, "scale": 0.5},
        "decode": {"queries": 2},
        "longer": {"keys": 700, "heads": 1, "kv": 1, "window": 70},
    }.items()
}


def run(case: dict) -> dict:
    """Errors of one case; ``short`` and ``copies`` choose paths that only large inputs or other settings take."""
    import dataclasses

    from focus_core.kernels.focus.triton import plan
    from focus_core.kernels.focus.triton import run as whole

    case = dict(case)
    before = plan._LONG, whole.group_tile
    plan._LONG = case.pop("short", plan._LONG)
    copies = case.pop("copies", False)
    whole.group_tile = lambda *kind: dataclasses.replace(before[1](*kind), copies=copies)
    try:
        twice = case.pop("twice", False)
        return check(_SMALL | case, "cpu", twice)
    finally:
        plan._LONG, whole.group_tile = before


def main() -> None:
    """Every case, a line each."""
    from focus_core.kernels.focus import flash
    from focus_core.kernels.focus.flash import run as flash_run
    from focus_core.kernels.focus.flash import tiled

    torch.set_num_threads(1)
    # flash-attn-4 itself needs a GPU; what surrounds it is run as it is.
    flash.package_refusal = lambda device: None
    flash_run.attend_groups, tiled.attend_tiles = varlen_attention, tiled_attention
    for name, case in CASES.items():
        print(json.dumps({"name": name, **run(case)}), flush=True)
    for row in check_refusal_to_guess("cpu") + check_refusal_to_guess("cpu", "flash"):
        print(json.dumps({"name": row["what"], **row}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
