"""Checks of the soft gates' Triton kernels, forward and backward, against the plain formula in double precision."""

from __future__ import annotations

import itertools
import multiprocessing
from typing import Any

LIMITS = {"float32": 2e-5, "float16": 5e-3, "bfloat16": 2e-2}
"""Largest relative error (norm of the difference over norm of the reference) by type."""
NAMES = ("out", "q", "k", "v", "query_membership", "key_membership")


def plain(
    q: Any,
    k: Any,
    v: Any,
    query_membership: Any,
    key_membership: Any,
    *,
    key_topk: int,
    floor: float,
    window: int,
    sinks: int,
    first_key: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> Any:
    """The soft gates' attention over whole N x N arrays; arguments as in ``soft_triton``."""
    import torch

    from focus_core.kernels.focus.soft import agreement

    heads, keys = q.shape[1], k.shape[2]
    k, v = (x.repeat_interleave(heads // x.shape[1], 1) for x in (k, v))
    scores = (q @ k.mT) * (q.shape[3] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    gate = torch.log(floor + (1 - floor) * agreement(query_membership, key_membership, key_topk))
    gate = gate.repeat_interleave(heads // gate.shape[1], 1)
    first = torch.zeros(q.shape[0], dtype=torch.long, device=q.device) if first_key is None else first_key
    i = torch.arange(keys - q.shape[2], keys, device=q.device)[:, None]
    j = torch.arange(keys, device=q.device)
    near = (i - j < window) | (j - first[:, None, None, None] < sinks)
    kept = (j <= i) & (j >= first[:, None, None, None])
    scores = torch.where(near, scores, scores + gate)
    real = kept.any(-1, keepdim=True)
    return (torch.softmax(scores.masked_fill(~kept, -torch.inf).masked_fill(~real, 0), -1) @ v) * real


def make_call(case: dict[str, Any], device: str) -> tuple[list[Any], dict[str, Any]]:
    """q, k, v and memberships of a case, and its settings."""
    import torch

    from focus_core.routing.router import soft_members, straight_through_members

    get: dict[str, Any] = {"batch": 1, "heads": 4, "kv": 2, "keys": 300, "queries": None, "dim": 64}
    get |= {"value_dim": None} | case
    get = {"routers": 1, "groups": 16, "looks": 4, "held": 1, "dtype": "bfloat16", "hard": False} | get
    keys, queries = get["keys"], get["queries"] or get["keys"]
    generator = torch.Generator(device).manual_seed(keys + get["dim"])

    def draw(*shape: int) -> Any:
        return torch.randn(shape, generator=generator, device=device)

    def heads(count: int, tokens: int, dim: int) -> Any:
        x = draw(get["batch"], tokens, count, dim).to(getattr(torch, get["dtype"])).transpose(1, 2)
        return x if get.get("layout") == "tokens" else x.contiguous()

    q, k = heads(get["heads"], queries, get["dim"]), heads(get["kv"], keys, get["dim"])
    v = heads(get["kv"], keys, get["value_dim"] or get["dim"])
    soften = straight_through_members if get["hard"] else soft_members
    lead = (get["batch"], get["routers"])
    parts = (soften(draw(*lead, n, get["groups"]), m, 0.3) for n, m in ((queries, get["looks"]), (keys, get["held"])))
    settings = {"window": 40, "sinks": 4, "scale": get["dim"] ** -0.5, "softcap": None, "first_key": None}
    settings |= {name: case[name] for name in ("window", "sinks", "softcap", "scale") if name in case}
    settings |= {"key_topk": get["held"], "floor": 1e-6 if get["hard"] else 1e-4}
    if "first" in case:
        settings["first_key"] = torch.tensor(case["first"], device=device)
    return [q, k, v, *parts], settings


def cases() -> list[dict[str, Any]]:
    """Every kind of call that the kernels serve."""
    found: list[dict[str, Any]] = []
    kinds = itertools.product((64, 80, 128), ("bfloat16", "float16", "float32"), (False, True))
    found += [{"dim": dim, "dtype": dtype, "hard": hard, "keys": 397} for dim, dtype, hard in kinds]
    found += [{"dim": 96, "routers": 2}, {"dim": 256, "dtype": "float16"}, {"dim": 40, "value_dim": 80}]
    found += [{"keys": n} for n in (1, 9, 128, 129, 1100)]
    found += [{"heads": 9, "kv": 3, "routers": 3, "hard": hard, "keys": 1024, "window": 128} for hard in (False, True)]
    found += [{"heads": 8, "kv": 1}, {"groups": 64, "routers": 2}, {"groups": 1, "looks": 1}, {"groups": 5}]
    found += [{"held": 2, "hard": hard, "groups": n} for hard in (False, True) for n in (5, 16)]
    found += [{"held": 3, "groups": 64, "routers": 2, "dtype": "float32"}]
    found += [{"softcap": 2.0}, {"softcap": 5.0, "scale": -0.3, "hard": True}, {"scale": -0.1}, {"scale": 1.5}]
    found += [{"window": w, "sinks": s} for w, s in ((1, 0), (1, 3), (300, 0), (65, 100), (8, 290), (200, 70))]
    pads = {"batch": 3, "first": [0, 150, 300]}
    found += [pads, pads | {"hard": True, "routers": 2}, pads | {"queries": 170}, pads | {"held": 2}]
    found += [{"queries": n} for n in (1, 2, 129, 299)]
    found += [{"layout": "tokens", "batch": 2, "keys": 256}]
    found += [{"heads": 9, "kv": 3, "routers": 3} | case for case in (pads, {"held": 2}, {"dim": 128})]
    found += [{"gates": "alone"}, {"gates": "none"}]
    return found


def check(case: dict[str, Any], device: str = "cuda") -> dict[str, Any]:
    """Relative errors of the output and of each gradient of one case, and whether they are within the limits."""
    import torch

    from focus_core.kernels.focus.triton_soft import soft_triton

    call, settings = make_call(case, device)
    wants = {"alone": (0, 0, 0, 1, 1), "none": (1, 1, 1, 0, 0)}.get(case.get("gates", ""), (1, 1, 1, 1, 1))
    pull = torch.randn(*call[0].shape[:3], call[2].shape[3], device=device).to(call[0].dtype)

    def outcome(function: Any, kind: Any) -> list[Any]:
        inputs = [x.detach().to(kind or x.dtype).requires_grad_(bool(w)) for x, w in zip(call, wants, strict=True)]
        out = function(*inputs, **settings)
        wanting = [x for x in inputs if x.requires_grad]
        return [out.detach(), *torch.autograd.grad(out, wanting, pull.to(out.dtype))]

    got = outcome(soft_triton, None)
    wanted = outcome(plain, torch.float64)
    names = ["out", *(name for name, w in zip(NAMES[1:], wants, strict=True) if w)]
    errors = {}
    for name, mine, theirs in zip(names, got, wanted, strict=True):
        whole = float(theirs.norm())
        errors[name] = float((mine.double() - theirs).norm()) / (whole or 1.0)
    limit = LIMITS[case.get("dtype", "bfloat16")]
    return {**case, "errors": errors, "good": all(error < limit for error in errors.values())}


def _one(case: dict[str, Any]) -> dict[str, Any]:
    try:
        return check(case)
    except Exception as problem:
        # One broken case must not hide the others; it counts as failed.
        return {**case, "good": False, "problem": f"{type(problem).__name__}: {problem}"[-700:]}


def check_all(workers: int) -> list[dict[str, Any]]:
    """Every case, several at once: what takes the time is compiling."""
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        return pool.map(_one, cases(), chunksize=1)
