"""Measures the comparisons that ship in ``data/results``: ``python -m data.build.comparisons``.

One file for the frontier and speed by length (``compare-*.json``), and one for the gates (``gates-*.json``), each with
the environment it was measured in and the command that made it.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from focus_core import assets
from focus_core.benchmark.comparison import compare
from focus_core.models.catalog import DEFAULT
from focus_core.models.loading import load_model

TEMPERATURES = (1.0, 0.3, 0.1, 0.03)


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
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--gate-windows", type=int, default=16, help="windows of 1,024 tokens for the gates; 0: none")
    parser.add_argument("--device")
    parser.add_argument("--name", default="cpu", help="end of the files' names")
    options = parser.parse_args()
    for name in filter(None, (options.adapter, options.paper)):
        if name not in assets.adapters():
            parser.error(f"no adapter {name!r} ships; there is {', '.join(assets.adapters()) or 'none'}")
    loaded = load_model(options.model, device=options.device)
    text = assets.load_text(options.text).text
    lengths = [int(n) for n in options.lengths.split(",")]
    wanted = [("compare", lines(options.adapter), lengths, options.repeats, options.windows)]
    if options.adapter and options.gate_windows:
        wanted.append(("gates", gates(options.adapter, options.paper), [1024], 1, options.gate_windows))
    for kind, entries, sizes, repeats, windows in wanted:
        result = compare(loaded, entries, text, sizes, repeats=repeats, windows=windows, progress=_say)
        command = shlex.join(["python", "-m", "data.build.comparisons", *sys.argv[1:]])
        result["about"] |= {"text": options.text, "command": command}
        path = assets.DATA / "results" / f"{kind}-{options.model}-{options.name}.json"
        _write(path, result)
        print(f"\n{path}")


def _write(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    result["about"].pop("order")
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _say(fraction: float, message: str) -> None:
    print(f"\r{fraction:4.0%} {message:<90}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
