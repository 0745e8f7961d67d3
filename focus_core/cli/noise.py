"""``noise``: whether dropping pairs makes a model better, and whether it matters which."""

from __future__ import annotations

import argparse
from typing import Any

from focus_core.cli.options import add_model, choose_variant, load, load_adapter_of
from focus_core.cli.output import bar, rows
from focus_core.errors import InvalidInput

SUMMARY = "drop as many far pairs as Focus does, by Focus, at random or by attention mass: perplexity and entropy"


def configure(parser: argparse.ArgumentParser) -> None:
    """Focus's adapter and settings, and the text."""
    add_model(parser)
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="a setting of Focus; may be repeated"
    )
    parser.add_argument("--adapter", required=True, metavar="DIR", help="a router: a folder, or a shipped one's name")
    parser.add_argument("--text", default="persuasion", help="a shipped text's name or a file (default persuasion)")
    parser.add_argument("--context", type=int, default=1024, metavar="N", help="tokens a window (default 1024)")
    parser.add_argument("--windows", type=int, metavar="W", help="number of windows (default: all whole ones)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure every way on the same windows."""
    from focus_core.assets import load_text
    from focus_core.evaluation.environment import environment
    from focus_core.evaluation.noise import noise

    for name, least in (("context", 2), ("windows", 1)):
        value = getattr(args, name)
        if value is not None and value < least:
            raise InvalidInput(f"--{name} is {value}.", f"It can be {least} or more.")
    args.variant = "focus"
    variant, folder = choose_variant(args)
    text = load_text(args.text)
    progress = bar()
    loaded = load(args, progress)
    adapter = load_adapter_of(folder, loaded.model)
    settings = {name: value for name, value in variant.to_dict().items() if name != "backend"}
    found = noise(loaded, adapter, settings, text.text, context=args.context, windows=args.windows, progress=progress)
    told = {"model": loaded.name, "adapter": args.adapter, "config": settings, "text": text.name}
    dtype = str(loaded.model.dtype).removeprefix("torch.")
    return told | found | {"dtype": dtype, "environment": environment(loaded.model.device)}


def table(document: dict[str, Any]) -> str:
    """One row for every way."""
    body = [[way, w["ppl"], w["nll_se"], w["entropy"]] for way, w in document["ways"].items()]
    end = (
        f"{document['kept_pairs']:.1%} of the pairs kept, {document['windows']} windows of {document['context']} tokens"
    )
    return rows(["dropped", "perplexity", "se of nll", "entropy"], body) + "\n" + end
