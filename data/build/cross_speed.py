"""Times decoding of a Whisper with its own cross-attention's cache and with the encoder's output kept once.

python -m data.build.cross_speed                            data/results/cross-speed-cpu.json
python -m data.build.cross_speed --device cuda --dtype bfloat16 --batches 1,16,64 --name h200

Whisper tiny's shape (4 layers of width 384, 1,500 encoder tokens) with random weights, since speed does not depend on
them. A step gives each sequence of a batch one token through the whole decoder; steps of the caches take turns.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from typing import Any

import torch

from focus_core import assets, compat
from focus_core.benchmark.prefill import spread
from focus_core.evaluation.environment import environment
from focus_core.jobs.files import write_json
from focus_core.slim_cross import cross_cache_bytes, slim_cross

ENCODED, STEPS, WARM = 1500, 24, 4
WIDTH, HEADS, LAYERS = 384, 6, 4
CACHES = ("dense", "x")


def whisper(**changes: Any) -> Any:
    """A random Whisper of that shape, on the CPU in float32."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    torch.manual_seed(0)
    shape = {
        "d_model": WIDTH,
        "encoder_layers": 1,
        "decoder_layers": LAYERS,
        "encoder_attention_heads": HEADS,
        "decoder_attention_heads": HEADS,
        "encoder_ffn_dim": 4 * WIDTH,
        "decoder_ffn_dim": 4 * WIDTH,
        "max_source_positions": ENCODED,
        "init_std": 0.05,
    }
    return WhisperForConditionalGeneration(WhisperConfig(**(shape | changes))).eval()


def steps_of(model: Any, batch: int, steps: int = STEPS) -> list[dict[str, Any]]:
    """One row a cache: ``{cache, batch, bytes, ms, ratio, difference}``.

    ``ratio`` is dense attention's time over the cache's, by step; ``difference`` the largest of a logit from dense
    attention's over the largest logit, of all steps.
    """
    from transformers import DynamicCache, EncoderDecoderCache

    draw = torch.Generator().manual_seed(1)
    weight = model.get_output_embeddings().weight
    length = model.config.max_source_positions
    encoded = torch.randn(batch, length, model.config.d_model, generator=draw).to(weight)
    tokens = torch.randint(3, model.config.vocab_size, (batch, WARM + steps), generator=draw).to(weight.device)
    pasts = {cache: EncoderDecoderCache(DynamicCache(), DynamicCache()) for cache in CACHES}
    seconds: dict[str, list[float]] = {cache: [] for cache in CACHES}
    apart, keyword = 0.0, compat.cache_keyword(model)
    with torch.no_grad():
        for step in range(WARM + steps):
            logits = {}
            for cache in CACHES if step % 2 else CACHES[::-1]:
                with slim_cross(model, cache):
                    _wait(weight)
                    began = time.perf_counter()
                    out = model(
                        decoder_input_ids=tokens[:, step : step + 1],
                        encoder_outputs=(encoded,),
                        use_cache=True,
                        **{keyword: pasts[cache]},
                    )
                    _wait(weight)
                if step >= WARM:
                    seconds[cache].append(time.perf_counter() - began)
                logits[cache] = out.logits.float()
            most = float(logits["dense"].abs().max())
            apart = max(apart, float((logits["x"] - logits["dense"]).abs().max()) / most)
    return [
        {
            "cache": cache,
            "batch": batch,
            "bytes": cross_cache_bytes(pasts[cache]),
            "ms": spread([1e3 * one for one in seconds[cache]]),
            "ratio": spread([d / one for d, one in zip(seconds["dense"], seconds[cache], strict=True)]),
            "difference": apart if cache != "dense" else 0.0,
        }
        for cache in CACHES
    ]


def _wait(weight: torch.Tensor) -> None:
    if weight.is_cuda:
        torch.cuda.synchronize(weight.device)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batches", default="1,4,16")
    parser.add_argument("--name", default="cpu", help="end of the file's name")
    options = parser.parse_args()
    model = whisper().to(options.device, getattr(torch, options.dtype))
    rows = []
    for batch in (int(one) for one in options.batches.split(",")):
        rows += steps_of(model, batch)
        print(*({k: v for k, v in row.items() if k != "ms"} for row in rows[-2:]), sep="\n", flush=True)
    document = {
        "about": __doc__.split("\n\n")[2].replace("\n", " "),
        "command": shlex.join(["python", "-m", "data.build.cross_speed", *sys.argv[1:]]),
        "dtype": options.dtype,
        "environment": environment(options.device),
        "rows": rows,
    }
    write_json(assets.DATA / "results" / f"cross-speed-{options.name}.json", document, indent=1)


if __name__ == "__main__":
    main()
