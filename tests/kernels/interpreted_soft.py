"""Runs cases of the soft gates' kernels under Triton's interpreter: ``python -m tests.kernels.interpreted_soft``.

A process of its own, because Triton reads TRITON_INTERPRET when the kernels are defined. Prints one JSON line a case.
"""

from __future__ import annotations

import json
import sys

import torch

from benchmarks.gpu_focus_training_checks import check

_SMALL = {"keys": 67, "dim": 16, "heads": 2, "kv": 1, "window": 9, "sinks": 2, "groups": 4, "looks": 2}
_SMALL |= {"dtype": "float32"}
_PADDED = {"batch": 2, "first": [25, 50], "keys": 50}
CASES = {
    "soft": {},
    "straight-through": {"hard": True},
    "one token": {"keys": 1},
    "a full tile and one": {"keys": 33},
    "far tiles between sinks and window": {"keys": 120, "heads": 1, "window": 5, "sinks": 3},
    "no sinks, window of one": {"keys": 40, "window": 1, "sinks": 0},
    "sinks over several tiles": {"keys": 70, "heads": 1, "sinks": 40},
    "everything near": {"keys": 40, "window": 40},
    "a router a key head": {"keys": 40, "heads": 4, "kv": 2, "routers": 2},
    "three query heads a key head": {"keys": 40, "heads": 3, "kv": 1, "dim": 8},
    "nine on three": {"keys": 20, "heads": 9, "kv": 3, "routers": 3, "hard": True, "window": 4},
    "keys in two groups": {"keys": 40, "held": 2},
    "keys in two groups, straight-through": {"keys": 40, "held": 2, "hard": True, "groups": 5, "looks": 3},
    "padded, negative scale, three query heads a key head": _PADDED | {"heads": 3, "scale": -0.4},
    "padded": _PADDED,
    "padded after a cache": _PADDED | {"queries": 30, "routers": 1, "hard": True},
    "queries after a cache": {"queries": 35, "keys": 80},
    "one query after a cache": {"queries": 1},
    "soft cap, negative scale": {"keys": 40, "softcap": 0.8, "scale": -0.5},
    "odd head sizes": {"keys": 40, "dim": 24, "value_dim": 40},
    "half precision": {"keys": 140, "heads": 1, "dim": 80, "dtype": "float16"},
    "half precision, straight-through": {"keys": 70, "heads": 1, "dtype": "float16", "hard": True},
    "strided by token": {"keys": 40, "layout": "tokens", "batch": 2},
    "sixty-four groups": {"keys": 40, "groups": 64, "looks": 9},
    "one group": {"keys": 40, "groups": 1, "looks": 1},
    "memberships alone want a gradient": {"keys": 40, "gates": "alone"},
    "q, k and v alone want a gradient": {"keys": 40, "gates": "none"},
}


def main() -> None:
    """Every case, a line each."""
    torch.set_num_threads(1)
    for name, case in CASES.items():
        print(json.dumps({"name": name, **check(_SMALL | case, "cpu")}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
