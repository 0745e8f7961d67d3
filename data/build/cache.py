"""Measures what the page KV cache opens with: ``python -m data.build.cache MODEL``, ``orders`` or ``cross``.

``MODEL`` writes ``data/results/cache-MODEL-cpu.json``: the caches that a run takes by itself. ``orders`` times
Slim's two orders of operation beside dense attention; ``cross`` measures the caches of tiny random models of the real
encoder-decoder classes. Each file has its environment and the command that made it.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from typing import Any

from app.ui.cache.lines import label
from focus_core import assets
from focus_core.adapter import load_adapter
from focus_core.benchmark.cache_lines import cache_lines, counted_bytes, usual
from focus_core.benchmark.caches import measure_caches
from focus_core.jobs.files import write_json
from focus_core.models.catalog import DEFAULT
from focus_core.models.loading import load_model
from focus_core.variants import make


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default=DEFAULT)
    parser.add_argument("--text", default="persuasion opening")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--decoded", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--most", type=int, default=8, help="most caches beside dense")
    parser.add_argument("--name", default="cpu", help="end of the file's name")
    options = parser.parse_args()
    command = shlex.join(["python", "-m", "data.build.cache", *sys.argv[1:]])
    result = of_model(options)
    result["about"] |= {"command": command, "text": options.text}
    path = assets.DATA / "results" / f"cache-{options.what}-{options.name}.json"
    write_json(path, _short(result), indent=None)
    print(f"\n{path}: {os.path.getsize(path):,} bytes")


def of_model(options: argparse.Namespace) -> dict[str, Any]:
    """The caches of one model on the first tokens of a shipped text."""
    loaded = load_model(options.what)
    lines = cache_lines(loaded.name, loaded.facts)
    entries = usual(lines, counted_bytes(make("dense"), loaded.facts, 4), options.most)
    return measure_caches(
        loaded,
        [{**entry, "label": label(entry)} for entry in entries],
        assets.load_text(options.text).text,
        prompt=options.prompt,
        decoded=options.decoded,
        repeats=options.repeats,
        load_adapter=lambda name: load_adapter(assets.adapters()[name]["path"], loaded.model),
        progress=_say,
    )


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
