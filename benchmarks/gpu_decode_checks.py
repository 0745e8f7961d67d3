"""Checks of the decode kernels of SFA, Slim attention and MLA against their references, over small shapes of all kinds.

A case is ``{"method": "sfa" | "slim" | "mla", ...}``; what it leaves out has the defaults of the method's function.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import math
import multiprocessing
from collections.abc import Callable
from typing import Any

LIMITS = {"float32": 1e-5, "float16": 3e-3, "bfloat16": 1.5e-2}
"""Largest relative error (norm of the difference over norm of the reference) by type."""

Compute = Callable[..., Any]
"""``compute(backend, wide)``: output and log-sum-exp by a backend, of operands in fp32 if ``wide``."""


def drawer(case: dict[str, Any], device: str) -> Callable[..., Any]:
    """Normal numbers of the case's type."""
    import torch

    generator = torch.Generator(device).manual_seed(7 + case.get("keys", 0))
    dtype = getattr(torch, case.get("dtype", "bfloat16"))
    return lambda *shape: torch.randn(shape, generator=generator, device=device).to(dtype)


def settings(case: dict[str, Any], device: str) -> dict[str, Any]:
    """What all three methods take."""
    import torch

    found = {name: case[name] for name in ("softcap", "scale") if name in case}
    if "first" in case:
        found["first_key"] = torch.tensor(case["first"], device=device)
    return found | {"return_lse": True}


def sfa(
    case: dict[str, Any], device: str, *, batch=1, heads=4, kv=2, queries=1, keys=700, dim=128, value_dim=None,
    features=16, layout="packed", **kind: Any,
) -> Compute:  # fmt: skip
    """SFA over codes: packed as a cache holds them, as tensors of their own, or by token."""
    from focus_core.kernels.sfa import Codes, encode, pack, sfa_attention, unpack

    draw = drawer(case, device)
    q, k, v = draw(batch, heads, queries, dim), draw(batch, kv, keys, dim), draw(batch, kv, keys, value_dim or dim)
    if kind.pop("zeros", False):
        # Rows with fewer numbers than features, and equal magnitudes: the choice is by the lowest dimension.
        q[..., features // 2 :] = 0
        k = k.sign()
    codes = encode(k, features, kind.get("select", "features"))
    if layout == "packed":
        codes = unpack(pack(codes), dim, features, q.dtype, codes.select)
    if layout == "tokens":
        by_token = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (codes.values, codes.ids, v)]
        codes, v = dataclasses.replace(codes, values=by_token[0], ids=by_token[1]), by_token[2]

    def compute(backend: str, wide: bool) -> Any:
        x, y, held = q, v, codes
        if wide:
            x, y, held = q.float(), v.float(), Codes(codes.values.float(), codes.ids, dim, codes.select)
        return sfa_attention(x, held, y, features=features, backend=backend, **kind, **settings(case, device))

    return compute


def slim(
    case: dict[str, Any], device: str, *, batch=1, heads=4, keys=700, dim=64, turned=0, key_bias=False,
    value_bias=False, new=True,
) -> Compute:  # fmt: skip
    """Slim attention over a K-cache; ``turned`` rows of angles."""
    import torch

    from focus_core.kernels.slim import Turned, slim_attention

    draw, width = drawer(case, device), heads * dim
    given = {"state": draw(batch, keys, width), "value_weight": draw(width, width) / width**0.5}
    given |= {"key_bias": draw(width)} if key_bias else {}
    given |= {"value_bias": draw(width)} if value_bias else {}
    if new:
        given |= {"new_key": draw(batch, heads, 1, dim), "new_value": draw(batch, heads, 1, dim)}
    q = draw(batch, heads, 1, dim)
    finish = None
    if turned:
        angles = torch.linspace(0, 60, turned * keys * dim // 2, device=device).view(turned, keys, -1)
        finish = Turned(angles.cos(), angles.sin())

    def compute(backend: str, wide: bool) -> Any:
        operands = {name: x.float() for name, x in given.items()} if wide else given
        about = settings(case, device)
        return slim_attention(q.float() if wide else q, **operands, finish=finish, backend=backend, **about)

    return compute


def mla(
    case: dict[str, Any], device: str, *, batch=1, heads=4, up_heads=None, rope_heads=1, queries=1, keys=700, rank=64,
    nope=32, rope=16, value=32, bias=False,
) -> Compute:  # fmt: skip
    """MLA's absorbed form."""
    from focus_core.kernels.mla import mla_attention

    draw, up = drawer(case, device), up_heads or heads
    given = [draw(batch, heads, queries, nope + rope), draw(batch, 1, keys, rank), draw(batch, rope_heads, keys, rope)]
    given += [draw(up, nope, rank) / rank**0.5, draw(up, value, rank) / rank**0.5]
    biases = {"bias_k": draw(up, nope), "bias_v": draw(up, value)} if bias else {}

    def compute(backend: str, wide: bool) -> Any:
        kind = (lambda x: x.float()) if wide else (lambda x: x)
        about = {name: kind(x) for name, x in biases.items()} | settings(case, device)
        return mla_attention(*map(kind, given), backend=backend, **about)

    return compute


def thinned(case: dict[str, Any], device: str = "cuda") -> dict[str, Any]:
    """Whether rows without all but their top features are those of ``sparsify``, to the last bit."""
    import torch

    from focus_core.kernels.sfa import sparsify
    from focus_core.kernels.sfa.triton_thin import thin

    x = drawer(case, device)(2, 3, case.get("keys", 70), case.get("dim", 128))
    if case.get("zeros"):
        # Equal magnitudes, and rows with fewer numbers than features.
        x = x.sign() * (torch.arange(x.shape[-1], device=device) % 5 == 0)
    if case.get("tokens_first"):
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
    same = torch.equal(thin(x, case["features"]), sparsify(x, case["features"]))
    return {**case, "good": same}


_METHODS = {"sfa": sfa, "slim": slim, "mla": mla}


def cases() -> list[dict[str, Any]]:
    """Every kind of call that the kernels serve."""
    pads = {"batch": 3, "first": [0, 150, 700]}
    found: list[dict[str, Any]] = []
    for dim, dtype in itertools.product((64, 80, 96, 128, 256), ("bfloat16", "float16")):
        found.append({"method": "sfa", "dim": dim, "dtype": dtype, "keys": 1333})
    for more in (
        {"keys": 1}, {"keys": 127}, {"keys": 4097, "layout": "own"}, {"layout": "tokens", "batch": 2}, pads,
        {"queries": 3} | pads, {"queries": 8, "heads": 8}, {"heads": 9, "kv": 3}, {"heads": 32, "kv": 1},
        {"heads": 2, "kv": 2}, {"heads": 10, "kv": 2, "softcap": 3.0, "scale": -0.2}, {"sparse": "keys"},
        {"select": "pairs", "features": 12}, {"select": "pairs", "features": 12, "no_overlap": "exclude"},
        {"features": 3, "no_overlap": "exclude"}, {"features": 10, "dim": 80}, {"features": 128}, {"features": 1},
        {"sparse": "keys", "no_overlap": "exclude"}, {"zeros": True}, {"zeros": True, "no_overlap": "exclude"},
        {"dim": 64, "value_dim": 128, "features": 8}, {"batch": 16, "heads": 32, "kv": 8, "keys": 3001},
        {"dtype": "float32"}, {"dtype": "float32", "queries": 2, "dim": 256, "select": "pairs"},
        {"dtype": "float32", "dim": 40, "features": 7, "no_overlap": "exclude"},
    ):  # fmt: skip
        found.append({"method": "sfa", **more})
    for more in (
        {"keys": 1}, {"keys": 2}, {"keys": 65}, {"keys": 5000, "heads": 12}, pads, pads | {"turned": 3, "new": False},
        pads | {"turned": 1, "key_bias": True}, {"batch": 2, "key_bias": True, "value_bias": True},
        {"turned": 1, "key_bias": True, "value_bias": True, "heads": 3, "dim": 80}, {"softcap": 3.0, "scale": -0.2},
        {"heads": 32, "dim": 128, "keys": 2100, "batch": 3}, {"heads": 32, "dim": 128, "turned": 1, "keys": 2100},
        {"heads": 25, "dim": 64, "batch": 40, "keys": 300}, {"dtype": "float16", "heads": 12, "turned": 1},
        {"heads": 64, "dim": 64, "keys": 500}, {"dtype": "float32"}, {"dtype": "float32", "turned": 1, "heads": 12},
    ):  # fmt: skip
        found.append({"method": "slim", **more})
    deepseek = {"rank": 512, "nope": 128, "rope": 64, "value": 128}
    for more in (
        {"keys": 1}, {"keys": 129}, pads | {"bias": True}, {"queries": 3} | pads, {"rope": 8, "rank": 40},
        {"heads": 8, "up_heads": 4, "rope_heads": 4, "bias": True, "softcap": 2.0}, {"softcap": 3.0, "scale": -0.2},
        {"heads": 16, **deepseek}, {"heads": 128, **deepseek, "keys": 3000, "batch": 2}, {"heads": 40, "queries": 2},
        {"heads": 16, **deepseek, "dtype": "float16", "queries": 8}, {"dtype": "float32"},
        {"dtype": "float32", "heads": 16, **deepseek}, {"rope": 0},
    ):  # fmt: skip
        found.append({"method": "mla", **more})
    for dim, dtype in itertools.product((64, 80, 128, 256), ("bfloat16", "float16", "float32")):
        for more in ({"features": 16}, {"features": 16, "zeros": True}, {"features": dim, "tokens_first": True}):
            found.append({"method": "thin", "dim": dim, "dtype": dtype, "keys": 333, **more})
    return found


def check(case: dict[str, Any], device: str = "cuda") -> dict[str, Any]:
    """Relative error of the output and error of the log-sum-exp of one case, and whether they are within the limits.

    The case's ``plan`` changes sizes and ways of the method's kernel.
    """
    if case["method"] == "thin":
        return thinned(case, device)
    left = ("method", "softcap", "scale", "first", "dtype", "plan")
    shape = {name: x for name, x in case.items() if name not in left}
    compute = _METHODS[case["method"]](case, device, **shape)
    wanted, sums = compute("reference", True)
    kernels = importlib.import_module(f"focus_core.kernels.{case['method']}.triton_decode")
    usual = kernels.plan_for
    kernels.plan_for = lambda *kind: dataclasses.replace(usual(*kind), **case.get("plan", {}))
    try:
        out, lse = compute("triton", False)
    finally:
        kernels.plan_for = usual
    some = sums > -math.inf
    error = float((out.float() - wanted).norm() / wanted.norm().clamp_min(1e-30))
    off = float((lse - sums)[some].abs().max()) if bool(some.any()) else 0.0
    dtype = case.get("dtype", "bfloat16")
    good = error < LIMITS[dtype] and off < (1e-3 if dtype == "float32" else 2e-2)
    good &= bool(((lse == -math.inf) == ~some).all()) and bool(out.isfinite().all())
    return {**case, "error": error, "lse_error": off, "good": bool(good)}


def _one(case: dict[str, Any]) -> dict[str, Any]:
    try:
        return check(case)
    except Exception as problem:
        # One broken case must not hide the others; it counts as failed.
        return {**case, "good": False, "problem": f"{type(problem).__name__}: {problem}"[-700:]}


def check_all(workers: int, also: Callable[[Any], None], jobs: list[Any], checks: bool = True) -> list[dict[str, Any]]:
    """Every case, several at once: what takes the time is compiling; ``also`` is done to ``jobs`` by the same pool."""
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        others = pool.map_async(also, jobs, chunksize=1)
        done = pool.map(_one, cases() if checks else [], chunksize=1)
        others.get()
    return done
