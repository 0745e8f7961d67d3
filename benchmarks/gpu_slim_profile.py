"""What bounds Slim attention's decode step: bytes, operations and steps of the sizes that it ran with."""

from __future__ import annotations

from typing import Any

import torch

from focus_core.kernels.focus.triton.tiles import cover, padded
from focus_core.kernels.slim.triton_decode import Plan, shares

_WEAK = 1.5
_PEAK = 989
"""TFLOP/s of an H200 in bf16, without sparsity, as its data sheet has it."""


def profile(shape: dict[str, Any], plan: Plan, milliseconds: float) -> dict[str, Any]:
    """Counts of one step and the rates that they come to.

    Args:
        shape: of ``gpu_decode_shapes``.
        plan: sizes that were run.
        milliseconds: of the launches over the states.

    Returns:
        ``memory_gb``, ``l2_gb`` and ``tensor_gflop`` of a call; ``rounds`` of a program (a chunk of keys each), the
        ``round_us`` and ``round_kb`` of keys in all of a multiprocessor's programs; and the rates.
    """
    batch, past, lines = shape["batch"], shape["tokens"] - 1, padded(shape["heads"])
    width = shape["heads"] * shape["dim"]
    slices, rows, splits, per = shares(plan, batch, width, past, torch.device("cuda"))
    keys, scores = 2e-9 * batch * past * width, 4e-9 * batch * past * lines
    reads = 1 if plan.together else 2
    found = {
        "memory_gb": keys * reads + scores,
        "l2_gb": 2 * keys + scores * slices,
        "tensor_gflop": 2e-9 * batch * past * lines * slices * plan.columns,
        "rounds": cover(per, plan.chunk) * cover(batch, rows) * reads,
        "round_kb": plan.chunk * plan.columns * 2 * plan.programs / 1024,
    }
    found["round_us"] = milliseconds * 1e3 / found["rounds"]
    found["memory_gb_per_s"], found["l2_gb_per_s"] = (found[f"{n}_gb"] / milliseconds * 1e3 for n in ("memory", "l2"))
    return found | {
        "tensor_tflops": found["tensor_gflop"] / milliseconds,
        "multiprocessors": slices * splits * rows / plan.programs,
    }


def why(row: dict[str, Any]) -> dict[str, str]:
    """The reason for the record where the kernel's aim is missed: by counts of the row's ``profile``."""
    if row["batch"] < 16 or row["speedup_graph"] >= _WEAK or row["turned"]:
        return {}
    p, dense, states = row["profile"], row["dense_gb_per_s"], row["stages_ms"]["states"]["median"]
    heads, width, keys = row["heads"], row["heads"] * row["dim"], row["bytes"] / 1e6
    parts = [
        f"The cached keys, {keys / 1e3:.2f} GB, once from memory at the {dense:,.0f} GB/s that dense attention reaches "
        f"on twice the bytes would take {keys / dense:.2f} ms; the launches over them take {states:.2f}.",
        f"{p['memory_gb']:.2f} GB come from memory at {p['memory_gb_per_s']:,.0f} GB/s; {p['l2_gb']:.2f} GB cross L2 "
        f"at {p['l2_gb_per_s']:,.0f} GB/s; the tensor cores do {p['tensor_tflops']:.0f} TFLOP/s of {_PEAK}.",
        f"Every head weights whole rows: the sums of a sequence, {heads} x {width:,} numbers, take the registers of "
        f"several multiprocessors, and in each round of {p['round_kb']:.0f} KB a multiprocessor needs the scores of "
        f"them all. {p['rounds']:,} rounds take {p['round_us']:.2f} us each, where memory alone would take "
        f"{p['round_kb'] * 1.024 * p['multiprocessors'] / dense:.2f}.",
    ]
    # What comes from memory crosses L2, so dense attention's rate is the least that either can do.
    if max(p["memory_gb_per_s"], p["l2_gb_per_s"]) < 0.7 * dense and p["tensor_tflops"] < 0.3 * _PEAK:
        parts.append(
            "None of the three is full: the chain within a round bounds it, one step after the other: load, score, "
            "hand over, wait, weight. A cluster of blocks that hands scores over by distributed shared memory "
            "is faster (slim/decode.cu)."
        )
    return {"slim-decode": " ".join(parts)}
