"""The mean layer of each length, in the fields that every GPU result has; and why an aim was missed."""

from __future__ import annotations

import statistics
from typing import Any

FORMS = ("own", "before")
"""Whose queries choose a row's blocks: its own, as published; or those of the row before, as served."""
DENSE = ("fa4", "cudnn", "fa2", "sdpa")
_OF_A_LENGTH = ("tokens", "heads", "kv", "dim", "stride", "threshold", "repeats", "activations", "rope")
AIM = 0.7


def totals(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The mean layer of a length, one row a form and way; ways that were slower are not ``kept``."""
    found = []
    for tokens in sorted({row["tokens"] for row in rows}):
        some = [row for row in rows if row["tokens"] == tokens]
        names = set.intersection(*(set(row["all_ms"]) for row in some))
        sums = {name: statistics.mean(row["all_ms"][name]["median"] for row in some) for name in names}
        ways = [way for way in ("flash", "triton", "flash_causal") if f"whole_{FORMS[0]}_{way}" in names]
        about = {name: some[0][name] for name in some[0] if name in _OF_A_LENGTH}
        about |= {"method": "xattention", "phase": "prefill", "layers": len(some)}
        for name in [name for name in sums if name.removesuffix("_graph") in DENSE]:
            about[f"{name}_ms"] = {"median": sums[name], "n": some[0]["repeats"]}
        for form in FORMS:
            for way in ways:
                if f"whole_{form}_{way}" in sums:
                    found.append(about | _row(some, sums, form, way, way == ways[0]))
    return found


def _row(some: list[dict[str, Any]], sums: dict[str, float], form: str, way: str, kept: bool) -> dict[str, Any]:
    density, repeats = statistics.mean(row["densities"][form] for row in some), some[0]["repeats"]
    row: dict[str, Any] = {"form": form, "design": way, "kept": kept, "density": density, "pair_limit": 1 / density}
    for suffix in ("", "_graph"):
        name = f"whole_{form}_{way}{suffix}"
        if name not in sums:
            continue
        kernels = [kernel for kernel in DENSE if kernel + suffix in sums]
        best = min(kernels, key=lambda kernel: sums[kernel + suffix])
        whole, select, dense = sums[name], sums[f"select_{form}{suffix}"], sums[best + suffix]
        row |= {f"baseline{suffix}": best, f"ms{suffix}": {"median": whole, "n": repeats}}
        row |= {f"speedup{suffix}": dense / whole, f"share_of_limit{suffix}": dense / whole * density}
        row |= {f"against_{kernel}{suffix}": sums[kernel + suffix] / whole for kernel in kernels}
        row |= {f"select_ms{suffix}": {"median": select, "n": repeats}, f"select_share{suffix}": select / dense}
        # The last suffix wins: graphs, in which no time goes to starting kernels.
        row["stages_ms"] = {"select": select, "attend": whole - select}
        pairs = some[0]["heads"] * some[0]["tokens"] * (some[0]["tokens"] + 1) / 2 * density
        row["tflops"] = 4 * some[0]["dim"] * pairs / (whole - select) / 1e9
        row["speed_a_pair"] = dense * density / (whole - select)
        if (score := f"score{suffix}") in sums:
            row[f"score_ms{suffix}"] = sums[score]
            row[f"score_tflops{suffix}"] = some[0]["score_flops"] / sums[score] / 1e9
    row["error"] = max(one["errors"][way] for one in some)
    for name in ("extra_over_qkvo", "extra_mb"):
        if extra := [one[f"{name}_{way}"] for one in some if f"{name}_{way}" in one]:
            row[name] = max(extra)
    return row


def why(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Why the longest length's best row misses 70 % of what its pairs allow; nothing where it does not."""
    longest = max((row["tokens"] for row in rows), default=0)
    kept = [(row, suffix) for row in rows if row["tokens"] == longest and row["kept"] for suffix in ("", "_graph")]
    kept = [(row, suffix) for row, suffix in kept if f"share_of_limit{suffix}" in row]
    if not kept:
        return {}
    row, suffix = max(kept, key=lambda one: one[0][f"share_of_limit{one[1]}"])
    if row[f"share_of_limit{suffix}"] >= AIM:
        return {}
    whole, select = row[f"ms{suffix}"]["median"], row[f"select_ms{suffix}"]["median"]
    dense = row[f"{row[f'baseline{suffix}']}{suffix}_ms"]["median"]
    limit = dense * row["density"]
    said = (
        f"the kept pairs alone would take {limit:.2f} ms at dense attention's rate. Selection adds {select:.2f} ms, "
        f"{select / limit:.0%} of that"
    )
    if f"score_ms{suffix}" in row:
        score, rate = row[f"score_ms{suffix}"], row[f"score_tflops{suffix}"]
        said += f" ({score:.2f} ms are the product of the strided rows, at {rate:.0f} TFLOP/s)"
    said += (
        f", and attention takes {whole - select:.2f} ms: {limit / (whole - select):.0%} of dense attention's speed a "
        "pair, in tiles of 128 queries where dense attention's have 192. With selection as it is, attention at the "
        f"full dense rate would give {limit / (limit + select):.0%}"
    )
    return {"xattention": said}
