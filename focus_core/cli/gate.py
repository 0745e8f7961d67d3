"""``gate``: which cache each layer can keep under Slim attention, measured on a text and saved as an adapter."""

from __future__ import annotations

import argparse
from typing import Any

from focus_core.cli.options import add_model, load
from focus_core.cli.output import adapter_folder, bar, rows, stop_request
from focus_core.errors import InvalidInput

SUMMARY = "which cache each layer can keep under Slim attention: conditions and errors on a text, by type"


def configure(parser: argparse.ArgumentParser) -> None:
    """The model, the text, and what passes."""
    add_model(parser)
    parser.add_argument("--text", default="persuasion", help="a shipped text's name or a file (default persuasion)")
    parser.add_argument("--context", type=int, default=512, metavar="N", help="tokens that are read (default 512)")
    parser.add_argument(
        "--limit", type=float, default=0.05, metavar="X", help="largest relative error that passes (default 0.05)"
    )
    parser.add_argument("--serve", default="float32", metavar="TYPE", help="type that the adapter is for")
    parser.add_argument("--out", metavar="DIR", help="also save the adapter that serves every layer so")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure; the document has one record a layer."""
    import torch

    from focus_core.assets import load_text

    out = None if args.out is None else adapter_folder(args.out)
    if args.context < 1:
        raise InvalidInput(f"--context is {args.context}.", "It can be 1 or more.")
    progress = bar()
    loaded = load(args, progress)

    from focus_core.capture import check_length, first_tokens
    from focus_core.slim_gate import forms_adapter, gate

    _, tokens = first_tokens(loaded.tokenizer, load_text(args.text).text, args.context)
    check_length(len(tokens), loaded.facts.context)
    ids = torch.as_tensor([list(map(int, tokens.ids))])
    with stop_request() as cancel:
        records = gate(loaded.model, ids, limit=args.limit, progress=progress, cancel=cancel)
    about = {"model": loaded.name, "text": args.text, "tokens": ids.shape[1], "limit": args.limit}
    adapter = forms_adapter(records, args.serve, **about)
    if out is not None:
        adapter.save_pretrained(out, loaded.model)
    forms = adapter.config.forms
    return about | {"serve": args.serve, "forms": forms, "out": args.out, "layers": [r.document() for r in records]}


def table(document: dict[str, Any]) -> str:
    """A line a layer: conditions, errors by type, and what it keeps."""
    types = list(document["layers"][0]["errors"])
    headers = ["layer", "cond W_K", "max |W_KV|", *[f"{form} {t}" for t in types for form in "kx"], "keeps"]
    body = [
        [
            one["layer"],
            f"{one['condition_k']:.3g}",
            "none" if one["largest_kv"] is None else f"{one['largest_kv']:.3g}",
            *[_percent(one["errors"][t][form]) for t in types for form in "kx"],
            document["forms"][one["layer"]],
        ]
        for one in document["layers"]
    ]
    where = "" if document["out"] is None else f"\nadapter: {document['out']} (slim, for {document['serve']})"
    return rows(headers, body) + where


def _percent(error: float | None) -> str:
    return "none" if error is None else f"{100 * error:.3g} %"
