"""Codes inside kept pairs, each alone and both together: ``python -m data.build.fewer_pairs``.

Runs ``python -m focus_core eval`` once a line, one after the other, and writes
``data/results/fewer-pairs-smollm2.json``: perplexity beside dense on the same windows, pairs kept, cache bytes, and the
command of every line. A run that was stopped goes on at the line it had not measured.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from focus_core import assets
from focus_core.jobs.files import read_json, write_json
from focus_core.models.catalog import DEFAULT
from focus_core.models.shapes import shape_of
from focus_core.variants import Shape, make

PATH = assets.DATA / "results" / "fewer-pairs-smollm2.json"
ADAPTER = "smollm2-directed-k16"
BLOCKS = {"block": 64, "stride": 16, "threshold": 0.9}
FEATURES = (32, 16)
KEPT = (
    *("variant", "config", "served", "ppl", "ppl_se", "dense_ppl", "nll_diff", "nll_se", "tokens", "kept_pairs"),
    *("context", "windows", "dtype", "device", "seconds", "environment", "text"),
)


def lines() -> list[dict[str, Any]]:
    """Pairs alone, then for each number of features the codes alone and inside each choice of pairs."""
    pairs: list[dict[str, Any]] = [{"pairs": "focus", "variant": "focus", "adapter": ADAPTER, "set": {}}]
    pairs.append({"pairs": "xattention", "variant": "xattention", "set": BLOCKS})
    found = [dict(one, features=None) for one in pairs]
    for features in FEATURES:
        codes = {"features": features}
        found.append({"pairs": None, "features": features, "variant": "sfa", "set": codes})
        found += [
            {**one, "features": features, "variant": f"{one['variant']}_sfa", "set": {**one["set"], **codes}}
            for one in pairs
        ]
    return found


def command(line: dict[str, Any], text: str, context: int, windows: int) -> list[str]:
    """The command that measures a line, without its interpreter and its file."""
    found = ["-m", "focus_core", "eval", "--model", DEFAULT, "--variant", line["variant"], "--text", text]
    for name, value in line["set"].items():
        found += ["--set", f"{name}={value}"]
    if line.get("adapter"):
        found += ["--adapter", line["adapter"]]
    return [*found, "--context", str(context), "--windows", str(windows), "--no-probes"]


def measure(line: dict[str, Any], given: list[str]) -> dict[str, Any]:
    """Run one line and keep what the page shows."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "eval.json"
        subprocess.run([sys.executable, *given, "--json", str(path)], check=True, cwd=assets.DATA.parent)
        found = json.loads(path.read_text(encoding="utf-8"))
    kept = {name: found[name] for name in KEPT}
    shape = shape_of(DEFAULT)
    assert shape is not None
    sizes = Shape(1, shape.heads, shape.kv_heads, shape.head_dim, found["context"], itemsize=2)
    return {
        **{name: line[name] for name in ("pairs", "features")},
        **kept,
        "adapter": line.get("adapter"),
        "cache_bytes": make(line["variant"], found["config"]).cost(sizes).kv_bytes_per_token,
        "dense_cache_bytes": make("dense").cost(sizes).kv_bytes_per_token,
        "command": shlex.join(["python", *given]),
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", default="persuasion")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--windows", type=int, default=4)
    args = parser.parse_args()
    document = read_json(PATH) or {"format": 1, "rows": []}
    done = {row["command"] for row in document["rows"]}
    for line in lines():
        given = command(line, args.text, args.context, args.windows)
        if shlex.join(["python", *given]) in done:
            continue
        document["rows"].append(measure(line, given))
        write_json(PATH, document, indent=1)
        row = document["rows"][-1]
        print(f"{row['variant']} {row['features']}: {row['ppl']:.3f} against {row['dense_ppl']:.3f}", flush=True)


if __name__ == "__main__":
    main()
