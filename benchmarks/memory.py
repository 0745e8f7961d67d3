"""Peak memory of every variant's attention on the CPU: ``python -m benchmarks.memory --json FILE``.

What an attention of N tokens holds at once must grow with N and not with N x N: a variant is measured at two lengths.
Stripes of a fixed number of scores are the same at both; an array of all pairs, be it one byte a pair of one head,
would make the peak grow by its own growth.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Any

from focus_core.errors import FocusError
from focus_core.variants import VARIANTS, Variant, make

HEADS, KV_HEADS, HEAD_DIM = 2, 1, 32
LENGTHS = (8192, 16384)
FORMS: dict[str, list[dict[str, Any]]] = {
    "sfa": [{}, {"no_overlap": "exclude"}],
    "xattention": [{}, {"mode": "oracle"}],
    "routing": [{}, {"local_heads": 0.5}],
}
"""Settings of variants whose forms compute otherwise."""
OWN_MODELS = {"mla": "deepseek_v2"}
"""Variants that attend with a model's own projections, and the tiny model whose first layer is measured."""


def forms() -> list[Variant]:
    """Every registered variant, served."""
    return [make(name, form) for name in sorted(VARIANTS) for form in FORMS.get(name, [{}])]


def peaks(variant: Variant, lengths: tuple[int, ...], phase: str = "prefill") -> list[int]:
    """Most bytes that one attention call holds at each length, beyond its inputs.

    Raises:
        FocusError: for a variant that cannot run without what it learned.
    """
    import torch

    from focus_core.benchmark.inputs import call_of, random_inputs
    from focus_core.benchmark.prefill import peak_bytes

    found = []
    for length in lengths:
        with torch.no_grad():
            if variant.name in OWN_MODELS:
                call = model_call(variant, length)
            else:
                inputs = random_inputs(1, HEADS, KV_HEADS, HEAD_DIM, length, torch.float32, "cpu")
                call = call_of(variant, inputs, phase)
            found.append(peak_bytes(partial(variant.attend, call), "cpu"))
    return found


def model_call(variant: Variant, length: int) -> Any:
    """The attention call of a tiny model's layer over random tokens."""
    import torch

    from focus_core.retrofit import retrofit
    from tests.retrofit.helpers import Watcher
    from tests.tiny import VOCAB, tiny_model

    sizes = {"layers": 1, "heads": HEADS, "head_dim": HEAD_DIM, "max_position_embeddings": length}
    model, watcher = tiny_model(OWN_MODELS[variant.name], **sizes), Watcher()
    ids = torch.randint(1, VOCAB, (1, length), generator=torch.Generator().manual_seed(0))
    with retrofit(model, variant, recorder=watcher):
        model(input_ids=ids, use_cache=False, logits_to_keep=1)
    return watcher.calls[0]


def pairs_growth(lengths: tuple[int, ...]) -> int:
    """By how many bytes the smallest array of all pairs grows over the lengths: one byte a pair, of one head."""
    return lengths[-1] ** 2 - lengths[0] ** 2


def measure(lengths: tuple[int, ...] = LENGTHS) -> dict[str, Any]:
    """Every variant's peaks, or why it has none, with the environment."""
    from focus_core.evaluation.environment import environment

    rows = []
    for variant in forms():
        config = {k: v for k, v in variant.to_dict().items() if v != type(variant)().to_dict()[k]}
        row: dict[str, Any] = {"variant": variant.name, "changed": config}
        try:
            row["peak_bytes"] = peaks(variant, lengths)
            row["holds_all_pairs"] = row["peak_bytes"][-1] - row["peak_bytes"][0] >= pairs_growth(lengths)
            said = "  ".join(f"{peak / 2**20:8.1f} MiB" for peak in row["peak_bytes"])
        except FocusError as error:
            row["reason"] = said = error.message
        rows.append(row)
        print(f"{variant.name:<16} {config or ''!s:<28} {said}", flush=True)
    return {
        "format": 1,
        "lengths": list(lengths),
        "heads": HEADS,
        "kv_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "pairs_growth_bytes": pairs_growth(lengths),
        "rows": rows,
        "environment": environment("cpu"),
    }


def main() -> None:
    """Measure, print, and write."""
    from focus_core.jobs.files import write_json

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)), help="ascending, by commas")
    parser.add_argument("--json", type=Path, help="write the result there")
    args = parser.parse_args()
    document = measure(tuple(int(n) for n in args.lengths.split(",")))
    document["command"] = shlex.join(["python", "-m", "benchmarks.memory", *sys.argv[1:]])
    if args.json:
        write_json(args.json, document, indent=1)


if __name__ == "__main__":
    main()
