"""Checks of Focus's decoding by lists against the reference, over small shapes of every kind."""

from __future__ import annotations

import math
import multiprocessing
from typing import Any

from benchmarks.gpu_focus_checks import LIMITS, make_call


def cases() -> list[dict[str, Any]]:
    """Every kind of step that is served."""
    shape = {"queries": 1, "keys": 1333, "groups": 16}
    found = [
        shape | {"dim": dim, "dtype": dtype} for dim in (64, 80, 96, 128, 256) for dtype in ("bfloat16", "float16")
    ]
    found += [shape | {"dim": d, "dtype": "float32", "looks": 2} for d in (40, 64, 128, 256)]
    found += [shape | {"keys": n, "window": 1} for n in (1, 2, 129, 257)]
    found += [shape | {"heads": 9, "kv": 3, "routers": 3, "looks": 4}, shape | {"heads": 8, "kv": 1, "groups": 1}]
    found += [shape | {"dim": 128, "value_dim": 64}, shape | {"softcap": 5.0, "scale": 0.3}, shape | {"scale": -0.1}]
    found += [shape | {"looks": n} for n in (0, 4, 16)] + [shape | {"looks": 3, "held": 2, "softcap": 2.0}]
    found += [shape | {"queries": n, "looks": 2, "held": 3, "routers": 2} for n in (1, 2, 8)]
    found += [shape | {"queries": n, "looks": 2} for n in (3, 8)]
    found += [shape | {"groups": 64, "routers": 2, "looks": 2, "held": 2, "queries": n} for n in (1, 3)]
    found += [shape | {"window": w, "sinks": s} for w, s in ((1, 0), (300, 0), (65, 100), (1332, 4), (8, 1200))]
    pads = shape | {"batch": 3, "first": [0, 150, 1333], "looks": 2}
    found += [pads, pads | {"queries": 3}, shape | {"layout": "tokens", "batch": 2, "routers": 2}]
    found += [shape | {"batch": 16, "heads": 32, "kv": 8, "routers": 8, "dim": 128, "keys": 3001, "window": 256}]
    return found


def positions(lists: Any) -> list[list[int]]:
    """Every list of every row, read through its pages."""
    found = []
    for b, r, g in ((b, r, g) for b in range(lists.table.shape[0]) for r in range(lists.table.shape[1])
                    for g in range(lists.table.shape[2])):  # fmt: skip
        whole = lists.pool[b, r][lists.table[b, r, g].long()].flatten()
        found.append(whole[: int(lists.lengths[b, r, g])].tolist())
    return found


def check(case: dict[str, Any], device: str = "cuda") -> dict[str, Any]:
    """Errors of one case: the new tokens appended by the step, and with lists that hold them already.

    ``page`` and ``splits`` of a case choose the size of a page and the programs of a key head.
    """
    from focus_core.kernels.focus import focus_attention
    from focus_core.kernels.focus.triton.decode_lists import attend_lists, cut_for
    from focus_core.kernels.focus.triton.lists import PAGE, build_lists
    from focus_core.kernels.focus.triton.tiles import scores_of

    case = dict(case)
    page, splits = case.pop("page", PAGE), case.pop("splits", None)
    call, settings = make_call(case, device)
    q, k, v, _, offered = call
    new, keys = q.shape[2], k.shape[2]
    wide = [x.float() if x.is_floating_point() else x for x in call]
    wanted, sums = focus_attention(*wide, **settings, backend="reference", return_lse=True)
    # make_call gives every key of the sixty-four groups one more.
    groups, held = case["groups"], max(1, case.get("held", 1)) + (case["groups"] == 64)
    cut = cut_for(q.dtype, max(q.shape[3], v.shape[3]))
    if splits is not None:
        cut = type(cut)(cut.block, cut.warps, cut.stages, splits)
    scores = scores_of(settings.get("scale", q.shape[3] ** -0.5), settings.get("softcap"))
    fixed = settings["window"], settings["sinks"], settings.get("first_key"), scores
    whole = build_lists(offered, keys, groups, held, k.shape[1], page)
    lists = build_lists(offered, keys - new, groups, held, k.shape[1], page)
    found: dict[str, Any] = {"good": True}
    limit, some = LIMITS[case.get("dtype", "bfloat16")], sums > -math.inf
    for name, into, append in (("appending", lists, True), ("held already", whole, False)):
        out, lse = attend_lists(into, *call, *fixed, append, append=append, cut=cut)
        error = float((out.float() - wanted).norm() / wanted.norm().clamp_min(1e-9))
        good = error < limit and not bool(into.arrived.any())
        if lse is not None:
            off = float((lse - sums)[some].abs().max()) if bool(some.any()) else 0.0
            good &= off < (1e-3 if limit <= 1e-5 else 2e-2) and bool(((lse == -math.inf) == ~some).all())
        found |= {name: error, "good": found["good"] and good, "error": max(error, found.get("error", 0.0))}
    found["appended"] = positions(lists) == positions(whole) and bool((lists.used == whole.used).all())
    found["good"] &= found["appended"]
    return {**case, **found}


def check_steps(device: str = "cuda", graph: bool = True, steps: int = 100) -> dict[str, Any]:
    """Many steps with one graph: how many tokens there are is read on the GPU, and the lists grow over their pages."""
    import torch

    from focus_core.kernels.focus import focus_attention
    from focus_core.kernels.focus.triton.decode_lists import attend_lists
    from focus_core.kernels.focus.triton.lists import build_lists
    from focus_core.kernels.focus.triton.tiles import scores_of

    start, room = 45, 45 + steps + 1
    shape = {"batch": 2, "heads": 4, "kv": 2, "routers": 2, "keys": room, "dim": 16, "groups": 3, "dtype": "float32"}
    (q, k, v, sets, offered), _ = make_call(shape | {"looks": 2}, device)
    first = torch.tensor([0, 30], device=device)
    lists = build_lists(offered, start, 3, 1, 2, 16)
    tokens = torch.tensor([start], dtype=torch.int32, device=device)
    query, wanted = torch.empty_like(q[:, :, :1]), torch.empty_like(sets[..., :1])

    def step() -> Any:
        return attend_lists(lists, query, k, v, wanted, offered, 20, 2, first, scores_of(0.25, None), tokens=tokens)[0]

    def load(n: int) -> None:
        query.copy_(q[:, :, n - 1 : n])
        wanted.copy_(sets[..., n - 1 : n])
        tokens.fill_(n)

    kept = None
    if graph:
        saved = [x.clone() for x in lists.tensors]
        load(start + 1)
        step()
        torch.cuda.synchronize()
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded):
            kept = step()
        for mine, before in zip(lists.tensors, saved, strict=True):
            mine.copy_(before)

    worst = 0.0
    for n in range(start + 1, start + steps + 1):
        load(n)
        if kept is None:
            out = step()
        else:
            recorded.replay()
            out = kept
        part = k[:, :, :n], v[:, :, :n], wanted, offered[..., :n]
        right = focus_attention(query, *part, window=20, sinks=2, first_key=first, scale=0.25, backend="reference")
        worst = max(worst, float((out - right).norm() / right.norm()))
    same = positions(lists) == positions(build_lists(offered, start + steps, 3, 1, 2, 16))
    return {"what": "steps", "graph": graph, "error": worst, "good": worst < LIMITS["float32"] and same}


def check_limits(device: str = "cuda") -> dict[str, Any]:
    """A key in more groups than was said, or a list that has no room, makes every output NaN; growing helps."""
    from focus_core.kernels.focus.triton.decode_lists import attend_lists
    from focus_core.kernels.focus.triton.lists import GroupLists, build_lists
    from focus_core.kernels.focus.triton.tiles import scores_of

    call, _ = make_call({"held": 2, "queries": 1, "keys": 140, "dim": 16, "dtype": "float32"}, device)
    fixed = 8, 0, None, scores_of(0.25, None)
    late = call[4].clone()
    late[..., :-1] = 1
    found = []
    for bits in (call[4], late):
        lists = build_lists(bits, 139, 8, 1, 2)
        for _ in range(2):
            out, _ = attend_lists(lists, *call[:4], bits, *fixed)
        found.append(bool(out.isnan().all()))
    # All keys but the last are in group 0, whose list of 128 places is full.
    late[..., -1] = 1
    full = build_lists(late, 128, 8, 1, 2)
    small = GroupLists(1, full.pool, full.table[..., :1].contiguous(), *full.tensors[2:])
    after = [x[:, :, :129] for x in call[1:3]]
    for _ in range(2):
        out, _ = attend_lists(small, call[0], *after, call[3], late[..., :129], *fixed)
    found.append(bool(out.isnan().all()))
    full = build_lists(late, 128, 8, 1, 2)
    small = GroupLists(1, full.pool, full.table[..., :1].contiguous(), *full.tensors[2:]).grown(129)
    for _ in range(2):
        out, _ = attend_lists(small, call[0], *after, call[3], late[..., :129], *fixed)
    found.append(bool(out.isfinite().all()))
    return {"what": "limits", "held": found, "good": all(found)}


def _one(case: dict[str, Any]) -> dict[str, Any]:
    try:
        if "what" in case:
            return check_steps() if case["what"] == "steps" else check_limits()
        return check(case)
    except Exception as problem:
        # One broken case must not hide the others; it counts as failed.
        return {**case, "good": False, "problem": f"{type(problem).__name__}: {problem}"[-700:]}


def check_all(workers: int) -> list[dict[str, Any]]:
    """Every case, several at once: what takes the time is compiling."""
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        return pool.map(_one, [*cases(), {"what": "steps"}, {"what": "limits"}], chunksize=1)
