"""Runs cases of XAttention's Triton kernels under Triton's interpreter.

``python -m tests.kernels.interpreted_xattention``: a process of its own, because Triton reads TRITON_INTERPRET when
the kernels are defined. Prints one JSON line a case.
"""

from __future__ import annotations

import json
import sys

import torch

from benchmarks.gpu_xattention_checks import check
from focus_core.kernels.block_sparse import triton_pass
from focus_core.kernels.xattention.triton import run, tiles

_SMALL = {"keys": 40, "dim": 16, "heads": 2, "kv": 1, "block": 16, "stride": 4, "dtype": "float32", "twice": False}
_PADDED = {"batch": 3, "first": [0, 13, 40]}
CASES = {
    "one token": {"keys": 1},
    "whole blocks, by the copy engine": {"keys": 48, "batch": 2},
    "whole blocks, tokens first": {"keys": 48, "layout": "tokens", "heads": 4, "kv": 2},
    "odd length, in half precision": {"keys": 39, "dtype": "float16", "dim": 64},
    "nine heads on three": {"heads": 9, "kv": 3, "keys": 17},
    "head dim 80 and other values": {"dim": 80, "value_dim": 40, "keys": 25},
    "blocks of 32, strides of 16": {"block": 32, "stride": 16, "keys": 70},
    "strides as large as blocks, diagonal": {"stride": 16, "mode": "diagonal", "keys": 40},
    "left padding": _PADDED,
    "left padding after a cache": _PADDED | {"queries": 30},
    "queries after a cache": {"queries": 20, "keys": 45},
    "one query": {"queries": 1, "batch": 2, "first": [0, 39]},
    "not causal, padded": _PADDED | {"causal": False},
    "soft cap": {"softcap": 0.8, "scale": 0.5},
    "negative scale, one mask for all": {"scale": -0.4, "masks": 1},
    "a mask a KV head": {"masks": 2, "heads": 4, "kv": 2, "keys": 20},
    "nothing kept": {"share": 0.0, "threshold": 0.0, "keys": 20},
    "everything kept": {"share": 1.1, "threshold": 1.0, "keys": 36, "twice": True},
    "a part of the rows at a time": {"keys": 100, "room": 1024},
    "rows in order": {"sort": False},
}


def main() -> None:
    """Every case, a line each."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    small, sizes = run.ScoreTile(16, 16, 16, 1, 1), triton_pass.pass_tile
    run.score_tile = lambda dtype, dim: small
    # Groups are filled up with programs that do nothing, which the interpreter takes its time over.
    tiles._GROUP = 2
    for name, case in CASES.items():
        sort = case.get("sort", True)
        triton_pass.pass_tile = lambda dtype, widest, sort=sort: triton_pass.PassTile(16, 16, 1, 1, sort)
        print(json.dumps({"name": name, **check(_SMALL | case, "cpu")}), flush=True)
    triton_pass.pass_tile = sizes


if __name__ == "__main__":
    sys.exit(main())
