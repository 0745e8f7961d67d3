"""``eval``: perplexity of what is served, beside dense on the same tokens."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from focus_core.cli.options import add_model, add_variant, choose_variant, load, load_adapter_of
from focus_core.cli.output import bar, pairs, settings_text, write_json

SUMMARY = "measure the perplexity of a model with a variant, beside dense on the same tokens"


def configure(parser: argparse.ArgumentParser) -> None:
    """See design.md."""
    add_model(parser)
    add_variant(parser)
    parser.add_argument("--text", default="persuasion", help="a shipped text's name or a file (default persuasion)")
    parser.add_argument("--context", type=int, default=1024, metavar="N", help="tokens a window (default 1024)")
    parser.add_argument("--windows", type=int, metavar="W", help="number of windows (default: all whole ones)")
    parser.add_argument("--batch", type=int, default=1, help="windows that run together (default 1)")
    parser.add_argument("--no-probes", action="store_true", help="leave out the leak and the parity probe")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure; with ``--json FILE`` finished windows are kept in FILE.partial until the end, and taken up again."""
    from focus_core.assets import load_text

    variant, folder = choose_variant(args)
    text = load_text(args.text)
    progress = bar()
    loaded = load(args, progress)
    adapter = load_adapter_of(folder, loaded.model)

    from focus_core.evaluation.perplexity import evaluate

    kept = Path(f"{args.json}.partial") if args.json and args.json != "-" else None
    result = evaluate(
        loaded,
        variant,
        adapter,
        text.text,
        context=args.context,
        windows=args.windows,
        batch=args.batch,
        progress=progress,
        probes=not args.no_probes,
        partial=None if kept is None else lambda document: write_json(document, str(kept)),
        resume=None if kept is None else _read(kept),
    )
    if kept is not None:
        kept.unlink(missing_ok=True)
    return {**result, "text": text.name, "adapter_name": args.adapter}


def table(document: dict[str, Any]) -> str:
    """The figures that belong together, and what a reader must know about them."""
    d = document
    se = d["ppl_se"]
    by = "one window gives no standard error" if se is None else f"standard error {se:.2g} of the paired difference"
    windows = f"{d['windows']} window{'s' if d['windows'] > 1 else ''} of {d['window_tokens']} tokens"
    lines = [
        ("model", f"{d['model']} ({d['dtype']} on {d['environment']['device']})"),
        ("variant", f"{d['variant']} ({settings_text(d['config'])})"),
        ("text", f"{d['text']}: {windows}, {d['tokens']:,} scored, no BOS"),
        ("perplexity", f"{d['ppl']:.3f}, {'served' if d['served'] else 'NOT what decoding runs'}"),
        ("perplexity of dense", f"{d['dense_ppl']:.3f}"),
        ("difference in perplexity", f"{d['ppl'] - d['dense_ppl']:+.3f} ({by})"),
        ("pairs kept", f"{d['kept_pairs']:.1%} of the causal pairs, all layers"),
        ("adapter", f"{d['adapter_parameters']:,} parameters" if d["adapter"] else "none"),
    ]
    if d["leak"] is not None:
        flips = f", {d['flips']} memberships moved by rounding" if d["flips"] else ""
        exact = d["leak_probe"]["leak_fp64"]
        again = "" if exact is None else f", {exact:.1g} in fp64"
        lines.append(("leak", f"{d['leak']:.2g} (largest change of an earlier logit{again}){flips}"))
    if d["parity"] is not None:
        p = d["parity"]
        lines.append(("parity", f"chunked prefill {p['chunked']:.2g}, decode {p['decode']:.2g} (largest difference)"))
        moved = f"{p['bf16_flips']} of {p['bf16_memberships']:,} memberships differ from one prefill"
        lines.append(("in bf16", f"{moved} when it is done in chunks"))
    lines.append(("seconds", d["seconds"]))
    return "\n".join([pairs(lines), *d["notes"]])


def _read(path: Path) -> dict[str, Any] | None:
    """An earlier run's windows; None when there are none to read."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None
