"""Checks of XAttention's GPU kernels against the specification in fp32, over small shapes of every kind."""

from __future__ import annotations

import itertools
import math
import multiprocessing
from typing import Any

LIMITS = {"float32": 1e-5, "float16": 3e-3, "bfloat16": 1.5e-2}
"""Largest relative error of attention (norm of the difference over norm of the reference) by type."""
SCORE_LIMIT = 2e-5
"""Largest error of a block's score, as a share of its row's: products of 16-bit numbers are exact in fp32."""
TIE = 1e-4
"""A block that one choice keeps and the other does not must lie this near to the threshold, as a share of the row."""


def make_call(case: dict[str, Any], device: str) -> tuple[list[Any], dict[str, Any]]:
    """q, k and v of a case, and its settings."""
    import torch

    get: dict[str, Any] = {
        "batch": 1,
        "heads": 4,
        "kv": 2,
        "keys": 700,
        "queries": None,
        "dim": 64,
        "value_dim": None,
    } | case
    get = {"dtype": "bfloat16", "layout": "heads"} | get
    queries = get["queries"] or get["keys"]
    generator = torch.Generator(device).manual_seed(get["keys"] + get["dim"])

    def draw(heads: int, tokens: int, dim: int) -> Any:
        shape = (get["batch"], heads, tokens, dim)
        if get["layout"] == "tokens":
            shape = (get["batch"], tokens, heads, dim)
        x = torch.randn(shape, generator=generator, device=device)
        # Neighbouring tokens are alike in a text; without that, every block holds the same.
        x = (x + 1.5 * x.cumsum(2 if get["layout"] == "heads" else 1) / 8).to(getattr(torch, get["dtype"]))
        return x.transpose(1, 2) if get["layout"] == "tokens" else x

    q, k = draw(get["heads"], queries, get["dim"]), draw(get["kv"], get["keys"], get["dim"])
    v = draw(get["kv"], get["keys"], get["value_dim"] or get["dim"])
    settings = {"block_size": get.get("block", 128), "causal": get.get("causal", True)}
    settings |= {name: case[name] for name in ("softcap", "scale") if name in case}
    if "first" in case:
        settings["first_key"] = torch.tensor(case["first"], device=device)
    return [q, k, v], settings


def cases() -> list[dict[str, Any]]:
    """Every kind of call that the kernels serve."""
    found: list[dict[str, Any]] = []
    for dim, dtype in itertools.product((64, 80, 96, 128, 256), ("bfloat16", "float16")):
        found.append({"dim": dim, "dtype": dtype, "keys": 1333})
    found += [{"dim": dim, "keys": 2048, "heads": 9, "kv": 3} for dim in (64, 128)]
    found += [{"keys": n} for n in (1, 9, 127, 128, 129, 2049)]
    found += [{"dim": d, "dtype": "float32"} for d in (40, 64, 128)]
    found += [{"dim": 128, "value_dim": 64}, {"heads": 9, "kv": 3}, {"heads": 8, "kv": 1}]
    found += [{"layout": "tokens", "keys": 2048, "batch": 2}, {"layout": "tokens", "keys": 1000, "heads": 9, "kv": 3}]
    found += [{"stride": s, "keys": 2048} for s in (4, 8)] + [{"block": 64, "stride": 8}, {"block": 16, "stride": 16}]
    found += [{"mode": "diagonal", "keys": 999}, {"threshold": 1.0}, {"threshold": 0.0}, {"threshold": 0.5}]
    found += [{"softcap": 2.0}, {"scale": -0.1}, {"softcap": 5.0, "scale": 0.3, "keys": 1024}]
    pads = {"batch": 3, "first": [0, 150, 700]}
    found += [pads, pads | {"queries": 300}, pads | {"queries": 1}, pads | {"causal": False}]
    found += [{"queries": n} for n in (1, 9, 300, 699)] + [{"queries": 256, "keys": 1024}, {"causal": False}]
    found += [{"causal": False, "keys": 1024}, {"keys": 4096, "room": 1 << 20, "batch": 2}]
    return found


def check_choice(case: dict[str, Any], device: str) -> dict[str, Any]:
    """Scores and kept blocks of one case against the specification's."""
    import torch

    from focus_core.kernels.xattention import select_blocks, xattention_block_mask, xattention_scores
    from focus_core.kernels.xattention.triton import triton_choice

    (q, k, _), settings = make_call(case, device)
    settings |= {name: case[name] for name in ("stride", "mode") if name in case}
    threshold = torch.linspace(0.5, 0.95, q.shape[1]).double() if "threshold" not in case else case["threshold"]
    wide = (q.float(), k.float())
    wanted = xattention_scores(*wide, **settings, backend="cpu")
    found = xattention_scores(q, k, **settings, backend="triton")
    whole = wanted.scores.sum(-1, keepdim=True).clamp_min(1e-9)
    off = float(((found.scores - wanted.scores).abs() / whole).max())
    own = wanted.own if settings["causal"] else None
    chosen = select_blocks(wanted.scores, wanted.possible, threshold, own=own)
    same = select_blocks(found.scores, found.possible, threshold, own=own).mask
    mask = xattention_block_mask(q, k, **settings, threshold=threshold, backend="triton")
    # Where the two choices differ, the blocks in dispute are worth next to nothing of the row.
    disputed = (mask != chosen.mask).sum(-1)
    held = (torch.where(mask, wanted.scores, 0) - torch.where(chosen.mask, wanted.scores, 0)).sum(-1).abs()
    worst = wanted.scores.where(mask != chosen.mask, 0).amax(-1) / whole[..., 0]
    near = (held / whole[..., 0] < TIE) | (disputed == 1) & _crossing(chosen, threshold, TIE)
    good = off < SCORE_LIMIT and bool((mask == same).all()) and bool(near.all())
    row: dict[str, Any] = {"score_error": off, "disputed": int(disputed.sum()), "disputed_mass": float(worst.max())}
    if "room" in case:
        parts = torch.zeros_like(mask)
        share = torch.as_tensor(threshold, dtype=torch.float64).to(device).expand(q.shape[1]).contiguous()
        common: dict[str, Any] = {
            "block": settings["block_size"],
            "stride": settings.get("stride", 16),
            "causal": True,
            "mode": "antidiagonal",
        }
        common |= {"first_key": None, "scale": q.shape[3] ** -0.5, "softcap": None}
        triton_choice(q, k, **common, mask=parts, wanted=share, room=case["room"])
        row["parts_equal"] = bool((parts == mask).all())
        good &= row["parts_equal"]
    return row | {"good": bool(good)}


def _crossing(chosen: Any, threshold: Any, slack: float) -> Any:
    """Rows whose held share comes within ``slack`` of the threshold at the last block taken, or the one before."""
    import torch

    reached = chosen.reached
    at = (chosen.kept - 1).clamp_min(0)[..., None]
    wanted = torch.as_tensor(threshold, dtype=torch.float64).to(reached.device).view(-1, 1)
    last, earlier = (reached.gather(-1, (at - n).clamp_min(0))[..., 0] for n in (0, 1))
    return ((last - wanted).abs() < slack) | ((earlier - wanted).abs() < slack)


def check_attention(case: dict[str, Any], device: str, backend: str = "triton") -> dict[str, Any]:
    """Relative errors of output and log-sum-exp over random kept blocks."""
    import torch

    from focus_core.kernels.block_sparse import block_sparse_attention
    from focus_core.kernels.block_sparse.grid import mask_shape

    (q, k, v), settings = make_call(case, device)
    sizes = mask_shape(q.shape[0], q.shape[2], k.shape[2], settings["block_size"], settings.get("first_key"))
    generator = torch.Generator(device).manual_seed(3)
    masks = case.get("masks", q.shape[1])
    mask = torch.rand(q.shape[0], masks, *sizes, generator=generator, device=device) < case.get("share", 0.5)
    wanted, sums = block_sparse_attention(
        q.float(), k.float(), v.float(), mask, **settings, backend="reference", return_lse=True
    )
    out, lse = block_sparse_attention(q, k, v, mask, **settings, backend=backend, return_lse=True)
    # Without the log-sum-exp too.
    plain = block_sparse_attention(q, k, v, mask, **settings, backend=backend) if case.get("twice", True) else out
    size = wanted.norm().clamp_min(1e-9)
    some = sums > -math.inf
    error, same = float((out.float() - wanted).norm() / size), float((plain.float() - out.float()).norm() / size)
    lse_error = float((lse - sums)[some].abs().max()) if bool(some.any()) else 0.0
    dtype = case.get("dtype", "bfloat16")
    good = error < LIMITS[dtype] and same < LIMITS[dtype] and lse_error < (1e-3 if dtype == "float32" else 3e-2)
    good &= bool(((lse == -math.inf) == ~some).all()) and bool(plain.isfinite().all())
    return {"error": error, "lse_error": lse_error, "same": same, "good": bool(good)}


def check(case: dict[str, Any], device: str = "cuda") -> dict[str, Any]:
    """Both checks of one case."""
    parts = {"choice": check_choice(case, device), "attention": check_attention(case, device)}
    return {**case, **parts, "good": all(part["good"] for part in parts.values())}


def _one(case: dict[str, Any]) -> dict[str, Any]:
    import torch

    with torch.no_grad():
        try:
            return check(case)
        except Exception as problem:
            # One broken case must not hide the others; it counts as failed.
            return {**case, "good": False, "problem": f"{type(problem).__name__}: {problem}"[-700:]}


def check_all(workers: int) -> list[dict[str, Any]]:
    """Every case, several at once: what takes the time is compiling."""
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        return pool.map(_one, cases(), chunksize=1)


def check_flash() -> list[dict[str, Any]]:
    """The flash backend on the shapes that it serves; none where it refuses."""
    import torch

    from focus_core.kernels.block_sparse.triton_applies import flash_refusal

    rows = []
    # One head size, type and sharing: each other one is seconds of compiling.
    shared = {"heads": 9, "kv": 3, "twice": False}
    for case in (
        shared | {"keys": 2048},
        shared | {"keys": 1333, "layout": "tokens", "share": 0.1},
        shared | {"keys": 1024, "queries": 256, "batch": 2},
        shared | {"keys": 1333, "masks": 1},
        shared | {"keys": 1333, "masks": 3, "share": 0.0},
    ):
        (q, k, v), _ = make_call(case, "cuda")
        refused = flash_refusal(q, k, v, 128, True, None, 1.0, None)
        if refused is not None:
            return [{"what": "flash", "refused": refused, "good": True}]
        try:
            with torch.no_grad():
                rows.append({"what": "flash", **case, **check_attention(case, "cuda", "flash")})
        except Exception as problem:
            rows.append(
                {"what": "flash", **case, "good": False, "problem": f"{type(problem).__name__}: {problem}"[-700:]}
            )
    return rows
