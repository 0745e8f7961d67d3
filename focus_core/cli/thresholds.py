"""``thresholds``: XAttention's threshold of every head, fitted on a text and saved as an adapter."""

from __future__ import annotations

import argparse
from typing import Any

from focus_core.cli.options import add_model, load, settings
from focus_core.cli.output import adapter_folder, bar, pairs, stop_request
from focus_core.errors import InvalidInput

SUMMARY = "fit XAttention's threshold of every head: by dense attention kept, or by the paper's dynamic programme"
NOVELS = "novels"


def configure(parser: argparse.ArgumentParser) -> None:
    """The model, the text, and which of the two ways."""
    add_model(parser)
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="a setting of xattention; may be repeated"
    )
    parser.add_argument(
        "--text", default=NOVELS, help=f"a shipped text's name or a file; {NOVELS} (default): the five training novels"
    )
    parser.add_argument("--context", type=int, default=4096, metavar="N", help="tokens a window (default 4096)")
    parser.add_argument("--windows", type=int, default=4, metavar="W", help="windows, spread over the text (default 4)")
    parser.add_argument(
        "--recall", type=float, default=0.95, metavar="X", help="share of dense attention a head keeps (default 0.95)"
    )
    parser.add_argument(
        "--programme",
        type=int,
        metavar="M",
        help="lower M thresholds from 0.9 to 0.81 by the dynamic programme instead: about M runs of the model a layer "
        "(or a head)",
    )
    parser.add_argument("--by", choices=("layer", "head"), default="layer", help="what M counts (default layer)")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of the adapter")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Fit; the document is the adapter's record with its thresholds and where it lies."""
    from focus_core.assets import load_text, training_text
    from focus_core.evaluation.environment import environment
    from focus_core.variants import make

    out = adapter_folder(args.out)
    if args.windows < 1 or args.context < 2:
        raise InvalidInput(f"{args.windows} windows of {args.context} tokens cannot be read.", "Give at least 1 of 2.")
    variant = make("xattention", settings(args.set))
    text = training_text() if args.text == NOVELS else load_text(args.text).text
    progress = bar()
    loaded = load(args, progress)

    from focus_core.routing.threshold_programme import fit_programme
    from focus_core.routing.thresholds import fit_thresholds
    from focus_core.routing.windows import spread_windows

    ids = loaded.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    windows = spread_windows(ids, args.context, args.windows)
    with stop_request() as cancel:
        watched = {"progress": progress, "cancel": cancel}
        if args.programme is None:
            adapter = fit_thresholds(loaded.model, windows, variant, recall=args.recall, **watched)
        else:
            adapter = fit_programme(loaded.model, windows, variant, reductions=args.programme, by=args.by, **watched)
    adapter.record = {"texts": args.text, **adapter.record}
    adapter.save_pretrained(out, loaded.model)
    return {
        "out": str(out),
        "model": loaded.name,
        "kind": adapter.kind,
        "serve": adapter.serve,
        "record": adapter.record,
        "environment": environment(loaded.model.device),
        "thresholds": [[round(t, 6) for t in layer] for layer in adapter.thresholds.tolist()],
    }


def table(document: dict[str, Any]) -> str:
    """Where the adapter lies, and each layer's thresholds."""
    record = document["record"]
    shown = [(name.replace("_", " "), value) for name, value in record.items() if not isinstance(value, (dict, list))]
    layers = [
        (f"layer {layer}", " ".join(f"{t:.3g}" for t in heads)) for layer, heads in enumerate(document["thresholds"])
    ]
    return pairs(
        [("adapter", f"{document['out']} ({document['kind']} for {document['model']})"), *shown, *layers],
    )
