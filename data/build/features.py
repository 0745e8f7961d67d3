"""What the page Features shows before anything has run: ``python -m data.build.features errors`` and ``... speed``.

``errors`` writes ``data/results/features-smollm2.json``: the error of the attention output by number of features, layer
by layer, on held-out text, with the bytes of the live cache in fp32 and bf16. ``speed`` writes
``data/results/feature-speed-cpu.json``: time beside dense attention, interleaved in one run.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import Any

from focus_core import assets
from focus_core.handlers import feature_speed, features
from focus_core.jobs.files import write_json
from focus_core.models.catalog import DEFAULT

SPEED = {"heads": 9, "kv_heads": 3, "head_dim": 64, "features": [8, 16, 32]}
LENGTHS, DECODE_LENGTHS = [512, 1024, 2048, 4096], [1024, 4096]


def errors(args: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Measure the shipped model on a text."""
    import torch

    from focus_core.adapter import load_adapter
    from focus_core.evaluation.feature_error import cached_bytes
    from focus_core.models.loading import load_model

    loaded = load_model(args.model, device=args.device)
    adapter = load_adapter(assets.adapters()[args.adapter]["path"], loaded.model) if args.adapter else None
    text = assets.load_text(args.text)
    found = features.measure(loaded, text.text, args.tokens, adapter, progress=_say)
    half = load_model(args.model, device=args.device, dtype="bfloat16")
    few = torch.arange(32)
    found["cache"] += cached_bytes(half, few, sorted({c["features"] for c in found["cache"] if c["features"]}))
    return f"features-{args.model}.json", {**found, "text": text.name, "adapter": args.adapter}


def speed(args: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Time this machine."""
    request = {**SPEED, "lengths": LENGTHS, "decode_lengths": DECODE_LENGTHS, "repeats": args.repeats}
    return "feature-speed-cpu.json", feature_speed.measure(request, progress=_say)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["errors", "speed"])
    parser.add_argument("--model", default=DEFAULT)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--text", default="persuasion opening")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--adapter", help="name of an adapter of kind sfa in data/adapters; default: none")
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    name, document = (errors if args.what == "errors" else speed)(args)
    document["command"] = shlex.join(["python", "-m", "data.build.features", *sys.argv[1:]])
    path = assets.DATA / "results" / name
    write_json(path, document)
    print(f"\n{path}")


def _say(fraction: float, message: str) -> None:
    print(f"\r{fraction:4.0%} {message:<90}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
