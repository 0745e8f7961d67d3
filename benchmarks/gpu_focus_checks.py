"""Checks of Focus's Triton kernels on a GPU against the reference in fp32, over small shapes of every kind."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
from typing import Any

LIMITS = {"float32": 1e-5, "float16": 3e-3, "bfloat16": 1.5e-2}
"""Largest relative error (norm of the difference over norm of the reference) by type."""


def group_sets(shape: tuple[int, ...], groups: int, members: int, device: str, seed: int) -> Any:
    """int64 sets (batch, routers, tokens) of ``members`` of ``groups`` groups; single ones are balanced."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    one = torch.ones((), dtype=torch.int64, device=device)
    if members == 1:
        order = torch.rand(shape, generator=generator, device=device).argsort(-1)
        return one << (order % groups)
    sets = torch.zeros(shape, dtype=torch.int64, device=device)
    for chosen in torch.rand(*shape, groups, generator=generator, device=device).argsort(-1)[..., :members].unbind(-1):
        sets |= one << chosen
    return sets


def make_call(case: dict[str, Any], device: str) -> tuple[list[Any], dict[str, Any]]:
    """q, k, v and sets of a case, and its settings."""
    import torch

    get = {"batch": 1, "heads": 4, "kv": 2, "keys": 700, "queries": None, "dim": 64, "value_dim": None} | case
    get = {"routers": 1, "groups": 8, "looks": 1, "held": 1, "dtype": "bfloat16", "layout": "heads"} | get
    get = {"backend": "triton"} | get
    keys, queries = get["keys"], get["queries"] or get["keys"]
    generator = torch.Generator(device).manual_seed(keys + get["dim"])
    dtype = getattr(torch, get["dtype"])

    def draw(heads: int, tokens: int, dim: int) -> Any:
        shape = (get["batch"], heads, tokens, dim)
        if get["layout"] == "tokens":
            shape = (get["batch"], tokens, heads, dim)
        x = torch.randn(shape, generator=generator, device=device).to(dtype)
        return x.transpose(1, 2) if get["layout"] == "tokens" else x

    q, k = draw(get["heads"], queries, get["dim"]), draw(get["kv"], keys, get["dim"])
    v = draw(get["kv"], keys, get["value_dim"] or get["dim"])
    shape = (get["batch"], get["routers"], keys)
    sets = group_sets(shape, get["groups"], get["looks"], device, 1)[..., keys - queries :]
    offered = group_sets(shape, get["groups"], get["held"], device, 2)
    if get["backend"] == "flash" and not get.get("apart"):
        if get["layout"] == "tokens":
            # Some tokens in no group.
            offered = offered.masked_fill(torch.arange(keys, device=device) % 7 == 3, 0)
        sets = offered[..., keys - queries :]
        if get.get("copied"):
            sets = sets.clone()
    elif get["routers"] > 1 and get["groups"] == 64:
        # Bit 63 makes a set negative.
        sets, offered = sets | (1 << 63) - (1 << 64), offered.clone()
        offered[..., ::5] = (1 << 63) - (1 << 64)
    settings = {"window": 40, "sinks": 4} | {
        name: case[name] for name in ("window", "sinks", "softcap", "scale", "members", "equal") if name in case
    }
    if "first" in case:
        settings["first_key"] = torch.tensor(case["first"], device=device)
    return [q, k, v, sets, offered], settings


def cases() -> list[dict[str, Any]]:
    """Every kind of call that the kernels serve."""
    found: list[dict[str, Any]] = []
    for dim, dtype in itertools.product((64, 80, 96, 128, 256), ("bfloat16", "float16")):
        found.append({"dim": dim, "dtype": dtype, "keys": 1333, "routers": 2, "members": (1, 1)})
        found.append({"dim": dim, "dtype": dtype, "keys": 1333, "queries": 1})
    found += [{"keys": n} for n in (9, 127, 129, 2049)]
    found += [{"dim": d, "dtype": "float32", "looks": 2} for d in (40, 64, 128, 256)]
    found += [{"dim": 128, "value_dim": 64}, {"dim": 40}, {"heads": 9, "kv": 3, "routers": 3}, {"heads": 8, "kv": 1}]
    found += [{"looks": n, "groups": 16, "members": (n, 1)} for n in (2, 4, 5, 16)]
    found += [{"looks": 4, "groups": 16, "routers": 2, "heads": 8, "dim": 128, "members": (4, 1)}]
    found += [{"looks": 3, "held": 2, "routers": 2}, {"looks": 10, "held": 8, "groups": 64}, {"held": 3}]
    found += [{"groups": 64, "routers": 2, "looks": 2}, {"groups": 1}, {"looks": 3, "held": 2, "softcap": 2.0}]
    found += [{"softcap": 5.0, "scale": 0.3}, {"softcap": 5.0, "queries": 2}, {"scale": -0.1}]
    found += [{"window": w, "sinks": s} for w, s in ((1, 0), (1, 3), (300, 0), (65, 100), (699, 4), (8, 650))]
    pads = {"batch": 3, "first": [0, 150, 700], "looks": 2}
    found += [pads, pads | {"queries": 300}, pads | {"queries": 3}, pads | {"queries": 1}]
    found += [{"queries": n, "looks": 2} for n in (2, 8, 9, 300, 699)]
    found += [{"layout": "tokens", "keys": 1024, "batch": 2}, {"layout": "tokens", "queries": 1, "routers": 2}]
    found += [{"batch": 16, "heads": 32, "kv": 8, "routers": 8, "dim": 128, "queries": 1, "keys": 3001}]
    # Four chunks of the plan together: longer than the short plan's limit.
    found += [{"keys": 33_001, "heads": 1, "kv": 1, "groups": 16, "looks": 2, "first": [77], "window": 256}]
    return found


def flash_cases() -> list[dict[str, Any]]:
    """What flash-attn-4 is asked to do inside groups."""
    # Each kind of head is seconds of compiling in flash-attn-4.
    kinds = [*((dim, "bfloat16") for dim in (64, 80, 96, 128, 256)), (64, "float16")]
    found: list[dict[str, Any]] = [{"dim": dim, "dtype": dtype} for dim, dtype in kinds]
    found += [{"apart": True, "looks": 4, "dim": dim, "dtype": dtype} for dim, dtype in kinds]
    found += [{"members": (1, 1), "keys": n, "window": 20, "sinks": 2} for n in (23, 129, 1000, 4097)]
    found += [{"heads": 9, "kv": 3}, {"heads": 8, "kv": 1, "dim": 128}, {"heads": 4, "kv": 4, "value_dim": 128}]
    found += [{"kv": 2, "routers": 2}, {"heads": 9, "kv": 3, "routers": 3, "batch": 3, "layout": "tokens"}]
    found += [{"batch": 6, "routers": 2}, {"groups": 1}, {"groups": 64, "keys": 2000}, {"layout": "tokens"}]
    found += [{"window": w, "sinks": s} for w, s in ((1, 0), (1, 3), (300, 0), (65, 100), (8, 650))]
    found += [{"batch": 3, "first": [0, 150, 700]}, {"batch": 3, "first": [0, 150, 700], "queries": 300}]
    found += [{"queries": n} for n in (9, 300, 699)] + [{"queries": 300, "routers": 2, "batch": 2}]
    found += [{"copied": True}, {"copied": True, "members": (1, 1), "equal": True}, {"softcap": 5.0, "scale": 0.3}]
    found += [{"keys": 33_001, "heads": 1, "kv": 1, "groups": 16, "first": [77], "window": 256}]
    found += [{"apart": True, "looks": n, "heads": 8, "routers": 2, "dim": 128, "keys": 2000} for n in (1, 2, 5)]
    found += [
        {"apart": True, "held": 3},
        {"apart": True, "kv": 1, "heads": 9},
        {"apart": True, "softcap": 5.0, "looks": 2},
    ]
    found += [{"apart": True, "batch": 3, "first": [0, 150, 700], "looks": 2, "queries": n} for n in (700, 300)]
    found += [
        {"apart": True, "keys": 33_001, "heads": 1, "kv": 1, "groups": 16, "looks": 2, "first": [77], "window": 256}
    ]
    return [case | {"backend": "flash"} for case in found]


def check(case: dict[str, Any], device: str = "cuda", twice: bool = True) -> dict[str, Any]:
    """Relative errors of output and log-sum-exp of one case, and whether they are within the limits.

    Args:
        case: what ``make_call`` takes.
        device: where it runs.
        twice: run it without the log-sum-exp too.
    """
    import torch

    from focus_core.kernels.focus import focus_attention

    call, settings = make_call(case, device)
    kernel = {"backend": case.get("backend", "triton"), "members": settings.pop("members", None)}
    kernel["equal"] = settings.pop("equal", False)
    wide = [x.float() if x.is_floating_point() else x for x in call]
    # All queries at once would be N x N floats for the longest case.
    stripes = range(0, call[0].shape[2], 4096)
    wanted, sums = [], []
    for start in stripes:
        stop = min(start + 4096, call[0].shape[2])
        last = call[1].shape[2] - call[0].shape[2] + stop
        part = [wide[0][:, :, start:stop], wide[1][:, :, :last], wide[2][:, :, :last]]
        bits = call[3][..., start:stop], call[4][..., :last]
        out, lse = focus_attention(*part, *bits, **settings, backend="reference", return_lse=True)
        wanted.append(out)
        sums.append(lse)
    wanted, sums = torch.cat(wanted, 2), torch.cat(sums, 2)
    out, lse = focus_attention(*call, **settings, **kernel, return_lse=True)
    plain = focus_attention(*call, **settings, **kernel) if twice else out
    error = float((out.float() - wanted).norm() / wanted.norm())
    some = sums > -math.inf
    off = float((lse - sums)[some].abs().max()) if bool(some.any()) else 0.0
    dtype = case.get("dtype", "bfloat16")
    good = error < LIMITS[dtype] and off < (1e-3 if dtype == "float32" else 2e-2)
    good &= bool(((lse == -math.inf) == ~some).all()) and bool(plain.isfinite().all())
    same = float((plain.float() - out.float()).norm() / wanted.norm())
    return {**case, "error": error, "lse_error": off, "same": same, "good": bool(good and same < LIMITS[dtype])}


def check_refusal_to_guess(device: str = "cuda", backend: str = "triton") -> list[dict[str, Any]]:
    """What does not hold as it was said makes every output NaN."""
    from focus_core.kernels.focus import focus_attention

    kind: dict[str, Any] = {"window": 8, "backend": backend, "members": (1, 1)}
    q, k, v, sets, offered = make_call({"looks": 2, "dtype": "float16"}, device)[0]
    if backend == "triton":
        out = focus_attention(q, k, v, sets, offered, **kind)
        return [{"what": "more groups than was said", "good": bool(out.isnan().all())}]
    more = focus_attention(q, k, v, sets, sets, **kind)
    apart = focus_attention(q, k, v, offered.roll(1, -1), offered, equal=True, **kind)
    return [
        {"what": "flash: more groups than was said", "good": bool(more.isnan().all())},
        {"what": "flash: other sets than was said", "good": bool(apart.isnan().all())},
    ]


def _one(case: dict[str, Any]) -> dict[str, Any]:
    try:
        return check(case)
    except Exception as problem:
        # One broken case must not hide the others; it counts as failed.
        return {**case, "good": False, "problem": f"{type(problem).__name__}: {problem}"[-700:]}


def check_all(workers: int, flash: bool = False) -> list[dict[str, Any]]:
    """Every case, several at once: what takes the time is compiling.

    Args:
        workers: processes.
        flash: flash-attn-4 is there, and its cases are run too.
    """
    # flash-attn-4 compiles for seconds: its cases start first, and its compiled kernels are kept on disk for the rest.
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        done = pool.map(_one, [*(flash_cases() if flash else []), *cases()], chunksize=1)
    for backend in ("triton", "flash") if flash else ("triton",):
        done += check_refusal_to_guess(backend=backend)
    return done
