"""Records how much of dense attention XAttention's scorers keep on a long text: ``python -m data.build.xattention``.

Writes ``data/results/xattention-recall.json``, which the XAttention page shows beside the short text at hand: the
published gains are of long ones. Some minutes on one core, most of it for the true scores.
"""

from __future__ import annotations

import argparse
import datetime
import shlex
import sys
from typing import Any

import numpy as np

from analysis.xattention.recall import compare
from analysis.xattention.scores import MODES, block_scores
from focus_core import assets
from focus_core.evaluation.environment import environment
from focus_core.jobs.files import write_json
from focus_core.models.catalog import DEFAULT

OUT = assets.DATA / "results" / "xattention-recall.json"
TEXT = "persuasion"
STRIDES, FINE, COARSE = (4, 8, 16), 64, 128


class _Vectors:
    """Recorder that keeps queries and keys of some layers."""

    def __init__(self, layers: list[int]) -> None:
        self.layers = layers
        self.found: dict[int, tuple[np.ndarray, np.ndarray, float]] = {}

    def record(self, call: Any, variant: Any) -> None:
        """Keep one layer's."""
        if call.layer in self.layers:
            self.found[call.layer] = (call.query[0].float().numpy(), call.key[0].float().numpy(), call.scale)


def vectors(tokens: int, layers: list[int]) -> dict[int, tuple[np.ndarray, np.ndarray, float]]:
    """Queries, keys and scale of some layers, by layer, in a dense pass over the first tokens of the text."""
    import torch

    from focus_core.models.loading import load_model
    from focus_core.retrofit import retrofit
    from focus_core.variants import make

    loaded = load_model(DEFAULT, device="cpu", dtype="float32")
    ids = loaded.tokenizer(assets.load_text(TEXT).text, add_special_tokens=False, verbose=False)["input_ids"]
    kept = _Vectors(layers)
    with torch.no_grad(), retrofit(loaded.model, make("dense"), recorder=kept):
        loaded.model(input_ids=torch.tensor(ids[:tokens])[None], use_cache=False, logits_to_keep=1)
    return kept.found


def pooled(scores: np.ndarray) -> np.ndarray:
    """Scores of blocks twice as large: both a block's tiles and its true mass add up."""
    heads, n, _ = scores.shape
    return scores.reshape(heads, n // 2, 2, n // 2, 2).sum((2, 4))


def main() -> None:
    """Record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--layers", type=int, nargs="*", default=[1, 5, 9, 13, 17, 21, 25, 29])
    args = parser.parse_args()
    found: dict[tuple[str, int], list[np.ndarray]] = {}
    for layer, (q, k, scale) in vectors(args.tokens, args.layers).items():
        for mode in MODES:
            for stride in STRIDES if mode != "oracle" else (0,):
                one = block_scores(q, k, block=FINE, stride=stride, mode=mode, scale=scale)
                found.setdefault((mode, stride), []).append(one)
        print(f"layer {layer}", file=sys.stderr, flush=True)
    every = {key: np.concatenate(parts) for key, parts in found.items()}
    curves = {}
    for block in (FINE, COARSE):
        for stride in STRIDES:
            scores = {mode: every[mode, 0 if mode == "oracle" else stride] for mode in MODES}
            if block == COARSE:
                scores = {mode: pooled(table) for mode, table in scores.items()}
            for voters in ("before", "own"):
                curves[f"{block}/{stride}/{voters}"] = compare(scores, args.tokens, block, voters).to_json()
    about = {
        "model": DEFAULT,
        "text": TEXT,
        "tokens": args.tokens,
        "layers": args.layers,
        "heads": len(every["oracle", 0]),
        "dtype": "float32",
        "environment": environment("cpu"),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", "data.build.xattention", *sys.argv[1:]]),
    }
    write_json(OUT, {"about": about, "curves": curves})


if __name__ == "__main__":
    main()
