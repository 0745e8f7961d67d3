"""Peak memory of every variant's attention on the CPU: ``python -m benchmarks.memory --json FILE``.

What an attention of N tokens holds at once must grow with N and not with N x N: a variant is measured at two lengths,
and its peak at the longer one stands beside the smallest array of all pairs, one byte a pair of one head.
"""

from __future__ import annotations

import argparse
import shlex
import sys
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
        inputs = random_inputs(1, HEADS, KV_HEADS, HEAD_DIM, length, torch.float32, "cpu")
        with torch.no_grad():
            call = call_of(variant, inputs, phase)
            found.append(peak_bytes(lambda call=call: variant.attend(call), "cpu"))
    return found


def pairs_bytes(length: int) -> int:
    """Bytes of the smallest array of all pairs: one byte a pair, of one head."""
    return length * length


def measure(lengths: tuple[int, ...] = LENGTHS) -> dict[str, Any]:
    """Every variant's peaks, or why it has none, with the environment."""
    from focus_core.evaluation.environment import environment

    rows = []
    for variant in forms():
        config = {k: v for k, v in variant.to_dict().items() if v != type(variant)().to_dict()[k]}
        row: dict[str, Any] = {"variant": variant.name, "changed": config}
        try:
            row["peak_bytes"] = peaks(variant, lengths)
            row["holds_all_pairs"] = row["peak_bytes"][-1] >= pairs_bytes(lengths[-1])
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
        "pairs_bytes": pairs_bytes(lengths[-1]),
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
