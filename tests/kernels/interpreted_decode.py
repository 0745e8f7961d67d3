"""Runs cases of the decode kernels of SFA, Slim attention and MLA under Triton's interpreter.

``python -m tests.kernels.interpreted_decode``: a process of its own, because Triton reads TRITON_INTERPRET when the
kernels are defined. Prints one JSON line a case.
"""

from __future__ import annotations

import json
import sys

import torch

from benchmarks.gpu_decode_checks import check

_SFA = {"method": "sfa", "keys": 70, "dim": 32, "heads": 4, "kv": 2, "features": 6, "dtype": "float32"}
_THIN = {"method": "thin", "features": 6, "dim": 32, "dtype": "float32"}
_SLIM = {"method": "slim", "keys": 70, "heads": 2, "dim": 16, "dtype": "float32"}
_MLA = {"method": "mla", "keys": 70, "heads": 4, "rank": 24, "nope": 8, "rope": 8, "value": 12, "dtype": "float32"}
_PADS = {"batch": 2, "first": [25, 70]}
CASES = {
    "codes of one key": _SFA | {"keys": 1},
    "codes as a cache packs them": _SFA | {"dtype": "float16", "keys": 300},
    "codes by token": _SFA | {"layout": "tokens", "batch": 2},
    "codes of their own": _SFA | {"layout": "own", "dim": 24, "value_dim": 40},
    "codes, looked up in the L1 cache": _SFA | {"plan": {"gather": False}},
    "codes, three query heads a key head": _SFA | {"heads": 3, "kv": 1, "dtype": "float16"},
    "codes, left padding, three queries": _SFA | _PADS | {"queries": 3},
    "codes of pairs": _SFA | {"select": "pairs", "softcap": 0.8, "scale": -0.5},
    "pairs without overlap dropped": _SFA | {"no_overlap": "exclude", "features": 2},
    "pairs without overlap dropped, codes of pairs": _SFA | {"select": "pairs", "no_overlap": "exclude"},
    "codes of keys alone": _SFA | {"sparse": "keys"},
    "codes with zeros and ties": _SFA | {"zeros": True, "no_overlap": "exclude"},
    "rows without all but their top": _THIN | {"dim": 24, "tokens_first": True},
    "rows of zeros and ties": _THIN | {"zeros": True},
    "rows in 16 bits": _THIN | {"dtype": "float16", "features": 1, "dim": 40},
    "rows that keep all": _THIN | {"dtype": "bfloat16", "features": 32},
    "one cached state": _SLIM | {"keys": 1},
    "two cached states": _SLIM | {"keys": 2},
    "states in several slices": _SLIM | {"keys": 150, "heads": 3, "dim": 64, "value_bias": True},
    "rotated states": _SLIM | {"turned": 1, "key_bias": True, "value_bias": True},
    "rotated states, left padding": _SLIM | _PADS | {"turned": 2},
    "states, left padding, no new token": _SLIM | _PADS | {"new": False, "value_bias": True},
    "states, soft cap": _SLIM | {"softcap": 0.8, "scale": -0.5, "dtype": "float16"},
    "states, sums by columns": _SLIM | {"plan": {"swap": True}, "turned": 1},
    "sequences in turns": _SLIM | {"batch": 3, "turned": 3, "first": [0, 30, 70]},
    "one latent": _MLA | {"keys": 1},
    "latents, left padding, biases": _MLA | _PADS | {"queries": 3, "bias": True},
    "latents, grouped heads": _MLA | {"up_heads": 2, "rope_heads": 2, "bias": True, "softcap": 0.8, "scale": -0.5},
    "latents, several tiles of heads": _MLA | {"heads": 40, "dtype": "float16", "keys": 40},
    "latents without rotation": _MLA | {"rope": 0, "scale": 0.3},
}


def main() -> None:
    """Every case, a line each."""
    torch.set_num_threads(1)
    for name, case in CASES.items():
        print(json.dumps({"name": name, **check(case, "cpu")}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
