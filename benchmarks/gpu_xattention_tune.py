"""Which tiles are fastest on this GPU: all are timed on one layer's activations, and the best are used from then on."""

from __future__ import annotations

import multiprocessing
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from benchmarks.gpu_xattention_ways import interleaved

STRIDE, BLOCK = 16, 128
SCORE = [
    (128, 256, 64, 8, 3), (128, 256, 64, 8, 4), (256, 128, 64, 8, 3), (128, 128, 64, 4, 3), (128, 128, 64, 8, 3),
    (128, 128, 64, 8, 4), (128, 256, 32, 8, 4), (128, 128, 128, 8, 2),
]  # fmt: skip
"""Rows, columns, numbers of a step, warps and stages of a scoring program."""
PASS = [
    (128, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 2), (128, 128, 8, 3), (128, 128, 4, 2), (64, 128, 4, 2),
    (64, 64, 4, 3), (64, 64, 4, 4), (128, 32, 4, 4),
]  # fmt: skip
"""Rows, keys, warps and stages of an attention program."""
_WITHOUT = 3


def _tiles(tiles: list[tuple]) -> list[tuple[tuple, bool]]:
    """Each by the copy engine, and some token by token."""
    return [(tile, True) for tile in tiles] + [(tile, False) for tile in tiles[:_WITHOUT]]


def _jobs() -> list[tuple]:
    jobs = [("score", *one, 64) for one in _tiles(SCORE)] + [("pass", *one, 64) for one in _tiles(PASS)]
    return [*jobs, ("score", SCORE[0], True, 128), ("pass", PASS[1], True, 128)]


def _compile(job: tuple) -> None:
    """Run one set of tiles on little data, so that its machine code lies in Triton's cache."""
    from benchmarks.gpu_xattention_inputs import random_inputs

    kind, tile, copies, dim = job
    heads, kv = (9, 3) if dim == 64 else (32, 8)
    one = random_inputs(heads, kv, dim, 4096, "cuda", torch.bfloat16)
    q, k, v = one.query, one.key, one.value
    if dim == 64:
        # As the model's own lie: tokens first.
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    mask = torch.ones(1, heads, 32, 32, dtype=torch.bool, device="cuda").tril()
    try:
        run = score_with(q, k, tile, copies) if kind == "score" else pass_with(q, k, v, mask, tile, copies)
        run()
        torch.cuda.synchronize()
    except Exception as problem:
        # Said once more, with its reason, where it is timed.
        print(f"{kind} {tile} {copies}: {type(problem).__name__}", flush=True)


def warm(workers: int) -> None:
    """Compile all of them, several at once."""
    if torch.cuda.is_available():
        with multiprocessing.get_context("spawn").Pool(workers) as pool:
            pool.map(_compile, _jobs(), chunksize=1)


def score_with(q: Any, k: Any, tile: tuple, copies: bool) -> Callable[[], Any]:
    """The choice of blocks with these tiles."""
    from focus_core.kernels.xattention.triton.run import triton_choice
    from focus_core.kernels.xattention.triton.tiles import ScoreTile

    rows = -(-q.shape[2] // BLOCK)
    mask = torch.zeros(*q.shape[:2], rows, rows, dtype=torch.bool, device=q.device)
    wanted = torch.full((q.shape[1],), 0.9, dtype=torch.float64, device=q.device)
    settings: dict[str, Any] = {
        "block": BLOCK,
        "stride": STRIDE,
        "causal": True,
        "mode": "antidiagonal",
        "first_key": None,
    }
    settings |= {"scale": q.shape[3] ** -0.5, "softcap": None, "mask": mask, "wanted": wanted}
    return lambda: triton_choice(q, k, **settings, tile=ScoreTile(*tile), copies=copies)


def pass_with(q: Any, k: Any, v: Any, mask: Any, tile: tuple, copies: bool, sort: bool = False) -> Callable[[], Any]:
    """Attention over the blocks of a mask with these tiles."""
    from focus_core.kernels.block_sparse.triton_lists import list_blocks
    from focus_core.kernels.block_sparse.triton_pass import PassTile, sparse_pass
    from focus_core.kernels.focus.triton.tiles import scores_of

    out = torch.empty_like(q)
    scores = scores_of(q.shape[3] ** -0.5, None)

    def run() -> None:
        lists = list_blocks(mask, q.shape[2], k.shape[2], BLOCK, True, None)
        sparse_pass(q, k, v, out, None, lists, None, BLOCK, True, scores, replace(PassTile(*tile), sort=sort), copies)

    return run


def pick(one: Any, choose: Callable[..., Any], device: str) -> list[dict[str, Any]]:
    """Time every set of tiles, and make the fastest the ones that are used; a row each."""
    from focus_core.kernels.block_sparse import triton_pass
    from focus_core.kernels.xattention.triton import run as scoring
    from focus_core.kernels.xattention.triton.tiles import ScoreTile

    q, k, v = one.query, one.key, one.value
    mask = choose("own", q, k)
    runs: dict[str, Callable[[], Any]] = {}
    tiles: dict[str, tuple] = {}
    for sizes, copies in _tiles(SCORE if device == "cuda" else SCORE[3:4]):
        tiles[f"score {sizes} {copies}"] = ("score", sizes, copies)
        runs[f"score {sizes} {copies}"] = score_with(q, k, sizes, copies)
    for tile, copies in _tiles(PASS if device == "cuda" else PASS[:1]):
        tiles[f"pass {tile} {copies}"] = ("pass", tile, copies)
        runs[f"pass {tile} {copies}"] = pass_with(q, k, v, mask, tile, copies)
    runs["pass, longest rows first"] = pass_with(q, k, v, mask, PASS[1], True, sort=True)
    times, failed = interleaved(runs, 3, device)
    middle = {name: statistics.median(found) for name, found in times.items()}
    score = min((name for name in middle if name.startswith("score")), key=middle.__getitem__)
    best = min((name for name in middle if name.startswith("pass (")), key=middle.__getitem__)
    first_score, first_pass = scoring.score_tile, triton_pass.pass_tile
    usual = scoring.triton_choice

    def choice(*args: Any, **settings: Any) -> None:
        usual(*args, **{"copies": None if tiles[score][2] else False} | settings)

    # Other head sizes keep the tiles that the project has for them.
    scoring.score_tile = lambda dtype, dim: ScoreTile(*tiles[score][1]) if dim <= 64 else first_score(dtype, dim)
    scoring.triton_choice = choice
    kept = triton_pass.PassTile(*tiles[best][1])
    triton_pass.pass_tile = lambda dtype, widest: kept if widest <= 64 else first_pass(dtype, widest)
    shape = {"layer": one.layer, "tokens": q.shape[2], "dim": q.shape[3]}
    by_tokens = q.stride(1) < q.stride(2)
    row = {"what": "tiles", **shape, "tokens_first": by_tokens, "ms": dict(sorted(middle.items(), key=lambda x: x[1]))}
    return [row | {"chosen": [score, best], "not_run": failed}]
