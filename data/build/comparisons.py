r"""Measures the comparisons that ship in ``data/results``: ``python -m data.build.comparisons``.

One file for the frontier and speed by length (``compare-*.json``), and one for the gates (``gates-*.json``), each with
the environment it was measured in, the machine's load before, the order of the timed runs and the command that made
it. Long texts are timed and scored less often. What a run that was stopped had measured stays in ``*.json.partial``.

Attention alone, every variant on one layer's real activations (``bench-variants-cpu.json``)::

    python -m focus_core bench --lengths 4096 --phase both --repeats 7 --activations smollm2 --device cpu \
        --variants window,longformer,bigbird,random,focus,kmeans,routing,performer,sfa,xattention,focus_sfa,\
        xattention_sfa,temperature --json data/results/bench-variants-cpu.json
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from analysis.measured import merge
from focus_core import assets
from focus_core.benchmark.comparison import compare
from focus_core.jobs.files import write_json
from focus_core.models.catalog import DEFAULT
from focus_core.models.loading import load_model

TEMPERATURES = (1.0, 0.3, 0.1, 0.03)
TIMED_TOKENS, FEWEST_REPEATS = 6144, 5
"""Timed tokens of one line at one length, but at least so many repeats: a spread needs them."""
SCORED_TOKENS = 4096


def lines(adapter: str | None) -> list[dict[str, Any]]:
    """Focus as it is served and with one group a query, beside the controls."""
    found = []
    if adapter:
        serve = assets.adapters()[adapter]["config"].get("serve") or {}
        for topk in sorted({serve.get("query_topk", 1), 1}, reverse=True):
            config = {**serve, "query_topk": topk}
            label = f"Focus K={config.get('groups', 16)} q{topk}k{config.get('key_topk', 1)}"
            found.append({"variant": "focus", "config": config, "adapter": adapter, "label": label})
    return [
        *found,
        {"variant": "window", "label": "window 128 + 4"},
        {"variant": "random", "label": "random K=16 q1k1"},
    ]


def gates(adapter: str, paper: str | None) -> list[dict[str, Any]]:
    """Focus from the softest gate to the served one, the paper's first where an adapter of its form ships."""
    known = assets.adapters()

    def line(name: str, label: str, **config: Any) -> dict[str, Any]:
        serve = known[name]["config"].get("serve") or {}
        return {"variant": "focus", "adapter": name, "config": {**serve, **config}, "label": label}

    soft = [line(adapter, f"Focus soft {t:g}", gate="soft", temperature=t) for t in TEMPERATURES]
    first = [line(paper, "Focus paper", gate="paper")] if paper else []
    return [*first, *soft, line(adapter, "Focus", gate="hard")]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT)
    parser.add_argument("--adapter", help="name in data/adapters; default: the controls alone, and no gates")
    parser.add_argument("--paper", help="name of an adapter in the paper's form, for the gates")
    parser.add_argument("--text", default="persuasion")
    parser.add_argument("--lengths", default="512,1024,2048,4096")
    parser.add_argument("--repeats", type=int, default=9, help="most timed repeats; long texts take fewer")
    parser.add_argument("--windows", type=int, default=4, help="most scored windows; long texts take fewer")
    parser.add_argument("--gate-windows", type=int, default=2, help="windows of 1,024 tokens for the gates; 0: none")
    parser.add_argument("--only", choices=("compare", "gates"), help="one of the two files; default: both")
    parser.add_argument("--device")
    parser.add_argument("--name", default="cpu", help="end of the files' names")
    options = parser.parse_args()
    for name in filter(None, (options.adapter, options.paper)):
        if name not in assets.adapters():
            parser.error(f"no adapter {name!r} ships; there is {', '.join(assets.adapters()) or 'none'}")
    if options.only == "gates" and not options.adapter:
        parser.error("the gates need --adapter")
    loaded = load_model(options.model, device=options.device)
    sizes = [int(n) for n in options.lengths.split(",")]
    wanted = {"compare": (lines(options.adapter), sizes, *counts(sizes, options.repeats, options.windows))}
    if options.adapter and options.gate_windows:
        wanted["gates"] = (gates(options.adapter, options.paper), [1024], 1, options.gate_windows)
    command = shlex.join(["python", "-m", "data.build.comparisons", *sys.argv[1:]])
    for kind in filter(wanted.get, [options.only] if options.only else wanted):
        path = assets.DATA / "results" / f"{kind}-{options.model}-{options.name}.json"
        measure(path, loaded, *wanted[kind], text=options.text, command=command)
        print(f"\n{path}")


def counts(lengths: list[int], repeats: int, windows: int) -> tuple[dict[int, int], dict[int, int]]:
    """Repeats and windows of each length, so that all lengths together take minutes."""
    fewest = min(repeats, FEWEST_REPEATS)
    timed = {n: max(fewest, min(repeats, TIMED_TOKENS // n)) for n in lengths}
    return timed, {n: max(1, min(windows, SCORED_TOKENS // n)) for n in lengths}


def measure(
    path: Path,
    loaded: Any,
    entries: list[dict[str, Any]],
    lengths: list[int],
    repeats: int | dict[int, int],
    windows: int | dict[int, int],
    *,
    text: str,
    command: str,
) -> None:
    """Compare and write ``path``; until it is complete, what there is goes to ``path`` + ``.partial``."""
    unfinished = path.with_name(f"{path.name}.partial")
    parts: list[dict[str, Any]] = []

    def kept(result: dict[str, Any]) -> dict[str, Any]:
        return {**result, "about": {**result["about"], "text": text, "command": command}}

    def keep(part: dict[str, Any]) -> None:
        parts.append(part)
        write_json(unfinished, kept(merge(parts)))

    novel = assets.load_text(text).text
    result = compare(loaded, entries, novel, lengths, repeats=repeats, windows=windows, progress=_say, partial=keep)
    write_json(path, kept(result), indent=1)
    unfinished.unlink(missing_ok=True)


def _say(fraction: float, message: str) -> None:
    print(f"\r{fraction:4.0%} {message:<90}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
