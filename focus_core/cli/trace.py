"""``trace``: what one run did with one text, in a file that opens without a model."""

from __future__ import annotations

import argparse
import json
from typing import Any

from focus_core.cli.options import add_model, add_variant, choose_variant, load, load_adapter_of
from focus_core.cli.output import bar, check_writable, pairs, settings_text
from focus_core.edits import Edit, parse
from focus_core.errors import InvalidInput

SUMMARY = "record one text through a model: groups, likelihoods, pairs kept, queries and keys"


def configure(parser: argparse.ArgumentParser) -> None:
    """See design.md."""
    add_model(parser)
    add_variant(parser)
    parser.add_argument("--text", required=True, help="a shipped text's name or a file")
    parser.add_argument("--limit", type=int, metavar="N", help="take only the first N tokens")
    parser.add_argument(
        "--layers", default="all", help="layers whose queries and keys are kept: all, or numbers like 0,5 (default all)"
    )
    parser.add_argument(
        "--edits",
        metavar="JSON",
        help='groups changed by hand: [{"layer": 3, "router": 0, "token": 17, "to": 5}, '
        '{"layer": 3, "router": 0, "merge": [2, 5]}]',
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="the Trace file to write (.npz)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Write the Trace; the document says what is in it."""
    from focus_core.assets import load_text, text_names

    check_writable(args.out)
    layers = _layers(args.layers)
    if args.limit is not None and args.limit < 2:
        raise InvalidInput(f"--limit is {args.limit}.", "It can be 2 or more.")
    edits = _edits(args.edits)
    variant, folder = choose_variant(args)
    text = load_text(args.text)
    progress = bar()
    loaded = load(args, progress)
    adapter = load_adapter_of(folder, loaded.model)

    from focus_core.capture import capture_trace

    trace = capture_trace(
        loaded,
        variant,
        adapter,
        text.text,
        text_name=text.name if text.name in text_names() else None,
        adapter_name=args.adapter,
        layers=layers,
        limit=args.limit,
        edits=edits,
        progress=progress,
    )
    path = trace.save(args.out, compress=True)
    arrays = {name: list(value.shape) for name, value in trace.arrays.items()}
    size = path.stat().st_size
    return {"out": str(path), "bytes": size, "tokens": len(trace), "provenance": trace.provenance, "arrays": arrays}


def table(document: dict[str, Any]) -> str:
    """What was written where."""
    p = document["provenance"]
    layers = sorted(int(name.split(".")[1]) for name in document["arrays"] if name.startswith("queries."))
    return pairs(
        [
            ("trace", f"{document['out']} ({document['bytes'] / 1e6:.1f} MB)"),
            ("model", p["model"]),
            ("variant", f"{p['variant']} ({settings_text(p['config'])})"),
            ("tokens", document["tokens"]),
            ("queries and keys", f"layers {', '.join(map(str, layers))}" if layers else "none"),
            *([("edits", len(p["edits"]))] if p.get("edits") else []),
        ]
    )


def _layers(given: str) -> str | list[int]:
    if given == "all":
        return given
    try:
        return [int(part) for part in given.split(",")]
    except ValueError:
        raise InvalidInput(f"--layers is {given!r}.", "It can be all, or layer numbers like 0,5.") from None


def _edits(given: str | None) -> tuple[Edit, ...]:
    if given is None:
        return ()
    try:
        return parse(json.loads(given))
    except json.JSONDecodeError as error:
        raise InvalidInput(f"--edits is not JSON: {error}.", "Write a list, as --help shows it.") from None
