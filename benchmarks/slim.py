"""Times one decoded token of Slim attention beside dense attention, in both orders and by batch, in one run.

``python -m benchmarks.slim`` prints a table (``--json FILE`` one document). Each repeat runs everything once, in an
order that rotates: read the ratios to dense and their spread, wall times want an idle machine. Cache bytes are measured
of the tensors that are read.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from focus_core.benchmark.prefill import rotated, spread
from focus_core.evaluation.environment import environment
from focus_core.jobs.files import write_json
from focus_core.kernels.slim import slim_attention
from focus_core.kernels.slim_work import SlimWork

DENSE = "dense"
CASES = ("k weights", "k values", "k weights, rotated", "x weights")
"""What is cached, and the order; ``rotated`` keys are rotated each time they are read."""


def measure(
    batch: int, *, length: int = 4096, heads: int = 12, head_dim: int = 64, dtype: str = "float32", repeats: int = 7
) -> list[dict[str, Any]]:
    """One row a case: ``{case, batch, ms, ratio, cache_bytes, operations, max_error}``.

    Args:
        batch: sequences.
        length: cached tokens, the new one included.
        heads: heads, each with keys of its own.
        head_dim: numbers a head.
        dtype: torch's name of the type.
        repeats: timed runs of each.

    Returns:
        ``ratio`` is dense's time over this one's in the same repeat (more than 1: Slim is faster), with its spread;
        ``max_error`` the largest difference to dense attention in fp64 on what the cache stands for, as a share of it.
    """
    kind, size = getattr(torch, dtype), heads * head_dim
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(kind)

    state, q = draw(batch, length, size), draw(batch, heads, 1, head_dim)
    # Matrices that keep lengths: what is timed does not depend on them, and rounding stays rounding.
    first, second = (torch.linalg.qr(torch.randn(size, size, generator=generator))[0].to(kind) for _ in range(2))
    angles = torch.outer(torch.arange(length), 10000 ** (-torch.arange(0, head_dim, 2) / head_dim)).repeat(1, 2)
    cos, sin = angles.cos().to(kind), angles.sin().to(kind)

    def by_head(x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (heads, head_dim)).transpose(1, 2)

    def rotate(key: torch.Tensor, rows: slice, tokens: slice) -> torch.Tensor:
        half = key.shape[-1] // 2
        turned = torch.cat((-key[..., half:], key[..., :half]), -1)
        return key * cos[tokens] + turned * sin[tokens]

    k, v = by_head(state).contiguous(), by_head(state @ second).contiguous()
    given: dict[str, dict[str, Any]] = {
        "k weights": {"value_weight": second, "order": "weights"},
        "k values": {"value_weight": second, "order": "values"},
        "k weights, rotated": {"value_weight": second, "order": "weights", "finish": rotate},
        "x weights": {"key_weight": first, "value_weight": second, "order": "weights"},
    }
    runs: dict[str, Callable[[], torch.Tensor]] = {DENSE: lambda: F.scaled_dot_product_attention(q, k, v)}
    runs |= {case: (lambda case=case: slim_attention(q, state, **given[case])) for case in CASES}
    with torch.no_grad():
        goals = _goals(q, k, v, by_head(state.double() @ first.double()), rotate(k.double(), slice(0), slice(None)))
        errors = {case: _apart(run(), goals[case]) for case, run in runs.items()}
        times: dict[str, list[float]] = {case: [] for case in runs}
        for repeat in range(repeats):
            for case in rotated(list(runs), repeat):
                began = time.perf_counter()
                runs[case]()
                times[case].append((time.perf_counter() - began) * 1e3)
    rows = []
    for case, taken in times.items():
        held = k.nbytes + v.nbytes if case == DENSE else state.nbytes
        rows.append(
            {
                "case": case,
                "batch": batch,
                "ms": spread(taken),
                "ratio": spread([a / b for a, b in zip(times[DENSE], taken, strict=True)]),
                "cache_bytes": held,
                "operations": batch * _operations(case, heads, head_dim, length),
                "max_error": errors[case],
            }
        )
    return rows


def _goals(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, made: torch.Tensor, turned: torch.Tensor) -> dict:
    plain = F.scaled_dot_product_attention(q.double(), k.double(), v.double())
    return {
        DENSE: plain,
        "k weights": plain,
        "k values": plain,
        "k weights, rotated": F.scaled_dot_product_attention(q.double(), turned, v.double()),
        "x weights": F.scaled_dot_product_attention(q.double(), made, v.double()),
    }


def _apart(out: torch.Tensor, goal: torch.Tensor) -> float:
    return float((out.double() - goal).norm() / goal.norm())


def _operations(case: str, heads: int, head_dim: int, length: int) -> float:
    if case == DENSE:
        return 4.0 * length * heads * head_dim
    work = SlimWork(
        heads=heads,
        head_dim=head_dim,
        width=heads * head_dim,
        queries=1,
        past=length,
        past_pairs=length,
        new_pairs=0,
        keys_made=case.startswith("x"),
        values_made=True,
        placed="rotated" in case,
    )
    return work.operations("values" if case == "k values" else "weights")


def main() -> None:
    """Measure every batch, and print or write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batches", default="1,4,16", help="comma-separated (default 1,4,16)")
    parser.add_argument("--length", type=int, default=4096, help="cached tokens (default 4096)")
    parser.add_argument("--heads", type=int, default=12, help="heads (default 12)")
    parser.add_argument("--head-dim", type=int, default=64, help="numbers a head (default 64)")
    parser.add_argument("--dtypes", default="float32,bfloat16", help="comma-separated (default float32,bfloat16)")
    parser.add_argument("--threads", type=int, default=0, help="threads of torch; 0 (default) leaves its own number")
    parser.add_argument("--repeats", type=int, default=7, help="timed runs of each (default 7)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write one JSON document there")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    rows = []
    for dtype in args.dtypes.split(","):
        for batch in map(int, args.batches.split(",")):
            shape = {"length": args.length, "heads": args.heads, "head_dim": args.head_dim}
            for row in measure(batch, **shape, dtype=dtype, repeats=args.repeats):
                rows.append({"dtype": dtype, **shape, **row})
                took, ratio = row["ms"], row["ratio"]
                print(
                    f"{dtype:9} batch {batch:2}  {row['case']:19} {took['median']:8.2f} ms  {ratio['median']:5.2f}x "
                    f"dense ({ratio['p10']:.2f} to {ratio['p90']:.2f})  {row['cache_bytes'] / 2**20:7.1f} MiB  "
                    f"{row['operations'] / 1e6:9.1f} M operations  error {row['max_error']:.1e}",
                    flush=True,
                )
    if args.json:
        document = {"rows": rows, "threads": torch.get_num_threads(), "environment": environment()}
        write_json(args.json, document, indent=1)


if __name__ == "__main__":
    main()
