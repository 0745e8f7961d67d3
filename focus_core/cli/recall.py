"""``recall``: whether a model finds again, with a variant, what it read."""

from __future__ import annotations

import argparse
import time
from typing import Any

from focus_core.cli.options import add_model, add_variant, choose_variant, load, load_adapter_of
from focus_core.cli.output import bar, rows
from focus_core.errors import InvalidInput

SUMMARY = "measure whether a model finds again what it read: copies of random tokens and of text, and hidden pairs"


def configure(parser: argparse.ArgumentParser) -> None:
    """See ``focus_core/evaluation/recall.py`` for what is asked."""
    add_model(parser)
    add_variant(parser)
    parser.add_argument("--text", default="persuasion", help="a shipped text's name or a file (default persuasion)")
    parser.add_argument("--context", type=int, default=1024, metavar="N", help="tokens a window (default 1024)")
    parser.add_argument("--count", type=int, default=64, metavar="C", help="windows of each question (default 64)")
    parser.add_argument("--batch", type=int, default=16, help="windows that run together (default 16)")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn (default 0)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure."""
    from focus_core.assets import load_text

    for name in ("count", "batch"):
        if getattr(args, name) < 1:
            raise InvalidInput(f"--{name} is {getattr(args, name)}.", "It must be 1 or more.")
    variant, folder = choose_variant(args)
    text = load_text(args.text)
    loaded = load(args, bar())
    adapter = load_adapter_of(folder, loaded.model)

    import torch

    from focus_core.capture import check_length
    from focus_core.evaluation.environment import environment
    from focus_core.evaluation.recall import Sample, recall

    check_length(args.context, loaded.facts.context)
    began = time.perf_counter()
    ids = torch.tensor(loaded.tokenizer(text.text, add_special_tokens=False, verbose=False)["input_ids"])
    found = recall(loaded.model, variant, adapter, ids, Sample(args.context, args.count, args.batch, args.seed))
    return {
        "model": loaded.name,
        "variant": variant.name,
        "config": variant.to_dict(),
        "served": variant.served,
        "text": text.name,
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
        **found,
        "seconds": round(time.perf_counter() - began, 3),
        "environment": environment(loaded.model.device),
    }


def table(document: dict[str, Any]) -> str:
    """Every question with its control."""
    body = []
    labels = {"random": "random tokens, copied from", "text": "text, copied from", "pairs": "a pair at"}
    for name, label in labels.items():
        for where, one in document[name].items():
            unit = "of the text" if name == "pairs" else "tokens back"
            body.append([f"{label} {where} {unit}", one["nll"], one["control"], one["right"], one["right_control"]])
    return rows(["question", "nll", "control", "right", "control right"], body)
