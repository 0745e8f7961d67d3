"""Times XAttention's cpu path beside dense attention on real activations, with the choice of blocks apart.

``python -m benchmarks.xattention`` takes queries, keys and values of SmolLM2 over the first 8,192 tokens of
*Persuasion*, and runs dense attention, the choice alone, and the whole in turn, so that a busy machine slows all alike:
read the ratios, which are of neighbouring runs. Writes ``data/results/bench-xattention-cpu.json``.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from focus_core import assets
from focus_core.benchmark.attention import max_error
from focus_core.benchmark.inputs import Inputs, call_of
from focus_core.benchmark.prefill import peak_bytes, rotated, spread
from focus_core.models.catalog import DEFAULT

OUT = assets.DATA / "results" / "bench-xattention-cpu.json"
TEXT = "persuasion"
LIMITS = {"select_share": 0.15, "speedup": 1.5, "density": 0.35}
"""The choice takes at most so much of dense attention's time; where at most so many pairs are kept, the whole is at
least so many times faster."""


class _Layers:
    """Recorder that keeps the attention inputs of some layers."""

    def __init__(self, layers: list[int]) -> None:
        self.layers = layers
        self.found: list[Inputs] = []

    def record(self, call: Any, variant: Any) -> None:
        """Keep one layer's."""
        if call.layer in self.layers:
            self.found.append(Inputs(call.query, call.key, call.value, call.hidden, call.layer))


def inputs(tokens: int, layers: list[int]) -> list[Inputs]:
    """Activations of a dense pass."""
    import torch

    from focus_core.models.loading import load_model
    from focus_core.retrofit import retrofit
    from focus_core.variants import make

    loaded = load_model(DEFAULT, device="cpu", dtype="float32")
    ids = loaded.tokenizer(assets.load_text(TEXT).text, add_special_tokens=False, verbose=False)["input_ids"][:tokens]
    kept = _Layers(layers)
    with torch.no_grad(), retrofit(loaded.model, make("dense"), recorder=kept):
        loaded.model(input_ids=torch.tensor(ids)[None], use_cache=False, logits_to_keep=1)
    return kept.found


def measure(variant: Any, one: Inputs, repeats: int) -> dict[str, Any]:
    """One layer: milliseconds of the three, and the ratios of neighbouring runs."""
    import torch.nn.functional as F

    call = call_of(variant, one, "prefill")

    def dense() -> Any:
        return F.scaled_dot_product_attention(call.query, call.key, call.value, is_causal=True, enable_gqa=True)

    runs = {"dense": dense, "select": lambda: variant.block_mask(call), "whole": lambda: variant.attend(call)}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for repeat in range(repeats):
        for name in rotated(list(runs), repeat):
            began = time.perf_counter()
            runs[name]()
            times[name].append((time.perf_counter() - began) * 1e3)
    pattern = variant.pattern(call)
    pairs = list(zip(times["dense"], times["select"], times["whole"], strict=True))
    return {
        "layer": one.layer,
        "density": pattern.density(),
        **{f"{name}_ms": spread(found) for name, found in times.items()},
        "select_share": spread([select / full for full, select, _ in pairs]),
        "speedup": spread([full / whole for full, _, whole in pairs]),
        "max_error": max_error(call, pattern, runs["whole"]()),
        "peak_mb": peak_bytes(runs["whole"], "cpu") / 2**20,
    }


def verdict(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Both limits: the medians that decide, and whether they are kept."""
    sparse = [row for row in rows if row["density"] <= LIMITS["density"]]
    worst = max(row["select_share"]["median"] for row in rows)
    least = min((row["speedup"]["median"] for row in sparse), default=None)
    return {
        "limits": LIMITS,
        "largest_select_share": worst,
        "smallest_speedup_where_sparse": least,
        "sparse_layers": len(sparse),
        "kept": worst <= LIMITS["select_share"] and (least is None or least >= LIMITS["speedup"]),
    }


def main() -> None:
    """Measure, print a table, and write the document."""
    import torch

    from focus_core.evaluation.environment import environment
    from focus_core.jobs.costs import load_average
    from focus_core.jobs.files import write_json
    from focus_core.variants import make

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--layers", type=int, nargs="*", default=[1, 5, 9, 13, 17, 21, 25, 29])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, help="of torch; beside other work one is steadier than all")
    parser.add_argument("--json", type=Path, default=OUT)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    load = load_average()
    variant = make("xattention", {"stride": 16, "threshold": 0.9})
    rows = []
    with torch.no_grad():
        for one in inputs(args.tokens, args.layers):
            row = measure(variant, one, args.repeats)
            rows.append(row)
            print(
                f"layer {row['layer']:2}: {row['density']:.1%} of pairs, choice {row['select_share']['median']:.1%} of "
                f"dense attention's {row['dense_ms']['median']:.0f} ms, whole {row['speedup']['median']:.2f} times "
                f"as fast ({row['speedup']['p10']:.2f} to {row['speedup']['p90']:.2f})",
                flush=True,
            )
    about = {
        "model": DEFAULT,
        "text": TEXT,
        "tokens": args.tokens,
        "variant": variant.name,
        "config": variant.to_dict(),
        "baseline": "sdpa, causal",
        "repeats": args.repeats,
        "load_before": load,
        "environment": environment(),
        "command": "python -m benchmarks.xattention" + (f" --threads {args.threads}" if args.threads else ""),
    }
    found = verdict(rows)
    print(json.dumps(found))
    write_json(args.json, {"about": about, "rows": rows, "verdict": found}, indent=1)


if __name__ == "__main__":
    main()
