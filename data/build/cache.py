"""Measures what the page KV cache opens with: ``python -m data.build.cache MODEL``, ``orders`` or ``cross``.

``MODEL`` writes ``data/results/cache-MODEL-cpu.json``: the caches that a run takes by itself, and latents of some ranks
that are fitted for it. ``orders`` times Slim's two orders of operation beside dense attention. ``cross`` measures the
cross-attention's caches of tiny random models of the real encoder-decoder classes. Each file has its environment and
the command that made it. Perplexity by rank of a latent is recorded by ``data.build.latent``.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from typing import Any

from analysis.cache_orders import DENSE, FIRST, SECOND
from app.ui.cache.lines import label
from focus_core import assets
from focus_core.adapter import load_adapter
from focus_core.benchmark.cache_lines import cache_lines, counted_bytes, usual
from focus_core.benchmark.caches import measure_caches
from focus_core.benchmark.prefill import rotated, spread
from focus_core.evaluation.environment import environment
from focus_core.jobs.costs import load_average
from focus_core.jobs.files import write_json
from focus_core.models.catalog import DEFAULT
from focus_core.models.loading import load_model
from focus_core.routing.factorise import activations, factors_of
from focus_core.variants import make

HEADS, HEAD_DIM = 16, 64
"""Of the layer whose two orders are timed."""
FIT_WINDOWS = 16
"""Windows of 256 tokens that latents are fitted on."""
CACHED = (32, 128, 512, 2048, 4096)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default=DEFAULT, help="a model, orders or cross")
    parser.add_argument("--text", default="persuasion opening")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--decoded", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--most", type=int, default=8, help="most caches beside dense")
    parser.add_argument("--ranks", default="192,96,48", help="of latents that are fitted for the model")
    parser.add_argument("--name", default="cpu", help="end of the file's name")
    options = parser.parse_args()
    command = shlex.join(["python", "-m", "data.build.cache", *sys.argv[1:]])
    if options.what == "orders":
        result = of_orders(options.repeats)
    elif options.what == "cross":
        result = of_cross()
    else:
        result = of_model(options)
        result["about"]["text"] = options.text
    result["about"]["command"] = command
    path = assets.DATA / "results" / f"cache-{options.what}-{options.name}.json"
    write_json(path, _short(result), indent=None)
    print(f"\n{path}: {os.path.getsize(path):,} bytes")


def of_model(options: argparse.Namespace) -> dict[str, Any]:
    """The caches of one model on the first tokens of a shipped text."""
    loaded = load_model(options.what)
    lines = cache_lines(loaded.name, loaded.facts)
    entries = usual(lines, counted_bytes(make("dense"), loaded.facts, 4), options.most)
    entries = [{**entry, "label": label(entry)} for entry in entries]
    seen = activations(loaded.model, tokens(loaded, assets.training_text(), FIT_WINDOWS))
    fitted = {f"rank {rank}": factors_of(loaded.model, seen, rank) for rank in ranks(options)}
    entries += [{"variant": "mla", "adapter": name, "label": f"MLA, {name}"} for name in fitted]

    def adapter(name: str) -> Any:
        return fitted[name] if name in fitted else load_adapter(assets.adapters()[name]["path"], loaded.model)

    return measure_caches(
        loaded,
        entries,
        assets.load_text(options.text).text,
        prompt=options.prompt,
        decoded=options.decoded,
        repeats=options.repeats,
        load_adapter=adapter,
        progress=_say,
    )


def of_cross() -> dict[str, Any]:
    """Caches of the cross-attention in tiny random models of the real classes, generating greedily."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration, WhisperConfig, WhisperForConditionalGeneration

    from focus_core.slim_cross import measure_cross

    torch.manual_seed(0)
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "decoder_start_token_id": 1}
    whisper = WhisperConfig(
        vocab_size=200, d_model=64, encoder_layers=4, decoder_layers=4, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, num_mel_bins=16,
        max_source_positions=150, max_target_positions=64, init_std=0.1, suppress_tokens=None,
        begin_suppress_tokens=None, **ends,
    )  # fmt: skip
    sound = {"input_features": torch.randn(1, 16, 300)}
    words = torch.randint(3, 200, (1, 150))
    words = {"input_ids": words, "attention_mask": torch.ones_like(words)}
    rows = []
    for title, make_model, config, inputs in (
        ("Whisper, 4 layers of width 64", WhisperForConditionalGeneration, whisper, sound),
        ("T5, 4 layers of width 64", T5ForConditionalGeneration, _t5(T5Config, 16), words),
        ("T5, projections 4 times as wide", T5ForConditionalGeneration, _t5(T5Config, 64), words),
    ):
        model = make_model(config).eval()
        rows += [{"model": title, **row} for row in measure_cross(model, inputs)]
    return {"about": {"environment": environment()}, "rows": rows}


def _t5(config: Any, head_dim: int) -> Any:
    """A T5 of width 64 with four heads; ``head_dim`` 16 gives square projections."""
    return config(
        vocab_size=200, d_model=64, d_kv=head_dim, d_ff=128, num_layers=4, num_decoder_layers=4, num_heads=4,
        bos_token_id=1, eos_token_id=2, pad_token_id=0, decoder_start_token_id=0,
    )  # fmt: skip


def ranks(options: argparse.Namespace) -> list[int]:
    """The ranks that were asked for."""
    return [int(rank) for rank in options.ranks.split(",")]


def tokens(loaded: Any, text: str, windows: int, length: int = 256) -> Any:
    """The first windows of a text, (W, N)."""
    import torch

    enough = text[: 8 * windows * length]
    found = loaded.tokenizer(enough, add_special_tokens=False, verbose=False)["input_ids"][: windows * length]
    return torch.tensor(found).view(windows, length)


def of_orders(repeats: int) -> dict[str, Any]:
    """One layer's decoded token with dense attention and with both orders of Slim, projections included."""
    import torch

    from focus_core.kernels.slim import slim_attention

    load, generator = load_average(), torch.Generator().manual_seed(0)
    width = HEADS * HEAD_DIM

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) / shape[-2] ** 0.5

    query_w, key_w, value_w, out_w = (draw(width, width) for _ in range(4))
    between = torch.linalg.solve(key_w.double(), value_w.double()).float()
    rows = []
    for cached in CACHED:
        hidden, keys = draw(1, 1, width), draw(1, cached, width)
        values = keys @ between

        def dense(hidden: Any = hidden, keys: Any = keys, values: Any = values) -> Any:
            q, k, v = (hidden @ w for w in (query_w, key_w, value_w))
            # The last row stands for the new token, so that both sides read as many rows and copy none.
            keys[:, -1:], values[:, -1:] = k, v
            heads = (x.view(1, -1, HEADS, HEAD_DIM).transpose(1, 2) for x in (q, keys, values))
            out = torch.nn.functional.scaled_dot_product_attention(*heads)
            return out.transpose(1, 2).reshape(1, 1, width) @ out_w

        def slim(order: str, hidden: Any = hidden, keys: Any = keys) -> Any:
            q, k = hidden @ query_w, hidden @ key_w
            keys[:, -1:] = k
            q = q.view(1, 1, HEADS, HEAD_DIM).transpose(1, 2)
            out = slim_attention(q, keys, value_weight=between, order=order)
            return out.transpose(1, 2).reshape(1, 1, width) @ out_w

        runs = {DENSE: dense, FIRST: lambda: slim("values"), SECOND: lambda: slim("weights")}
        wanted = dense()
        errors = {name: float((run() - wanted).norm() / wanted.norm()) for name, run in runs.items()}
        took: dict[str, list[float]] = {name: [] for name in runs}
        for repeat in range(repeats):
            for name in rotated(list(runs), repeat):
                start = time.perf_counter()
                runs[name]()
                took[name].append((time.perf_counter() - start) * 1e3)
        for name in (FIRST, SECOND):
            ratio = spread([a / b for a, b in zip(took[name], took[DENSE], strict=True)])
            rows.append(
                {"order": name, "cached": cached, "ms": spread(took[name]), "dense_ms": spread(took[DENSE])}
                | {"ratio": ratio, "error": errors[name]}
            )
    about = {"width": width, "heads": HEADS, "dtype": "float32", "load_before": load, "environment": environment()}
    return {"about": about, "rows": rows}


def _short(value: Any) -> Any:
    """Four significant figures of every number that is not whole."""
    if isinstance(value, float):
        return float(f"{value:.4g}") if not value.is_integer() else value
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items()}
    return [_short(v) for v in value] if isinstance(value, list) else value


def _say(fraction: float, message: str) -> None:
    print(f"\r{fraction:4.0%} {message:<90}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
